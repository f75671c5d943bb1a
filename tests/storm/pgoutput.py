"""A small reader of pgoutput, independent of the bridge's: what a second slot says was committed.

PostgreSQL decides here which tables are published at which place, which rows a filter lets through
and what a partition is called. `pg_logical_slot_get_binary_changes` gives one message per row.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

UNCHANGED = "\0unchanged"
"""Stands for a value that PostgreSQL did not send because it is stored out of line, unchanged."""

Image = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the stream describes it: columns as name, type and type modifier."""

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One published row change; `old` is the key or the whole row before, where it was sent."""

    commit_lsn: int
    xid: int
    operation: str
    relation: Relation
    new: Image | None
    old: Image | None


class Reader:
    """Turns messages into changes, in commit order."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._relations: dict[int, Relation] = {}
        self._commit_lsn = self._xid = 0

    def feed(self, message: bytes) -> None:
        body = _Body(message)
        kind = body.take("c").decode()
        if kind == "B":
            self._commit_lsn, _, self._xid = body.takes("qqI")
        elif kind == "R":
            self._relation(body)
        elif kind == "T":
            count, _ = body.takes("IB")
            for _ in range(count):
                self._add("TRUNCATE", body.take("I"), None, None)
        elif kind in _OPERATIONS:
            self._row(kind, body)

    def _relation(self, body: _Body) -> None:
        oid = body.take("I")
        schema, name = body.string(), body.string()
        _, count = body.takes("cH")
        columns = []
        for _ in range(count):
            body.take("B")
            column = body.string()
            columns.append((column, *body.takes("Ii")))
        self._relations[oid] = Relation(oid, schema, name, tuple(columns))

    def _row(self, kind: str, body: _Body) -> None:
        oid, old, new = body.take("I"), None, None
        while body.more:
            if body.take("c") == b"N":
                new = body.image()
            else:
                old = body.image()
        self._add(_OPERATIONS[kind], oid, new, old)

    def _add(self, operation: str, oid: int, new: Image | None, old: Image | None) -> None:
        relation = self._relations[oid]
        self.changes.append(Change(self._commit_lsn, self._xid, operation, relation, new, old))


_OPERATIONS = {"I": "INSERT", "U": "UPDATE", "D": "DELETE"}


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def takes(self, format: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"!{format}", self._data, self._at)
        self._at += struct.calcsize(f"!{format}")
        return found

    def take(self, format: str) -> Any:
        return self.takes(format)[0]

    def string(self) -> str:
        end = self._data.index(b"\0", self._at)
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def image(self) -> Image:
        return tuple(self._value() for _ in range(self.take("H")))

    def _value(self) -> str | None:
        kind = self.take("c")
        if kind == b"n":
            return None
        if kind == b"u":
            return UNCHANGED
        size = self.take("I")
        text = self._data[self._at : self._at + size].decode()
        self._at += size
        return text
