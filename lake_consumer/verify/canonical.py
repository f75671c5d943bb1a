"""One form for a value, whether PostgreSQL wrote it as text or the lake holds it natively.

The lake's own rule decides (`lake_consumer.values`): PostgreSQL's text goes through the readers
that made the lake's value. A value that no column can hold stands in the lake as text; that text is
read as far as it can be (a list in a list), so that two spellings of one value are one.
Cells are compared by `repr`: NaN is equal to itself and -0.0 is not 0.0.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from lake_consumer.values import from_contract, from_text
from schemas.types import ContractType
from schemas.values import NO_NATIVE_FORM, compact_json, reader_for

Cell = Any
Row = tuple[Cell, ...]


class InText(NamedTuple):
    """A value that the lake's column cannot hold, as PostgreSQL's text states it."""

    value: Any


TextReader = Callable[[str | None], Cell]
LakeReaderOf = Callable[[Any], Cell]

_FLOAT4 = struct.Struct("f")
_AS_TEXT = frozenset({"text", "uuid", "time"})
_INTEGERS = frozenset({"int16", "int32", "int64", "uint32"})


def text_reader(type: ContractType) -> TextReader:
    """Choose once per column how PostgreSQL's text becomes a cell."""
    if type.kind in _AS_TEXT:
        return lambda text: text
    if type.kind in _INTEGERS:
        return lambda text: None if text is None else int(text)
    if (type.element or type).kind == "json":
        return _json_reader(type)
    if type.kind in _QUICK:
        return _QUICK[type.kind](type)
    return _any_reader(type)


def _any_reader(type: ContractType) -> TextReader:
    """Read text as the lake does: to the contract's value, and from there to the column's."""
    read, cell = reader_for(type, "msgpack"), lake_reader(type)

    def convert(text: str | None) -> Cell:
        if text is None:
            return None
        value = read(text)
        if value is NO_NATIVE_FORM:
            return text if type.spark == "string" else InText(text)
        native = from_contract(type, value)
        return InText(_plain(value)) if native is NO_NATIVE_FORM else cell(native)

    return convert


def _json_reader(type: ContractType) -> TextReader:
    """Read documents, or arrays of them, as the lake does where they travel as text."""
    cell, noted = lake_reader(type), noted_reader(type)

    def convert(text: str | None) -> Cell:
        if text is None:
            return None
        native = from_text(type, text)
        return noted(text) if native is NO_NATIVE_FORM else cell(native)

    return convert


def _date_reader(_: ContractType) -> TextReader:
    return lambda text: text if text is None or len(text) == 10 else InText(text)


def _moment_reader(type: ContractType) -> TextReader:
    # What `_iso` gives of a datetime, without making one: that took most of the time.
    read = reader_for(type, "msgpack")

    def convert(text: str | None) -> Cell:
        if text is None:
            return None
        value = read(text)
        if value is NO_NATIVE_FORM:
            return InText(text)
        zone = "Z" if value[-1] == "Z" else ""
        moment = value.removesuffix("Z")
        return (moment if len(moment) == 19 else moment.ljust(26, "0")) + zone

    return convert


def _decimal_reader(type: ContractType) -> TextReader:
    exact = _any_reader(type)
    if not type.spark.startswith("decimal("):
        return exact
    precision, scale = (int(part) for part in type.spark[8:-1].split(","))
    # With all its decimals and room to spare, the text is what `_digits` gives.
    plain = re.compile(rf"-?(0|[1-9][0-9]{{0,{max(0, precision - scale - 1)}}})"
                       + (rf"\.[0-9]{{{scale}}}" if scale else ""))  # fmt: skip
    is_plain = plain.fullmatch if precision > scale else lambda _: None
    return lambda text: text if text is not None and is_plain(text) else exact(text)


_QUICK: Mapping[str, Callable[[ContractType], TextReader]] = {
    "date": _date_reader,
    "timestamp": _moment_reader,
    "timestamptz": _moment_reader,
    "decimal": _decimal_reader,
}


def noted_reader(type: ContractType) -> Callable[[str], Cell]:
    """Read a text that the lake noted beside a column, because the column could not hold it."""
    read = reader_for(type, "msgpack")

    def convert(text: str) -> Cell:
        value = read(text)
        return InText(text if value is NO_NATIVE_FORM else _plain(value))

    return convert


def _plain(value: Any) -> Any:
    """Lists as tuples, which may be keys."""
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def lake_reader(type: ContractType) -> LakeReaderOf:
    """Choose once per column how the lake's value becomes a cell."""
    if type.element is not None:
        element = lake_reader(type.element)
        return lambda items: None if items is None else tuple(map(element, items))
    return _BY_KIND.get(type.kind) or _BY_SPARK.get(type.spark.partition("(")[0], _as_is)


def _as_is(value: Any) -> Cell:
    return value


def _uuid(value: UUID | str | bytes | None) -> Cell:
    if isinstance(value, bytes):
        return str(UUID(bytes=value))
    return None if value is None else str(value)


def _float8(value: float | None) -> Cell:
    # A NaN is no key of a dictionary: it is not equal to itself.
    return value if value is None or value == value else "NaN"  # noqa: PLR0124


def _float4(value: float | None) -> Cell:
    return None if value is None else _float8(_FLOAT4.unpack(_FLOAT4.pack(value))[0])


def _iso(value: date | datetime | None) -> Cell:
    if isinstance(value, datetime):
        # Arrow and Python name UTC by two objects; both are UTC here.
        return value.replace(tzinfo=None).isoformat() + ("Z" if value.tzinfo else "")
    return None if value is None else value.isoformat()


def _digits(value: Decimal | None) -> Cell:
    return None if value is None else format(value, "f")


def _bytes(value: bytes | bytearray | None) -> Cell:
    return None if value is None else bytes(value)


def _document(value: str | None) -> Cell:
    # Whitespace between tokens is no part of a document. Nothing else may be evened out here:
    # PostgreSQL's 2.50 and a lake's 2.5 are two values.
    return None if value is None else compact_json(value)


_BY_KIND: Mapping[str, LakeReaderOf] = {
    "uuid": _uuid,
    "float32": _float4,
    "float64": _float8,
    "json": _document,
}
_BY_SPARK: Mapping[str, LakeReaderOf] = {
    "date": _iso,
    "timestamp": _iso,
    "timestamp_ntz": _iso,
    "decimal": _digits,
    "binary": _bytes,
}


def shown(cell: Cell) -> Any:
    """A cell as a report shows it: exact, and plain JSON."""
    match cell:
        case InText(value):
            return shown(value)
        case bytes():
            return "\\x" + cell.hex()
        case tuple():
            return [shown(item) for item in cell]
        case float() if cell - cell != 0:
            return str(cell)
    return cell
