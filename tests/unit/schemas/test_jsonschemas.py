"""JSON Schemas: the files are the code, real events meet them, broken ones do not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator, ValidationError

from schemas.codecs import CODECS, Codec
from schemas.ddl import format_ddl
from schemas.events import Event
from schemas.forks import format_fork
from schemas.jsonschemas import COLUMN, FOLDER, PAYLOADS, files, write
from schemas.names import TableName
from schemas.shapes import Column, TableShape
from schemas.snapshots import Checksum, SnapshotName, failure
from schemas.types import KINDS, TYPES
from tests.unit.schemas.samples import (
    CHANGES,
    DDL_EVENTS,
    DELETE,
    FORK,
    INSERT,
    LONE_MESSAGE,
    MESSAGE,
    MOMENT,
    REWRITTEN,
    SHAPE,
    SHAPE_CHANGE,
    SOURCE,
    TRUNCATE,
    UPDATE,
)
from tests.unit.schemas.test_events import changes
from tests.unit.schemas.test_shapes import columns, shapes

Fields = dict[str, Any]
both = pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))

NAME = SnapshotName("s1", TableName("public", "users"), 7, 5)
SNAPSHOT: Fields = NAME.to_map()
SAMPLES: dict[str, list[Fields]] = {
    "change": [change.to_map() for change in CHANGES.values()],
    "schema": [
        SHAPE.to_map(timestamp=MOMENT, lsn=7, source=SOURCE),
        SHAPE_CHANGE.to_map(),
        REWRITTEN.to_map(),
    ],
    "message": [MESSAGE.to_map(), LONE_MESSAGE.to_map()],
    "bridge-ddl": [json.loads(format_ddl(DDL_EVENTS))],
    "bridge-fork": [json.loads(format_fork(FORK))],
    "snapshot-request": [{}, {"from": [1], "to": [9, "x"], "columns": ["id"]}],
    "snapshot-reply": [
        NAME.accepted(),
        {"status": "rejected", "error": "no such table", "available_tables": ["users"]},
    ],
    "snapshot-start": [NAME.start()],
    "snapshot-chunk": [
        {**SNAPSHOT, "operation": "snapshot", "chunk": 0, "schema_revision": 3, "data": []},
        {
            **SNAPSHOT,
            "operation": "snapshot",
            "chunk": 1,
            "schema_revision": 3,
            "data": [{"id": 1, "born": "0044-03-15 BC"}, {"id": 2, "born": None}],
            "text": {"0": ["born"]},
        },
    ],
    "snapshot-meta": [
        NAME.meta(
            batch_count=2,
            row_count=2,
            checksum=str(Checksum([b"a", b"b"])),
            chunks_checksum=Checksum([b"a", b"b"]).of_chunks,
            cdc_complete=9,
            schema_revision=3,
            whole=True,
        )
    ],
    "snapshot-error": [failure("s1", "e", "a")],
}
each_sample = pytest.mark.parametrize(
    ("payload", "fields"),
    [(name, fields) for name, several in SAMPLES.items() for fields in several],
)


def validator(payload: str) -> Draft202012Validator:
    return Draft202012Validator(PAYLOADS[payload].document(payload))


def test_the_files_are_what_the_code_says() -> None:
    """Consumers in other languages have only the files."""
    found = {path.name: path.read_text() for path in FOLDER.glob("*.json")}

    assert found == files(), "run `python -m schemas.jsonschemas`"


def test_writing_removes_what_is_no_payload_any_more(tmp_path: Path) -> None:
    """A stale file would state a contract that nobody keeps."""
    (tmp_path / "gone.json").write_text("{}")

    write(tmp_path)

    assert {path.name for path in tmp_path.iterdir()} == set(files())


@pytest.mark.parametrize("payload", PAYLOADS)
def test_each_file_is_a_schema_with_an_id_of_ours(payload: str) -> None:
    """The id is a name and not an address: nothing is fetched to validate."""
    document = json.loads(files()[f"{payload}.json"])

    Draft202012Validator.check_schema(document)
    assert document["$id"].startswith("urn:walbridge:")


def test_every_payload_has_samples() -> None:
    """A payload added to the table is tested from its first day."""
    assert set(SAMPLES) == set(PAYLOADS)


@both
@each_sample
def test_what_we_send_meets_its_schema(codec: Codec, payload: str, fields: Fields) -> None:
    """After the wire, as a consumer decodes it."""
    validator(payload).validate(codec.decode(codec.encode(fields)))


def test_binary_and_not_a_number_meet_the_schema_in_messagepack() -> None:
    """JSON Schema has no bytes; the schema must not refuse what it has no word for."""
    change = replace(INSERT, data={"b": b"\x00", "f": float("nan"), "l": [[b"x"], None]})

    validator("change").validate(
        CODECS["msgpack"].decode(CODECS["msgpack"].encode(change.to_map()))
    )


@each_sample
def test_an_unknown_field_is_refused(payload: str, fields: Fields) -> None:
    """Fields come with a changelog line, not by accident."""
    with pytest.raises(ValidationError):
        validator(payload).validate({**fields, "surprise": 1})


@each_sample
def test_each_required_field_is_missed(payload: str, fields: Fields) -> None:
    """`lsn` above all: without it nothing can be ordered or compared."""
    schema = validator(payload)
    for name in PAYLOADS[payload].document(payload)["required"]:
        without = {field: value for field, value in fields.items() if field != name}

        with pytest.raises(ValidationError):
            schema.validate(without)


def test_the_schema_requires_what_the_code_always_writes() -> None:
    """The required fields are exactly those of the smallest event."""

    def required(payload: str) -> set[str]:
        return set(PAYLOADS[payload].document(payload)["required"])

    assert required("change") == set(INSERT.to_map())
    assert required("schema") == set(SHAPE.to_map(timestamp=MOMENT, lsn=7, source=SOURCE))
    assert required("message") == set(MESSAGE.to_map())
    assert set(COLUMN) == set(REWRITTEN.shape.columns[-1].to_map())
    assert set(PAYLOADS["schema"].fields) == {*REWRITTEN.to_map(), "storage"}


def _with(event: Event, **fields: Any) -> Fields:
    return {**event.to_map(), **fields}


BROKEN: dict[str, Callable[[], Fields]] = {
    "operation in lower case": lambda: _with(INSERT, operation="insert"),
    "operation of another subject": lambda: _with(INSERT, operation="DELETE"),
    "subject of another stream": lambda: _with(INSERT, subject="init.users.insert"),
    "lsn as text": lambda: _with(INSERT, lsn="0/191BFD0"),
    "negative lsn": lambda: _with(INSERT, lsn=-1),
    "lsn beyond 64 bits": lambda: _with(INSERT, lsn=1 << 64),
    "lsn in upper-case hex in the id": lambda: _with(INSERT, msg_id="191BFD0-users-insert"),
    "repeat 0 in the id": lambda: _with(INSERT, msg_id="191bfd0-users-insert-0"),
    "milliseconds": lambda: _with(INSERT, commit_ts="2025-12-08T13:45:21.719Z"),
    "no commit time": lambda: _with(INSERT, commit_ts=None),
    "last as a number": lambda: _with(INSERT, last=1),
    "data as a list": lambda: _with(INSERT, data=[1]),
    "no data": lambda: _with(INSERT, data=None),
    "key null": lambda: _with(UPDATE, key=None),
    "key on an insert": lambda: _with(INSERT, key={"id": 1}),
    "key on a delete": lambda: _with(DELETE, key={"id": 1}),
    "old on an insert": lambda: _with(INSERT, old={"id": 1}),
    "unchanged on a delete": lambda: _with(DELETE, unchanged=["tags"]),
    "unchanged and empty": lambda: _with(UPDATE, unchanged=[]),
    "text twice": lambda: _with(UPDATE, text=["tags", "tags"]),
    "truncate with a row": lambda: _with(TRUNCATE, data={"id": 1}),
    "truncate with text": lambda: _with(TRUNCATE, text=["id"]),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_change_is_refused(broken: Callable[[], Fields]) -> None:
    """A schema that accepts everything states nothing."""
    with pytest.raises(ValidationError):
        validator("change").validate(broken())


def test_a_shape_is_announced_with_its_whole_place_or_not_at_all() -> None:
    """In KV it has no place; on the stream half of one orders nothing."""
    announced = SHAPE_CHANGE.to_map()
    for name in ("subject", "msg_id", "commit_lsn", "seq", "schema_revision"):
        without = {field: value for field, value in announced.items() if field != name}

        with pytest.raises(ValidationError):
            validator("schema").validate(without)


@pytest.mark.parametrize(
    "reply",
    [
        {"status": "accepted"},
        {**NAME.accepted(), "error": "e"},
        {"status": "rejected", "snapshot_id": "s1", "lsn": 7},
        {"status": "maybe", "error": "e", "available_tables": []},
    ],
)
def test_a_reply_is_one_thing_or_the_other(reply: Fields) -> None:
    """Whoever asked branches on `status` and finds the fields that belong to it."""
    with pytest.raises(ValidationError):
        validator("snapshot-reply").validate(reply)


@given(changes.filter(lambda change: change.operation == "UPDATE"))
def test_any_update_the_code_can_build_meets_the_schema(change: Event) -> None:
    """Any table name, any position, any columns."""
    fields = change.to_map()
    for several in ("unchanged", "text"):
        if several in fields:
            fields[several] = sorted(set(fields[several]))

    validator("change").validate(fields)


@given(shapes)
def test_any_shape_the_code_can_build_meets_the_schema(shape: TableShape) -> None:
    """Every type of the table has a name the schema knows."""
    validator("schema").validate(shape.to_map(timestamp=MOMENT, lsn=1, source=SOURCE))


@given(columns)
def test_a_column_of_no_known_type_is_refused(column: Column) -> None:
    """Type names are a closed list: a reader that meets a new one must be told so."""
    fields = SHAPE.to_map(timestamp=MOMENT, lsn=1, source=SOURCE)
    fields["columns"] = [{**column.to_map(), "type": "varchar"}]

    with pytest.raises(ValidationError):
        validator("schema").validate(fields)


def test_every_kind_and_every_postgresql_type_is_named() -> None:
    """The schema of a change is the type table for readers of other languages."""
    definitions = PAYLOADS["change"].document("change")["$defs"]

    assert set(KINDS) < set(definitions)
    for row in TYPES:
        assert row.name in re.findall(r"\w+", definitions[row.kind]["description"])
