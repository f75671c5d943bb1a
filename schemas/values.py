"""Values: one rule for CDC and snapshots, from PostgreSQL's text to what goes over the wire.

A reader takes the text PostgreSQL renders under the pinned session settings and gives the native
value, or `NO_NATIVE_FORM` where MessagePack (or JSON) could not hold it exactly. The caller then
sends the text itself and names the column in `text`. Readers never guess and never round.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, Final, Literal

from schemas.types import ContractType, Kind

SESSION_SETTINGS: Mapping[str, str] = {
    "DateStyle": "ISO, YMD",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "IntervalStyle": "postgres",
    "client_encoding": "UTF8",
    # regclass and its kin write a name in full only where the path does not find it.
    "search_path": "pg_catalog",
    "quote_all_identifiers": "off",
}
"""Settings that change what PostgreSQL renders, pinned for the stream and for COPY."""

Format = Literal["msgpack", "json"]
Value = Any
"""None, bool, int, float, str, bytes, or a list or map of these."""


class _NoNativeForm:
    def __repr__(self) -> str:
        return "NO_NATIVE_FORM"


NO_NATIVE_FORM: Final = _NoNativeForm()

Reader = Callable[[str], Value]

MAX_JSON_DEPTH = 100
"""Deeper documents travel as text: MessagePack readers of several languages stop near 500."""


MAX_JSON_INTEGER = 1 << 53
"""JSON readers of most languages hold numbers as doubles: beyond this, integers are text."""


def reader_for(column_type: ContractType, format: Format) -> Reader:
    """Choose the reader once per column; it is then called once per value."""
    if column_type.element is not None:
        element = reader_for(column_type.element, format)
        if column_type.element.kind == "json":
            element = _element_reader(element)
        return lambda text: read_array(text, element)
    return (_JSON_READERS if format == "json" else _READERS)[column_type.kind]


def _read_bool(text: str) -> Value:
    return text == "t"


def _read_text(text: str) -> Value:
    return text


def _always_text(_: str) -> Value:
    return NO_NATIVE_FORM


def _read_json_int64(text: str) -> Value:
    value = int(text)
    return value if -MAX_JSON_INTEGER <= value <= MAX_JSON_INTEGER else NO_NATIVE_FORM


def _read_finite_float(text: str) -> Value:
    value = float(text)
    return value if math.isfinite(value) else NO_NATIVE_FORM


_FLOAT4 = struct.Struct("f")


def _read_float4(text: str) -> Value:
    # PostgreSQL's shortest text names one float4, the double nearest to it may lie half-way between
    # two of them, and a consumer that narrows it would take the wrong one (7.038531e-26 does that).
    value = float(text)
    (narrowed,) = _FLOAT4.unpack(_FLOAT4.pack(value))
    across = 2 * value - narrowed
    if across != narrowed and _FLOAT4.unpack(_FLOAT4.pack(across))[0] == across:
        return NO_NATIVE_FORM
    return value


def _read_finite_float4(text: str) -> Value:
    value = _read_float4(text)
    return value if value is NO_NATIVE_FORM or math.isfinite(value) else NO_NATIVE_FORM


def _read_date(text: str) -> Value:
    # infinity, BC and years past 9999 are all shorter or longer than YYYY-MM-DD.
    return text if len(text) == 10 else NO_NATIVE_FORM


def _read_timestamp(text: str) -> Value:
    if text[10:11] != " " or text[-1] == "C":
        return NO_NATIVE_FORM
    return f"{text[:10]}T{text[11:]}"


def _read_timestamptz(text: str) -> Value:
    if text[10:11] != " " or text[-3:] != "+00":
        return NO_NATIVE_FORM
    return f"{text[:10]}T{text[11:-3]}Z"


def _read_bytea(text: str) -> Value:
    return bytes.fromhex(text[2:])


class _Inexact(Exception):
    """A JSON document that a native map would alter."""


_SHORT_DIGITS = 15
"""An integer of at most so many characters is below 2^53 and needs no further check."""
_INT64_DIGITS = len(str(-(1 << 63)))


def _int_within(low: int, high: int) -> Callable[[str], int]:
    def exact_int(text: str) -> int:
        if len(text) <= _SHORT_DIGITS and text != "-0":
            return int(text)
        # The length first: int() rejects texts of more than 4,300 digits, and jsonb writes 1e5000
        # with all its zeros.
        if len(text) > _INT64_DIGITS or text == "-0" or not low <= (value := int(text)) <= high:
            raise _Inexact
        return value

    return exact_int


def _exact_float(text: str) -> float:
    # `2.50`, `1e2` and `0.00001` name a double too, but nobody can tell from it how they were
    # written: only the shortest digits, as Python and most languages write them, come back.
    value = float(text)
    if repr(value) != text:
        raise _Inexact
    return value


def _unique_keys(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _Inexact
    return document


def _json_reader(low: int, high: int) -> Reader:
    """Make a reader of documents whose integers lie within these bounds.

    Every token comes back: digits, the order of keys, duplicate keys. Whitespace between tokens and
    the way in which a string is escaped (`\\u0041` for `A`) are no part of the value.
    """
    decode = json.JSONDecoder(
        parse_int=_int_within(low, high),
        parse_float=_exact_float,
        object_pairs_hook=_unique_keys,
    ).decode

    def read_json(text: str) -> Value:
        if text.count("[") + text.count("{") > MAX_JSON_DEPTH and _depth(text) > MAX_JSON_DEPTH:
            return NO_NATIVE_FORM
        try:
            value = decode(text)
            if "\\u" in text:
                # A lone surrogate is legal in type json and has no UTF-8 form.
                json.dumps(value, ensure_ascii=False).encode()
        except (_Inexact, UnicodeEncodeError):
            return NO_NATIVE_FORM
        # A JSON null is a value; sent as null it would read as SQL NULL, which is none.
        return NO_NATIVE_FORM if value is None else value

    return read_json


def _element_reader(read_document: Reader) -> Reader:
    """Make a reader of documents in an array.

    A list in it could not be told from one more dimension: '{"[1]"}' and '{{1}}' are two values.
    """

    def read_element(text: str) -> Value:
        value = read_document(text)
        return NO_NATIVE_FORM if isinstance(value, list) else value

    return read_element


_JSON_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_JSON_STRINGS = re.compile(_JSON_STRING)
_NOT_BRACKETS = re.compile(r"[^][{}]+")
_STEPS: Mapping[str, int] = {"[": 1, "{": 1, "]": -1, "}": -1}


def _depth(text: str) -> int:
    brackets = _NOT_BRACKETS.sub("", _JSON_STRINGS.sub("", text))
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


_JSON_SPACES = re.compile(rf"({_JSON_STRING})|[ \t\n\r]+")


def compact_json(text: str) -> str:
    """Leave out the whitespace between the tokens of a document, and nothing else."""
    return _JSON_SPACES.sub(r"\1", text)


_READERS: Mapping[Kind, Reader] = {
    "bool": _read_bool,
    "int16": int,
    "int32": int,
    "int64": int,
    "uint32": int,
    "float32": _read_float4,
    "float64": float,
    "decimal": _read_text,
    "text": _read_text,
    "uuid": _read_text,
    "date": _read_date,
    "timestamp": _read_timestamp,
    "timestamptz": _read_timestamptz,
    "time": _read_text,
    "binary": _read_bytea,
    "json": _json_reader(-(1 << 63), (1 << 63) - 1),
}
_JSON_READERS: Mapping[Kind, Reader] = {
    **_READERS,
    "int64": _read_json_int64,
    "float32": _read_finite_float4,
    "float64": _read_finite_float,
    "binary": _always_text,
    "json": _json_reader(-MAX_JSON_INTEGER, MAX_JSON_INTEGER),
}


def read_array(text: str, element: Reader) -> Value:
    """Read an array's text into nested lists; custom lower bounds have no native form."""
    if not text.startswith("{"):
        return NO_NATIVE_FORM
    try:
        return _read_lists(text, element)
    except IndexError:
        raise ValueError(f"array text ends early: {text[:80]!r}") from None


def _read_lists(text: str, element: Reader) -> Value:
    root: list[Value] = []
    open_lists = [root]
    at = 1
    while open_lists:
        char = text[at]
        if char == "{":
            child: list[Value] = []
            open_lists[-1].append(child)
            open_lists.append(child)
            at += 1
        elif char == "}":
            open_lists.pop()
            at += 1
        elif char == ",":
            at += 1
        else:
            item, at = _read_item(text, at)
            value = None if item is None else element(item)
            if value is NO_NATIVE_FORM:
                return NO_NATIVE_FORM
            open_lists[-1].append(value)
    if at != len(text):
        raise ValueError(f"array text goes on after its end at {at}: {text[:80]!r}")
    return root


def _read_item(text: str, at: int) -> tuple[str | None, int]:
    """Give one element's text (None for NULL) and where it ends."""
    if text[at] != '"':
        end = at
        while text[end] not in ",}":
            end += 1
        raw = text[at:end]
        return (None if raw == "NULL" else raw), end
    parts: list[str] = []
    at += 1
    while (char := text[at]) != '"':
        at += char == "\\"
        parts.append(text[at])
        at += 1
    return "".join(parts), at + 1
