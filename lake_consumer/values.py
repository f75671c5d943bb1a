"""From a contract value to what a lake column holds, or to text where the column cannot hold it.

The contract's own readers are used again for values that travelled as text: what only MessagePack
or only JSON could not hold (a bytea in JSON, a NaN) still becomes native here. What no column can
hold (an infinite date, a NaN in a decimal, an array deeper than its column) becomes PostgreSQL's
own text in the row's text map, and its column is null. Nothing is rounded and nothing is guessed.

A column of documents holds their text without whitespace between tokens, whether they travelled
natively or as text: digits, the order of keys and duplicate keys are PostgreSQL's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from schemas.types import ContractType, Kind
from schemas.values import NO_NATIVE_FORM, Value, compact_json, read_array, reader_for

_NEVER_TEXT: frozenset[Kind] = frozenset(
    {"bool", "int16", "int32", "int64", "uint32", "float32", "float64", "text", "uuid", "time"}
)


def may_be_text(type: ContractType) -> bool:
    """Whether a column can meet a value that only its text states."""
    return type.kind not in _NEVER_TEXT and type.spark != "string"


def from_text(type: ContractType, text: str) -> Value:
    """Read PostgreSQL's text of a value; `NO_NATIVE_FORM` where only the text is exact."""
    if type.kind == "json":
        return _json_text(text)
    if type.element is not None and type.element.kind == "json":
        return _json_texts(text)
    if type.spark == "string":
        return text
    value = reader_for(type, "msgpack")(text)
    return value if value is NO_NATIVE_FORM else from_contract(type, value)


_read_json = reader_for(ContractType("json"), "msgpack")


def _json_text(text: str) -> str:
    """Spell a document as `dump_json` does, with every token as PostgreSQL wrote it."""
    value = _read_json(text)
    return compact_json(text) if value is NO_NATIVE_FORM else dump_json(value)


def _json_texts(text: str) -> Value:
    """Read an array of documents; the column holds their text, so any of them can be an element."""
    documents = read_array(text, _json_text)
    if documents is NO_NATIVE_FORM or any(isinstance(item, list) for item in documents):
        return NO_NATIVE_FORM
    return documents


def from_contract(type: ContractType, value: Value) -> Value:
    """Give the Python value Arrow takes for this column, or `NO_NATIVE_FORM`."""
    if value is None:
        return None
    if type.element is not None:
        return _list(type.element, value)
    return _FROM_CONTRACT.get(type.kind, _as_is)(type, value)


def _as_is(_: ContractType, value: Value) -> Value:
    return value


def _decimal(type: ContractType, value: Value) -> Value:
    spark = type.spark
    if spark == "string":
        return value
    precision, scale = (int(part) for part in spark[8:-1].split(","))
    with localcontext() as context:
        context.prec = 80
        try:
            number = Decimal(value)
            exact = number.quantize(Decimal(1).scaleb(-scale))
        except InvalidOperation:
            return NO_NATIVE_FORM
    fits = exact == number and len(exact.as_tuple().digits) <= precision
    return exact if fits else NO_NATIVE_FORM


def _date(_: ContractType, value: Value) -> Value:
    try:
        return date.fromisoformat(value)
    except ValueError:
        return NO_NATIVE_FORM


def _moment(type: ContractType, value: Value) -> Value:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return NO_NATIVE_FORM
    return moment.astimezone(UTC) if type.kind == "timestamptz" else moment


def _json(_: ContractType, value: Value) -> Value:
    return dump_json(value)


def _list(element: ContractType, value: Value) -> Value:
    if not isinstance(value, list):
        return NO_NATIVE_FORM
    items = []
    for item in value:
        # A list is one more dimension, also of documents: one that is a list travels as text.
        native = NO_NATIVE_FORM if isinstance(item, list) else from_contract(element, item)
        if native is NO_NATIVE_FORM:
            return NO_NATIVE_FORM
        items.append(native)
    return items


_FROM_CONTRACT: Mapping[Kind, Callable[[ContractType, Value], Value]] = {
    "decimal": _decimal,
    "date": _date,
    "timestamp": _moment,
    "timestamptz": _moment,
    "json": _json,
}


def dump_json(value: Any) -> str:
    """One spelling per document: no spaces, keys in the order PostgreSQL gave them."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def to_text(type: ContractType, value: Value) -> str:
    """Write a contract value as PostgreSQL reads it: `'{{1,2},{3,4}}'::int4[]` gives it back."""
    if isinstance(value, list) and type.element is not None:
        return "{" + ",".join(_item(type, item) for item in value) + "}"
    return _TO_TEXT.get(type.kind, _plain)(value)


def _item(array: ContractType, item: Value) -> str:
    if item is None:
        return "NULL"
    if isinstance(item, list):
        return to_text(array, item)
    text = to_text(array.element or array, item)
    if text and text.upper() != "NULL" and not set(text) & set('{}," \\\t\n\r\v\f'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(value: Value) -> str:
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    return str(value)


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value).removesuffix(".0")


def _moment_text(value: str) -> str:
    return value.replace("T", " ").replace("Z", "+00")


_TO_TEXT: Mapping[Kind, Callable[[Any], str]] = {
    "float32": _float_text,
    "float64": _float_text,
    "timestamp": _moment_text,
    "timestamptz": _moment_text,
    "json": dump_json,
}
