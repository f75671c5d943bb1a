"""Requests for snapshots: what a body may say, and the one error for everything else."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from schemas.names import BadToken, TableName
from schemas.shapes import Column, TableShape

Key = tuple[str, ...]
"""The first columns of a key, as PostgreSQL's input texts."""


class Rejected(Exception):
    """A request that is not served, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRequest:
    """What somebody asked for; equal requests are one snapshot.

    A range is half open: `from_key` is in it, `to_key` is not, so ranges that meet do not overlap.
    """

    table: TableName
    from_key: Key = ()
    to_key: Key = ()
    columns: tuple[str, ...] = ()

    @property
    def is_range(self) -> bool:
        return bool(self.from_key or self.to_key)

    @property
    def is_whole(self) -> bool:
        return not self.is_range and not self.columns


def parse_request(token: str, body: bytes) -> SnapshotRequest:
    """Read the subject's last part and the body, or say what is wrong with them."""
    try:
        table = TableName.from_token(token)
    except BadToken:
        raise Rejected(
            f"{token[:200]!r} names no table: write users for public.users, sales/orders for others"
        ) from None
    fields = _read_map(body)
    unknown = sorted(fields.keys() - _FIELDS.keys())
    if unknown:
        raise Rejected(f"{unknown[0][:80]!r} is not one of {', '.join(_FIELDS)}")
    read = {name: _FIELDS[name](name, value) for name, value in fields.items()}
    return SnapshotRequest(
        table=table,
        from_key=read.get("from", ()),
        to_key=read.get("to", ()),
        columns=read.get("columns", ()),
    )


def _read_map(body: bytes) -> Mapping[str, Any]:
    if not body.strip():
        return {}
    try:
        # A number's digits are PostgreSQL's to read: as text none of them is lost.
        fields = json.loads(body, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Rejected("the body is neither empty nor JSON") from None
    if not isinstance(fields, dict):
        raise Rejected("the body is JSON and not a map")
    return fields


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read_key(name: str, value: Any) -> Key:
    if not isinstance(value, list) or not value:
        raise Rejected(f"{name!r} is not a list of key values")
    return tuple(_key_text(name, part) for part in value)


def _key_text(name: str, part: Any) -> str:
    if isinstance(part, bool):
        return "true" if part else "false"
    if isinstance(part, int):
        return _digits(name, part)
    if not isinstance(part, str) or "\0" in part:
        raise Rejected(f"{name!r} holds what cannot be a key: null, a list, a map or a NUL byte")
    try:
        part.encode()
    except UnicodeEncodeError:
        raise Rejected(f"{name!r} holds text that is not Unicode") from None
    return part


def _digits(name: str, number: int) -> str:
    try:
        return str(number)
    except ValueError:
        raise Rejected(f"{name!r} holds a number of too many digits") from None


def _read_columns(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(c, str) for c in value):
        raise Rejected(f"{name!r} is not a list of column names")
    if len(set(value)) != len(value):
        raise Rejected(f"{name!r} names a column twice")
    return tuple(value)


_FIELDS: Mapping[str, Callable[[str, Any], tuple[str, ...]]] = {
    "from": _read_key,
    "to": _read_key,
    "columns": _read_columns,
}


def choose_columns(shape: TableShape, wanted: Sequence[str]) -> tuple[Column, ...]:
    """Give the columns to read, in the table's order."""
    known = {column.name for column in shape.columns}
    missing = [name for name in wanted if name not in known]
    if missing:
        raise Rejected(f"{shape.name} has no published column {missing[0][:80]!r}")
    return tuple(c for c in shape.columns if not wanted or c.name in wanted)


def check_keys(shape: TableShape, request: SnapshotRequest) -> None:
    """Refuse a range that the table's key cannot have."""
    if request.is_range and not shape.key:
        raise Rejected(f"{shape.name} has no key, so no range of it")
    longest = max(len(request.from_key), len(request.to_key))
    if longest > len(shape.key):
        raise Rejected(f"a key of {longest} values, and {shape.name} has {len(shape.key)}")


def new_snapshot_id() -> str:
    """Name a snapshot by when it was asked for; the random end makes it unique for ever."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(5)}"
