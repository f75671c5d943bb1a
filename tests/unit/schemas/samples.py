"""One of each thing the contract carries, for tests that only need an example."""

from __future__ import annotations

from dataclasses import replace

from schemas.ddl import DdlEvent, format_ddl
from schemas.events import Change, LogicalMessage, Place, ShapeChange
from schemas.forks import Fork, format_fork
from schemas.names import TableName
from schemas.shapes import Column, TableShape
from schemas.subjects import DDL_PREFIX, FORK_PREFIX
from schemas.types import parse_type

USERS = TableName("public", "users")
MOMENT = "2025-12-08T13:45:21.719719Z"
SOURCE = "7451029384756102938/16384/shop"

PLACE = Place(lsn=0x191BFD0, commit_lsn=0x191C0A8, commit_ts=MOMENT, xid=742, seq=0, last=False)

SHAPE = TableShape(
    name=USERS,
    relation_id=16_385,
    replica_identity="default",
    columns=(
        Column(
            name="id",
            position=1,
            data_type="integer",
            type_oid=23,
            type_modifier=-1,
            type=parse_type("int32"),
            is_nullable=False,
            column_default="nextval('users_id_seq'::regclass)",
            key=0,
        ),
        Column(
            name="balance",
            position=2,
            data_type="numeric(10,2)",
            type_oid=1700,
            type_modifier=(10 << 16 | 2) + 4,
            type=parse_type("decimal(10,2)"),
        ),
        Column(
            name="tags",
            position=4,
            data_type="text[]",
            type_oid=1009,
            type_modifier=-1,
            type=parse_type("list<text>"),
        ),
    ),
)

INSERT = Change(
    table=USERS,
    operation="INSERT",
    relation_id=16_385,
    place=PLACE,
    schema_revision=3,
    data={"id": 1, "balance": "12.50", "tags": ["a", None]},
)
COPIED_ROW = replace(INSERT, place=replace(PLACE, seq=1), repeat=1)
UPDATE = replace(
    INSERT,
    operation="UPDATE",
    place=replace(PLACE, lsn=0x191C010, seq=2),
    data={"id": 2, "balance": "NaN"},
    key={"id": 1},
    unchanged=("tags",),
)
UPDATE_UNDER_FULL = replace(
    UPDATE,
    place=replace(PLACE, lsn=0x191C048, seq=3),
    data={"id": 2, "balance": None, "tags": "[2:3]={a,b}"},
    key=None,
    old={"id": 2, "balance": "0.10", "tags": None},
    unchanged=(),
    text=("tags",),
)
DELETE = replace(
    INSERT,
    operation="DELETE",
    place=replace(PLACE, lsn=0x191C078, seq=4),
    data={"id": 2, "balance": None, "tags": None},
)
TRUNCATE = replace(
    INSERT, operation="TRUNCATE", place=replace(PLACE, lsn=0x191C0A0, seq=5, last=True), data={}
)
CHANGES = {
    "insert": INSERT,
    "copied_row": COPIED_ROW,
    "update": UPDATE,
    "update_under_full": UPDATE_UNDER_FULL,
    "delete": DELETE,
    "truncate": TRUNCATE,
}

SHAPE_CHANGE = ShapeChange(
    shape=SHAPE,
    place=PLACE,
    schema_revision=3,
    source=SOURCE,
)
REWRITTEN = replace(
    SHAPE_CHANGE,
    shape=replace(
        SHAPE,
        columns=(*SHAPE.columns[:-1], replace(SHAPE.columns[-1], fill=["new"])),
        rewritten=True,
    ),
    place=replace(PLACE, lsn=0x191C0F0, commit_lsn=0x191C0F0, xid=0, seq=1, last=True),
    schema_revision=4,
    alone=True,
)
DDL_EVENTS = (
    DdlEvent("drop", 16_385, USERS),
    DdlEvent("rename", 16_386, USERS, TableName("sales", "people")),
    DdlEvent("rewrite", 16_387, USERS, reason="ALTER TABLE"),
)
MESSAGE = LogicalMessage(
    prefix="audit",
    content="who did it",
    transactional=True,
    place=replace(PLACE, seq=1),
    source=SOURCE,
)
DDL_MESSAGE = replace(
    MESSAGE,
    prefix=DDL_PREFIX,
    content=format_ddl(DDL_EVENTS),
    transactional=False,
    place=replace(REWRITTEN.place, seq=0),
)
FORK = Fork("7451029384756102938", 2, 0x191BFD0, "shop", "the server was promoted behind us")
FORK_MESSAGE = replace(
    MESSAGE,
    prefix=FORK_PREFIX,
    content=format_fork(FORK),
    transactional=False,
    place=replace(
        PLACE, lsn=FORK.place.commit_lsn, commit_lsn=FORK.place.commit_lsn, xid=0, last=True
    ),
)
LONE_MESSAGE = replace(
    MESSAGE,
    transactional=False,
    place=replace(PLACE, commit_lsn=PLACE.lsn, commit_ts=None, xid=0, last=True),
)
