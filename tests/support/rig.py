"""A database, a NATS server and the bridge between them, for tests that only watch the stream.

Whatever a test does, every stream it reads is held against the contract: each change is described,
exactly, by the shape its `schema_revision` names, and that shape stands before it in the stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from jsonschema import Draft202012Validator
from psycopg.sql import SQL

from examples.embedded import EmbeddedNats, EmbeddedPostgres
from schemas.names import TableName
from schemas.shapes import Column, TableShape
from schemas.subjects import SchemaSubject, parse_cdc_subject
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.stream import StoredMessage, read_shapes, read_stream

PUBLICATION = "pub"
_MARK = "rig"

Revisions = Mapping[str, Mapping[int, TableShape]]


class Rig:
    """One bridge on one slot, started and stopped as the test tells."""

    def __init__(
        self,
        connection: Connection,
        postgres: EmbeddedPostgres,
        nats: EmbeddedNats,
        folder: Path,
        *flags: str,
        name: str = "slot",
    ) -> None:
        database = connection.info.dbname
        self.connection = connection
        self.nats = nats
        self.slot = f"{name}_{database}"
        self.bridge = BridgeProcess(
            {**postgres.env(database), **nats.env()},
            *("--slot", self.slot, "--pub", PUBLICATION, "--durability", "acked", *flags),
            log=folder / f"{name}.log",
        )
        self._marks = 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bridge.__exit__(kind, error, trace)

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        for statement in statements:
            self.connection.execute(SQL(statement))

    def together(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with self.connection.transaction():
            self.execute(*statements)

    def start(self) -> None:
        self.bridge.start()
        self.bridge.wait_streaming()

    def kill(self) -> None:
        self.bridge.kill()

    def stop(self) -> None:
        assert self.bridge.terminate() == 0, self.bridge.said()[-3000:]

    def stream(self) -> list[StoredMessage]:
        """Wait until all that was committed is stored, and give it once it is proven described."""
        self._marks += 1
        mark = f"{_MARK}{self._marks}"
        self.connection.execute("SELECT pg_logical_emit_message(true, %s, '')", [mark])
        stored = wait_for(lambda: self._stream_up_to(mark), mark)
        assert_described(stored, read_revisions(self.nats.url))
        return stored

    def _stream_up_to(self, mark: str) -> list[StoredMessage] | None:
        assert self.bridge.process.poll() is None, self.bridge.said()[-3000:]
        stored = read_stream(self.nats.url)
        if not any(m.subject == f"cdc._message.{mark}" for m in stored):
            return None
        return [m for m in stored if not m.subject.startswith("cdc._message.")]

    def shapes(self, table: str) -> list[TableShape]:
        """Every shape KV has held for a table, oldest first."""
        revisions = read_revisions(self.nats.url)[TableName.parse(table).token]
        return [revisions[revision] for revision in sorted(revisions)]

    def attnums(self, table: str) -> dict[str, int]:
        """What the catalog says of a table's columns now."""
        rows = self.connection.execute(
            "SELECT attname, attnum FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [table],
        )
        return {str(name): int(str(attnum)) for name, attnum in rows}


def changes_of(stored: Iterable[StoredMessage], table: str) -> list[dict[str, Any]]:
    """The changes of one table, in order."""
    name = TableName.parse(table)
    return [
        message.fields
        for message in stored
        if message.is_change
        and (message.fields["schema"], message.fields["table"]) == (name.schema, name.table)
    ]


def story_of(stored: Iterable[StoredMessage], table: str) -> list[str]:
    """What the stream tells of one table: `schema`, `insert` and so on, in order."""
    prefix = f"cdc.{TableName.parse(table).token}."
    return [m.subject.removeprefix(prefix) for m in stored if m.subject.startswith(prefix)]


def announced(stored: Iterable[StoredMessage], table: str) -> list[TableShape]:
    """The shapes the stream carries of one table, in order."""
    subject = f"cdc.{TableName.parse(table).token}.schema"
    return [TableShape.from_map(m.fields) for m in stored if m.subject == subject]


def read_revisions(url: str) -> Revisions:
    return {
        token: {revision: TableShape.from_map(fields) for revision, fields in entries}
        for token, entries in read_shapes(url).items()
    }


def assert_described(stored: Sequence[StoredMessage], revisions: Revisions) -> None:
    """Hold every message against the shape it names, and against the last one announced."""
    positions = [message.position for message in stored if message.is_change]
    assert positions == sorted(set(positions)), "a change is stored twice, or behind a later one"
    current: dict[TableName, TableShape] = {}
    for message in stored:
        about = parse_cdc_subject(message.subject)
        fields = message.fields
        if isinstance(about, SchemaSubject):
            current[about.table] = TableShape.from_map(fields)
            named = revisions[about.table.token][fields["schema_revision"]]
            assert fields["fingerprint"] == current[about.table].fingerprint == named.fingerprint
            assert [c.data_type for c in current[about.table].columns] == [
                c.data_type for c in named.columns
            ]
            attnums = [column.position for column in named.columns]
            assert attnums == sorted(set(attnums)), f"{message.subject}: {attnums}"
        else:
            name = TableName(fields["schema"], fields["table"])
            assert message.headers["Nats-Msg-Id"] == fields["msg_id"]
            shape = revisions[name.token][fields["schema_revision"]]
            assert current[name].fingerprint == shape.fingerprint, f"{fields} is not announced"
            _assert_describes(shape, fields)


def _assert_describes(shape: TableShape, change: Mapping[str, Any]) -> None:
    assert change["relation_id"] == shape.relation_id
    operation = change["operation"]
    if operation == "TRUNCATE":
        assert change["data"] == {}
        return
    names = [column.name for column in shape.columns]
    unchanged, text = change.get("unchanged", []), change.get("text", [])
    assert list(change["data"]) == [name for name in names if name not in unchanged]
    is_full = shape.replica_identity == "full" and operation != "INSERT"
    assert ("old" in change) == is_full
    if "old" in change:
        assert list(change["old"]) == names
    if "key" in change:
        assert set(change["key"]) == {column.name for column in shape.key}
    # Under any identity but FULL a delete has the key alone; its other nulls say nothing.
    whole = operation != "DELETE" or is_full
    for image in ("data", "key", "old"):
        for column in shape.columns if image in change else ():
            if column.name in change[image] and (whole or column.key is not None):
                _assert_fits(column, change[image][column.name], column.name in text)


def _assert_fits(column: Column, value: Any, travels_as_text: bool) -> None:
    if value is None:
        assert column.is_nullable, f"{column.name} is null, and its shape says it never is"
    elif travels_as_text:
        assert isinstance(value, str)
    else:
        Draft202012Validator(column.type.json_schema).validate(value)
