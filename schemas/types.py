"""The type table: one row per PostgreSQL type whose value is more than its text.

A row says what the contract calls the type, which JSON Schema its value meets and which Spark type
holds it. A type without a row is `text`: PostgreSQL's own text is always exact. `ContractType` is a
row applied to a column: with precision and scale, or with an element.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

JsonSchema = dict[str, Any]
Kind = Literal[
    "bool", "int16", "int32", "int64", "uint32", "float32", "float64", "decimal", "text", "uuid",
    "date", "timestamp", "timestamptz", "time", "binary", "json", "list",
]  # fmt: skip

MAX_DECIMAL_PRECISION = 38
"""What Iceberg and Spark hold; a wider numeric stays text in the lake."""


@dataclass(frozen=True, slots=True)
class KindRow:
    """How one kind of value looks on the wire and in the lake."""

    json_schema: JsonSchema
    spark: str


_TEXT: JsonSchema = {"type": "string"}


def _integer(bits: int) -> JsonSchema:
    return {"type": "integer", "minimum": -(1 << bits - 1), "maximum": (1 << bits - 1) - 1}


def _pattern(whole: str) -> JsonSchema:
    return {"type": "string", "pattern": f"^({whole})$"}


_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MOMENT = _DAY + r"T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"

_INT64_RULE = "in JSON messages, integers beyond 2^53 are text"
_JSON_RULE = (
    "any JSON value in which every token comes back exactly: else text (a number that is not"
    " written in its shortest form, such as 2.50 or 1e2; an integer beyond 64 bits, in JSON"
    " messages beyond 2^53; duplicate keys; a lone surrogate; a top-level null; nesting deeper"
    " than 100). Whitespace between tokens and the way strings are escaped are not part of the"
    " value"
)

KINDS: Mapping[Kind, KindRow] = {
    "bool": KindRow({"type": "boolean"}, "boolean"),
    "int16": KindRow(_integer(16), "int"),
    "int32": KindRow(_integer(32), "int"),
    "int64": KindRow({"description": _INT64_RULE, **_integer(64)}, "bigint"),
    "uint32": KindRow({"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1}, "bigint"),
    "float32": KindRow({"type": "number"}, "float"),
    "float64": KindRow({"type": "number"}, "double"),
    "decimal": KindRow(_pattern(r"-?[0-9]+(\.[0-9]+)?|NaN|-?Infinity"), "string"),
    "text": KindRow(_TEXT, "string"),
    "uuid": KindRow({"type": "string", "format": "uuid"}, "string"),
    "date": KindRow({**_pattern(_DAY), "format": "date"}, "date"),
    "timestamp": KindRow(_pattern(_MOMENT), "timestamp_ntz"),
    "timestamptz": KindRow(_pattern(f"{_MOMENT}Z"), "timestamp"),
    "time": KindRow(_TEXT, "string"),
    "binary": KindRow({"description": "MessagePack bin"}, "binary"),
    "json": KindRow({"description": _JSON_RULE}, "string"),
    "list": KindRow({"type": "array"}, "array"),
}


@dataclass(frozen=True, slots=True)
class PgTypeRow:
    """A built-in PostgreSQL type whose OID never changes."""

    name: str
    oid: int
    array_oid: int
    kind: Kind


TYPES = (
    PgTypeRow("bool", 16, 1000, "bool"),
    PgTypeRow("bytea", 17, 1001, "binary"),
    PgTypeRow("char", 18, 1002, "text"),
    PgTypeRow("name", 19, 1003, "text"),
    PgTypeRow("int8", 20, 1016, "int64"),
    PgTypeRow("int2", 21, 1005, "int16"),
    PgTypeRow("int4", 23, 1007, "int32"),
    PgTypeRow("text", 25, 1009, "text"),
    PgTypeRow("oid", 26, 1028, "uint32"),
    PgTypeRow("json", 114, 199, "json"),
    PgTypeRow("xml", 142, 143, "text"),
    PgTypeRow("float4", 700, 1021, "float32"),
    PgTypeRow("float8", 701, 1022, "float64"),
    PgTypeRow("money", 790, 791, "text"),
    PgTypeRow("bpchar", 1042, 1014, "text"),
    PgTypeRow("varchar", 1043, 1015, "text"),
    PgTypeRow("date", 1082, 1182, "date"),
    PgTypeRow("time", 1083, 1183, "time"),
    PgTypeRow("timestamp", 1114, 1115, "timestamp"),
    PgTypeRow("timestamptz", 1184, 1185, "timestamptz"),
    PgTypeRow("interval", 1186, 1187, "text"),
    PgTypeRow("timetz", 1266, 1270, "text"),
    PgTypeRow("bit", 1560, 1561, "text"),
    PgTypeRow("varbit", 1562, 1563, "text"),
    PgTypeRow("numeric", 1700, 1231, "decimal"),
    PgTypeRow("uuid", 2950, 2951, "uuid"),
    PgTypeRow("jsonb", 3802, 3807, "json"),
    PgTypeRow("inet", 869, 1041, "text"),
    PgTypeRow("cidr", 650, 651, "text"),
    PgTypeRow("macaddr", 829, 1040, "text"),
    PgTypeRow("macaddr8", 774, 775, "text"),
)
_BY_OID = {row.oid: row for row in TYPES}
_BY_ARRAY_OID = {row.array_oid: row for row in TYPES}
_NUMERIC_OID = 1700


@dataclass(frozen=True, slots=True)
class ContractType:
    """A column's type in the contract's own words, such as `decimal(10,2)` or `list<int32>`."""

    kind: Kind
    precision: int | None = None
    scale: int | None = None
    element: ContractType | None = None

    def __str__(self) -> str:
        if self.element is not None:
            return f"list<{self.element}>"
        if self.precision is not None:
            return f"{self.kind}({self.precision},{self.scale})"
        return self.kind

    @property
    def spark(self) -> str:
        """The Spark type that holds every value with a native form."""
        if self.element is not None:
            return f"array<{self.element.spark}>"
        if self.precision is not None and self.scale is not None:
            return _spark_decimal(self.precision, self.scale)
        return KINDS[self.kind].spark

    @property
    def json_schema(self) -> JsonSchema:
        if self.element is None:
            return KINDS[self.kind].json_schema
        # PostgreSQL does not fix the number of dimensions: an element may itself be a list.
        return {"type": "array", "items": {"anyOf": [_nullable(self.element), {"type": "array"}]}}


TEXT = ContractType("text")


def _nullable(element: ContractType) -> JsonSchema:
    return {"anyOf": [element.json_schema, {"type": "null"}]}


def _spark_decimal(precision: int, scale: int) -> str:
    # A negative scale (numeric(3,-2)) rounds left of the point, so whole digits need more room.
    digits, places = (precision, scale) if scale >= 0 else (precision - scale, 0)
    digits = max(digits, places)
    return f"decimal({digits},{places})" if digits <= MAX_DECIMAL_PRECISION else "string"


_KIND_NAMES: dict[str, Kind] = {kind: kind for kind in KINDS if kind != "list"}
_PATTERN = re.compile(r"(?P<kind>[a-z0-9]+)(\((?P<precision>[0-9]+),(?P<scale>-?[0-9]+)\))?")


def parse_type(text: str) -> ContractType:
    """Read what `str(ContractType)` wrote."""
    if text.startswith("list<") and text.endswith(">"):
        return ContractType("list", element=parse_type(text[5:-1]))
    found = _PATTERN.fullmatch(text)
    kind = _KIND_NAMES.get(found["kind"]) if found else None
    if found is None or kind is None:
        raise ValueError(f"{text!r} is not a type of this contract")
    if found["precision"] is None:
        return ContractType(kind)
    if kind != "decimal":
        raise ValueError(f"{text!r} is not a type of this contract: only decimal has a precision")
    return ContractType(kind, int(found["precision"]), int(found["scale"]))


@dataclass(frozen=True, slots=True)
class CatalogType:
    """What `pg_type` says of a type that is not built in: enum, domain, composite, extension.

    `element_oid` is set for true arrays alone, whose element's `typarray` is this type. `typelem`
    does not tell: `line` has one too, and its text `{1,-1,0}` only looks like an array.
    """

    oid: int
    name: str
    base_oid: int = 0
    base_modifier: int = -1
    element_oid: int = 0
    delimiter: str = ","


def resolve_type(oid: int, modifier: int, catalog: Mapping[int, CatalogType]) -> ContractType:
    """Say which contract type a column has; whatever is unknown is text."""
    if row := _BY_OID.get(oid):
        return _apply(row, modifier)
    if row := _BY_ARRAY_OID.get(oid):
        return ContractType("list", element=_apply(row, modifier))
    found = catalog.get(oid)
    if found is None:
        return TEXT
    if found.base_oid:
        return resolve_type(found.base_oid, found.base_modifier, catalog)
    if found.element_oid and found.delimiter == ",":
        element = resolve_type(found.element_oid, modifier, catalog)
        # An array of a domain over an array nests two array texts; its own text is the exact form.
        return TEXT if element.kind == "list" else ContractType("list", element=element)
    return TEXT


def is_known(oid: int) -> bool:
    """Whether the table alone can resolve this OID, without asking the catalog."""
    return oid in _BY_OID or oid in _BY_ARRAY_OID


def _apply(row: PgTypeRow, modifier: int) -> ContractType:
    if row.oid != _NUMERIC_OID or modifier < 4:
        return ContractType(row.kind)
    packed = modifier - 4
    scale = packed & 0x7FF
    return ContractType("decimal", packed >> 16 & 0xFFFF, scale - 0x800 if scale & 0x400 else scale)
