"""Golden bodies: the exact bytes of one event of each sort, in both formats.

`python -m tests.contract.golden` writes them anew. Do that only for a change of the contract that
is meant: readers of the old form exist, and the stream holds messages of both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from schemas.codecs import CODECS
from schemas.events import Change, Event, Row
from schemas.types import TYPES, resolve_type
from schemas.values import NO_NATIVE_FORM, Format, reader_for
from tests.unit.schemas.samples import (
    CHANGES,
    DDL_MESSAGE,
    FORK_MESSAGE,
    INSERT,
    LONE_MESSAGE,
    MESSAGE,
    REWRITTEN,
    SHAPE_CHANGE,
)

FOLDER = Path(__file__).parent / "golden"
ENDINGS: dict[Format, str] = {"msgpack": "msgpack.hex", "json": "json"}

# A text as PostgreSQL renders it for each type of the table, and texts without a native form.
TEXTS = {
    "bool": "t",
    "bytea": "\\x00ff",
    "char": "",
    "name": "pg_class",
    "int8": "-9223372036854775808",
    "int2": "-32768",
    "int4": "2147483647",
    "text": "naïve \U0001f418\n\\N",
    "oid": "4294967295",
    "json": '{"b": 1.5, "a": [true, null, "\\u00e9"]}',
    "xml": "<a>&lt;</a>",
    "float4": "0.1",
    "float8": "-0",
    "money": "-$1,234.56",
    "bpchar": "ab   ",
    "varchar": "",
    "date": "2025-12-08",
    "time": "24:00:00",
    "timestamp": "2025-12-08 13:45:21.719719",
    "timestamptz": "2025-12-08 13:45:21+00",
    "interval": "1 year 2 mons -3 days +04:05:06.789",
    "timetz": "13:45:21+02",
    "bit": "101",
    "varbit": "",
    "numeric": "12345678901234567890.10",
    "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "jsonb": '"scalar"',
    "inet": "10.0.0.1/8",
    "cidr": "10.0.0.0/8",
    "macaddr": "08:00:2b:01:02:03",
    "macaddr8": "08:00:2b:01:02:03:04:05",
}
WITHOUT_NATIVE_FORM = {
    "date": "infinity",
    "timestamp": "0044-03-15 00:00:00 BC",
    "timestamptz": "10000-01-01 00:00:00+00",
    "json": '{"a": 1, "a": 2}',
    "jsonb": '{"id": 9007199254740993, "price": 2.50}',
}
ARRAYS = {
    "int4": "{{1,2},{3,NULL}}",
    "text": '{"",NULL,"NULL","a,\\"b\\"","c\\\\d"}',
    "numeric": "{}",
    "bool": "[0:1]={t,f}",
}


def every_type(format: Format) -> Change:
    """One row with a column of every type, read by the value rule."""
    oids = {row.name: (row.oid, row.array_oid) for row in TYPES}
    texts = [
        *((f"{name}_", oids[name][0], text) for name, text in TEXTS.items()),
        *((f"odd_{name}", oids[name][0], text) for name, text in WITHOUT_NATIVE_FORM.items()),
        *((f"{name}s", oids[name][1], text) for name, text in ARRAYS.items()),
    ]
    data: Row = {"nothing": None}
    as_text: list[str] = []
    for column, oid, text in texts:
        value = reader_for(resolve_type(oid, -1, {}), format)(text)
        if value is NO_NATIVE_FORM:
            as_text.append(column)
            value = text
        data[column] = value
    return replace(INSERT, data=data, text=tuple(as_text))


def events(format: Format) -> dict[str, Event]:
    """Give one event of each sort by the name of its golden file."""
    return {
        **CHANGES,
        "every_type": every_type(format),
        "schema": SHAPE_CHANGE,
        "schema_rewritten": REWRITTEN,
        "ddl_message": DDL_MESSAGE,
        "fork_message": FORK_MESSAGE,
        "message": MESSAGE,
        "lone_message": LONE_MESSAGE,
    }


def body(event: Event, format: Format) -> bytes:
    return CODECS[format].encode(event.to_map())


def path_of(name: str, format: Format) -> Path:
    return FOLDER / f"{name}.{ENDINGS[format]}"


def as_file(encoded: bytes, format: Format) -> bytes:
    """Give the file of a body: JSON as it is, MessagePack as hex, 32 bytes to a line."""
    if format == "json":
        return encoded + b"\n"
    lines = [encoded[at : at + 32].hex() for at in range(0, len(encoded), 32)]
    return "\n".join([*lines, ""]).encode()


def read_golden(name: str, format: Format) -> bytes:
    """Give the body that a golden file holds."""
    content = path_of(name, format).read_bytes()
    return content.removesuffix(b"\n") if format == "json" else bytes.fromhex(content.decode())


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for stale in FOLDER.iterdir():
        stale.unlink()
    for form in ENDINGS:
        for name, event in events(form).items():
            path_of(name, form).write_bytes(as_file(body(event, form), form))


if __name__ == "__main__":
    main()
