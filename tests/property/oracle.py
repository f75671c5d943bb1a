"""PostgreSQL as the judge of a value, and the way back from the wire that a consumer would write.

The judge's database has every setting that changes text output turned to something else, so a test
also fails where `SESSION_SETTINGS` forgets one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from schemas.types import CatalogType, ContractType, is_known, resolve_type
from schemas.values import SESSION_SETTINGS, Value

Connection = psycopg.Connection[tuple[Any, ...]]

ODD_DEFAULTS: dict[str, str] = {
    "DateStyle": "German, DMY",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-5",
    "bytea_output": "escape",
    "IntervalStyle": "sql_standard",
    "client_encoding": "UTF8",
    "quote_all_identifiers": "on",
}

MORE_TYPES: tuple[LiteralString, ...] = (
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION citext",
    "CREATE EXTENSION ltree",
    "CREATE EXTENSION cube",
    "CREATE TYPE mood AS ENUM ('sad', 'it''s, \"ok\"', 'NULL', '{}', '')",
    "CREATE TYPE pair AS (a text, b numeric)",
    "CREATE TYPE span AS RANGE (subtype = float8)",
    "CREATE DOMAIN price AS numeric(6,2)",
    "CREATE DOMAIN net_price AS price CHECK (VALUE >= 0)",
    "CREATE DOMAIN points AS int4[]",
    "CREATE DOMAIN document AS jsonb",
)

_TYPE = """
    SELECT t.oid::bigint, t.typname, t.typbasetype::bigint, t.typtypmod,
           coalesce(e.oid, 0)::bigint, t.typdelim::text
      FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
     WHERE t.oid = %s::bigint::oid
"""


def make_odd(connection: Connection) -> None:
    """Give a database the types to try, and settings that its next sessions must not keep."""
    for statement in MORE_TYPES:
        connection.execute(statement)
    for name, value in ODD_DEFAULTS.items():
        connection.execute(
            SQL("ALTER DATABASE {} SET {} = {}").format(
                Identifier(connection.info.dbname),
                Identifier(name),
                SQL(value if "," in value else f"'{value}'"),
            )
        )


class Oracle:
    """One session under `SESSION_SETTINGS`, asked in batches."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._types: dict[str, ContractType] = {}
        for name, value in SESSION_SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", [name, value])
        self._own = {
            name
            for (name,) in connection.execute(
                "SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace"
            )
        }

    def _named(self, type_name: str) -> str:
        """Name a type in full where it is ours: the pinned search path finds built-in ones only."""
        return f"public.{type_name}" if type_name.removesuffix("[]") in self._own else type_name

    def type_of(self, type_name: str) -> ContractType:
        """Resolve a type as a column has it: by OID, modifier and catalog."""
        if type_name not in self._types:
            self._connection.execute(SQL(f"CREATE TEMP TABLE probe (v {self._named(type_name)})"))
            oid, modifier = self._one(
                "SELECT atttypid::bigint, atttypmod FROM pg_attribute"
                " WHERE attrelid = 'probe'::regclass AND attname = 'v'"
            )
            self._connection.execute("DROP TABLE probe")
            self._types[type_name] = resolve_type(oid, modifier, self._catalog(oid))
        return self._types[type_name]

    def render(self, type_name: str, inputs: Sequence[str]) -> list[str]:
        """Give each input as PostgreSQL's output function writes it: what CDC and COPY carry."""
        cast = f"i::{self._named(type_name)}"
        query = f"SELECT {cast} FROM unnest(%s::text[]) WITH ORDINALITY u(i, n) ORDER BY n"
        try:
            result = self._connection.execute(SQL(query), [list(inputs)]).pgresult
        except psycopg.errors.FeatureNotSupported:
            # A server built without libxml has the type xml and no value of it.
            pytest.skip(f"this PostgreSQL is built without {type_name}")
        assert result is not None
        values = [result.get_value(row, 0) for row in range(result.ntuples)]
        return [value.decode() for value in values if value is not None]

    def written(self, table: str, column: str) -> dict[int, str]:
        """Give a column's values as PostgreSQL's output function writes them, by id."""
        query = f"SELECT id, {column} FROM public.{table} WHERE {column} IS NOT NULL ORDER BY id"
        result = self._connection.execute(SQL(query)).pgresult
        assert result is not None
        pairs = [(result.get_value(n, 0), result.get_value(n, 1)) for n in range(result.ntuples)]
        return {int(key or b""): (value or b"").decode() for key, value in pairs}

    def to_json(self, type_name: str, text: str) -> str:
        """Write an array of documents as one document, member by member as they are."""
        return str(self._one(f"SELECT to_json(%s::{self._named(type_name)})::text", [text])[0])

    def built_in_types(self) -> set[str]:
        """Name every built-in type that a column may have, arrays aside."""
        rows = self._connection.execute(
            "SELECT typname FROM pg_type t"
            " WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm')"
            " AND NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)"
        )
        return {str(name) for (name,) in rows}

    def _catalog(self, oid: int) -> dict[int, CatalogType]:
        if is_known(oid):
            return {}
        found = CatalogType(*self._one(_TYPE, [oid]))
        catalog = {oid: found}
        for part in (found.base_oid, found.element_oid):
            if part:
                catalog |= self._catalog(part)
        return catalog

    def _one(self, query: str, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
        row = self._connection.execute(SQL(query), parameters).fetchone()
        assert row is not None
        return row


def to_postgres(value: Value, column_type: ContractType) -> str:
    """Write a value of the wire as PostgreSQL's input."""
    if column_type.element is not None:
        return array_literal(value, lambda item: to_postgres(item, column_type.element or item))
    if column_type.kind == "json":
        return json.dumps(value, ensure_ascii=False)
    if column_type.kind == "float32":
        # A consumer keeps it as a float of 32 bits, so that is what comes back.
        return repr(struct.unpack("f", struct.pack("f", value))[0])
    match value:
        case bytes():
            return "\\x" + value.hex()
        case float():
            return repr(value)
    return str(value)


def array_literal(
    items: Sequence[Any], write: Callable[[Any], str] = str, delimiter: str = ","
) -> str:
    """Write nested lists as an array literal, every element quoted."""

    def one(item: Any) -> str:
        if item is None:
            return "NULL"
        if isinstance(item, list | tuple):
            return array_literal(item, write, delimiter)
        return '"' + write(item).replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + delimiter.join(one(item) for item in items) + "}"


def to_postgres_or_text(value: Value, travels_as_text: bool, column_type: ContractType) -> str:
    """Write a value of the wire as PostgreSQL's input, if it is not that already."""
    return value if travels_as_text else to_postgres(value, column_type)


def assert_same(oracle: Oracle, type_name: str, ours: Sequence[str], texts: Sequence[str]) -> None:
    """Let PostgreSQL say that what came back is what it wrote."""
    column_type = oracle.type_of(type_name)
    if (column_type.element or column_type).kind == "json":
        _assert_same_json(oracle, type_name, ours, texts)
    else:
        assert oracle.render(type_name, ours) == texts, type_name


def _assert_same_json(
    oracle: Oracle, type_name: str, ours: Sequence[str], texts: Sequence[str]
) -> None:
    """Compare documents token by token; whitespace between tokens is no part of the value."""
    if not _keeps_its_input(type_name):
        # jsonb writes each document in one way, and every digit of a number with it.
        assert oracle.render(type_name, ours) == texts, type_name
        return
    for our, text in zip(ours, texts, strict=True):
        if our != text:
            assert tokens(oracle.to_json(type_name, our)) == tokens(oracle.to_json(type_name, text))


def _keeps_its_input(type_name: str) -> bool:
    return type_name.removesuffix("[]") == "json"


def tokens(document: str) -> Any:
    """Read a document so that digits, the order of keys and duplicate keys all count."""
    return json.loads(
        document,
        parse_float=lambda digits: ("number", digits),
        parse_int=lambda digits: ("number", digits),
        object_pairs_hook=lambda pairs: ("object", pairs),
    )
