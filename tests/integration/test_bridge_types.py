"""Values are exact, end to end: what a consumer gets is what the row in the table holds.

One table has a column of every type and an array of it; its rows are the values known to be hard.
Two bridges, one per format, publish it from a database whose settings are all odd. What comes out
of the stream is written back as PostgreSQL's input, and PostgreSQL compares it with the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Identifier

from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder
from schemas.shapes import TableShape
from schemas.values import Format
from tests.property.cases import CASES
from tests.property.oracle import (
    Oracle,
    array_literal,
    assert_same,
    make_odd,
    to_postgres_or_text,
)
from tests.support.rig import Rig, announced, changes_of

# Values of types that the property tests leave to hypothesis, and types whose value is their text.
MORE_VALUES: dict[str, tuple[str, ...]] = {
    "bool": ("t", "f"),
    "int2": ("-32768", "32767"),
    "int4": ("-2147483648", "2147483647"),
    "int8": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",),
    "text": ("".join(map(chr, range(1, 0xA1))), "x" * 100_000, "it''s {} %s $1"),
    "jsonb": ("[" + ",".join(f'{{"{n}": {n}}}' for n in range(5_000)) + "]",),
    "time(0)": ("23:59:59.9",),
    "timestamp(3)": ("2025-12-08 13:45:21.7197",),
    "bit(3)": ("101",),
    "varbit": ("", "1" * 200),
    "cidr": ("10.0.0.0/8", "2001:db8::/32"),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "mood": ("sad", 'it\'s, "ok"', "NULL", "{}", ""),
    "nummultirange": ("{}", "{[1,2),[3,4.50]}"),
    "ltree": ("a.b.c_1",),
    "hstore": ("", 'a=>NULL,"b c"=>"d\\"e,"'),
    "cube": ("(1,2),(3,4)",),
    "line": ("{1,-1,0}",),
    "box": ("(1,2),(3,4)",),
    "polygon": ("((0,0),(1,1),(1,0))",),
    "tsvector": ("'it''s':1A,2 b:3", "'a,b' '{}'"),
    "pg_lsn": ("16/B374D848",),
    "int2vector": ("", "1 2 3"),
    "oidvector": ("1 2 3",),
    "regclass": ("pg_class", "everything"),
    "xid8": ("18446744073709551615",),
    "jsonpath": ('$."a"[*] ? (@ > 1)',),
    "aclitem": ("=r/postgres",),
    "cid": ("7",),
    "tid": ("(1,2)",),
    "xid": ("4294967295",),
    "pg_snapshot": ("10:20:10,14",),
    "txid_snapshot": ("10:20:10,14",),
    "refcursor": ("c, d",),
    "regproc": ("now", "odd_function"),
    "regprocedure": ("now()",),
    "regoper": ("||/",),
    "regoperator": ("+(integer,integer)",),
    "regtype": ("integer", "mood"),
    "regrole": ("postgres",),
    "regnamespace": ("public",),
    "regconfig": ("english",),
    "regdictionary": ("simple",),
    "regcollation": ('"C"',),
    "tsquery": ("'a' & !'b,c'",),
    "circle": ("<(1,2),3>",),
    "lseg": ("[(1,2),(3,4)]",),
    "path": ("((1,2),(3,4))", "[(1,2),(3,4)]"),
    "int8range": ("[1,9223372036854775807)",),
    "numrange": ("(,1.50]",),
    "daterange": ("[2025-12-08,infinity)",),
    "tstzrange": ('["2025-12-08 13:45+05:45",)',),
    "int4multirange": ("{[1,2),[5,)}",),
    "int8multirange": ("{}",),
    "tsmultirange": ("{[2025-12-08,)}",),
    "tstzmultirange": ("{(,2025-12-08)}",),
    "datemultirange": ("{(,)}",),
}
WITHOUT_INPUT = {
    *("gtsvector", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list"),
    *("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"),
    "xml",  # needs a server that is built with libxml
}
VALUES: dict[str, tuple[str, ...]] = {
    name: (*(CASES[name].edges if name in CASES else ()), *MORE_VALUES.get(name, ()))
    for name in sorted({*CASES, *MORE_VALUES} - WITHOUT_INPUT)
}


def _arrays(name: str) -> tuple[str, ...]:
    """None at all, alone, with NULL, nested, and with bounds of its own."""
    delimiter = CASES[name].delimiter if name in CASES else ","
    # A value of 100 kB once in a row is enough.
    items: list[str | None] = [*(v for v in VALUES[name] if len(v) < 10_000), None]

    def array(members: Sequence[Any]) -> str:
        return array_literal(members, delimiter=delimiter)

    return (
        "{}",
        "{NULL}",
        array(items),
        array([[[item] for item in items]]),
        f"[-1:{len(items) - 2}]={array(items)}",
        *(array([item, None]) for item in items),
    )


COLUMNS = {**VALUES, **{f"{name}[]": _arrays(name) for name in VALUES}}
"""Every column's type with its values, one per row."""

MOVED_BY = 100_000

NAMES = {type_name: f"c{number}" for number, type_name in enumerate(COLUMNS)}


BOTH: tuple[Format, ...] = ("msgpack", "json")

IS_TEXT = {"text", "decimal", "uuid", "time"}
"""Kinds whose value is PostgreSQL's own text, letter by letter."""


@dataclass(frozen=True)
class Published:
    """The table as PostgreSQL has it, and the changes each format carries of it."""

    oracle: Oracle
    rows: list[dict[str, str | None]]
    """Each row as PostgreSQL writes it under the pinned settings."""

    shapes: dict[Format, TableShape]
    changes: dict[Format, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def published(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Published]:
    database = postgres.create_database("every_type")
    with ExitStack() as stack:
        with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
            make_odd(connection)
            connection.execute("CREATE FUNCTION odd_function() RETURNS int RETURN 1")
        connection = stack.enter_context(psycopg.connect(postgres.dsn(database), autocommit=True))
        _make_table(connection)
        folder, logs = stack.enter_context(temporary_folder()), tmp_path_factory.mktemp("types")
        rigs: dict[Format, Rig] = {}
        for wire in BOTH:
            server = stack.enter_context(EmbeddedNats(folder / wire))
            flags = ("--json",) if wire == "json" else ()
            rig = Rig(connection, postgres, server, logs, *flags, name=wire)
            rigs[wire] = stack.enter_context(rig)
            rig.start()
        _write_rows(connection)
        stored = {wire: rig.stream() for wire, rig in rigs.items()}
        judge = stack.enter_context(psycopg.connect(postgres.dsn(database), autocommit=True))
        oracle = Oracle(judge)
        yield Published(
            oracle,
            _read_rows(judge),
            {wire: announced(found, "everything")[0] for wire, found in stored.items()},
            {wire: changes_of(found, "everything") for wire, found in stored.items()},
        )
    postgres.drop_database(database)


def _make_table(connection: psycopg.Connection[Any]) -> None:
    columns = ", ".join(f"{NAMES[type_name]} {type_name}" for type_name in COLUMNS)
    connection.execute(SQL(f"CREATE TABLE everything (id int PRIMARY KEY, {columns})"))
    connection.execute("ALTER TABLE everything REPLICA IDENTITY FULL")
    connection.execute("CREATE PUBLICATION pub FOR TABLE everything")


def _write_rows(connection: psycopg.Connection[Any]) -> None:
    """Write NULLs alone, values beside each other, each value alone, and then move all rows.

    One value without native form sends its whole row the long way; alone, others go the short one.
    """
    beside = [
        {t: v for t, v in zip(COLUMNS, row, strict=True) if v is not None}
        for row in zip_longest(*COLUMNS.values())
    ]
    alone = [{name: value} for name, values in COLUMNS.items() for value in values]
    with connection.transaction():
        for number, values in enumerate([{}, *beside, *alone]):
            connection.execute(_insert(values), [number, *values.values()])
    connection.execute("UPDATE everything SET id = id + %s", [MOVED_BY])


def _insert(values: dict[str, str]) -> Composed:
    names = [Identifier("id"), *(Identifier(NAMES[type_name]) for type_name in values)]
    casts = [SQL("%s"), *(SQL("%s::text::{}").format(SQL(name)) for name in values)]
    return SQL("INSERT INTO everything ({}) VALUES ({})").format(
        SQL(", ").join(names), SQL(", ").join(casts)
    )


def _read_rows(connection: psycopg.Connection[Any]) -> list[dict[str, str | None]]:
    result = connection.execute("SELECT * FROM public.everything ORDER BY id").pgresult
    assert result is not None
    names = [result.fname(column) or b"" for column in range(result.nfields)]
    return [
        {
            name.decode(): None if (value := result.get_value(row, column)) is None
            else value.decode()
            for column, name in enumerate(names)
        }
        for row in range(result.ntuples)
    ]  # fmt: skip


def test_every_built_in_type_is_tried(published: Published) -> None:
    """A type that a newer PostgreSQL adds is tried before anybody relies on it."""
    built_in = published.oracle.built_in_types()

    tried = {name.strip('"').partition("(")[0] for name in VALUES}
    assert built_in - WITHOUT_INPUT - tried == set()
    assert [name for name, values in VALUES.items() if not values] == []


def test_every_type_resolves_as_the_catalog_says(published: Published) -> None:
    """The same type by snapshot, by CDC and in the lake."""
    expected = {NAMES[name]: str(published.oracle.type_of(name)) for name in COLUMNS}

    for shape in published.shapes.values():
        assert {c.name: str(c.type) for c in shape.columns if c.name != "id"} == expected


@pytest.mark.parametrize("format", BOTH)
@pytest.mark.parametrize("image", ["inserted", "old", "moved"])
def test_every_value_comes_back_as_the_row_holds_it(
    published: Published, format: Format, image: str
) -> None:
    """Under odd defaults of the database, so the session's settings are pinned or this fails."""
    changes = published.changes[format]
    operation = "INSERT" if image == "inserted" else "UPDATE"
    chosen = [change for change in changes if change["operation"] == operation]
    field = "old" if image == "old" else "data"
    by_id = {change[field]["id"] % MOVED_BY: change for change in chosen}
    assert len(by_id) == len(chosen) == len(published.rows)

    got = [by_id[number] for number in range(len(published.rows))]
    for type_name, column in NAMES.items():
        kind = published.oracle.type_of(type_name)
        ours, texts = [], []
        for change, row in zip(got, published.rows, strict=True):
            value, text, odd = change[field][column], row[column], column in change.get("text", ())
            assert (value is None) == (text is None), type_name
            if text is not None:
                if odd or kind.kind in IS_TEXT:
                    assert value == text, type_name
                ours.append(to_postgres_or_text(value, odd, kind))
                texts.append(text)
        assert_same(published.oracle, type_name, ours, texts)


@pytest.mark.parametrize("format", BOTH)
def test_null_is_not_the_empty_string(published: Published, format: Format) -> None:
    """Nor an empty array, nor a JSON null."""
    changes = {change["data"]["id"]: change for change in published.changes[format]}
    empty = VALUES["text"].index("") + 1
    json_null = VALUES["jsonb"].index("null") + 1

    assert set(changes[0]["data"].values()) == {0, None}
    assert changes[empty]["data"][NAMES["text"]] == ""
    assert changes[1]["data"][NAMES["text[]"]] == []
    assert changes[json_null]["data"][NAMES["jsonb"]] == "null"
    assert NAMES["jsonb"] in changes[json_null]["text"]


@pytest.mark.parametrize("format", BOTH)
def test_names_of_the_database_are_written_in_full(published: Published, format: Format) -> None:
    """What regclass and its kin show must not depend on anybody's search path."""
    values = [change["data"][NAMES["regclass"]] for change in published.changes[format]]

    assert {value for value in values if value} == {"pg_class", "public.everything"}
