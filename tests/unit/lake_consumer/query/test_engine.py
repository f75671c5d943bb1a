from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from lake_consumer.errors import QueryFailed, UnknownTable
from lake_consumer.iceberg.names import LakeName
from lake_consumer.query.command import called_in_postgres, find
from lake_consumer.query.engine import Parts, Place, answer, read_name, table_names
from lake_consumer.reading.relations import ArrowRelation, Relation

NAMES = [
    LakeName("public", "users"),
    LakeName("public", "Odd"),
    LakeName("public__changes", "users"),
    LakeName("sales", "orders"),
    LakeName("_bridge", "cuts"),
]
USERS = pa.table({"id": [1, 2, 3], "name": ["Ann", "Bo", None]})


def ask(sql: str) -> list[dict[str, object]]:
    def open_table(_: Place) -> Relation:
        return ArrowRelation(ds.dataset(USERS))

    with answer(sql, lambda parts: find(parts, NAMES), open_table) as reader:
        rows: list[dict[str, object]] = reader.read_all().to_pylist()
    return rows


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("users", ("users",)),
        ("users AS u", ("users",)),
        ('lake."s.t"."AS" AS z', ("lake", "s.t", "AS")),
        ('"a ""b"" AS c"', ('a "b" AS c',)),
    ],
)
def test_names_come_apart_as_they_were_written(text: str, parts: Parts) -> None:
    """DuckDB gives one text with quotes and alias in it."""
    assert read_name(text) == parts


def test_only_tables_that_are_named_are_opened() -> None:
    """A common table expression is no table, and a table in a subquery is one."""
    with duckdb.connect() as connection:
        sql = "WITH users AS (FROM a) SELECT * FROM users u, s.b WHERE x IN (SELECT 1 FROM c)"

        assert table_names(connection, sql) == {("a",), ("s", "b"), ("c",)}


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        (("users",), ("public", "users")),
        (("USERS",), ("public", "users")),
        (("public", "users"), ("public", "users")),
        (("lake", "public", "users"), ("public", "users")),
        (("odd",), ("public", "Odd")),
        (("sales", "orders"), ("sales", "orders")),
        (("public__changes", "users"), ("public__changes", "users")),
        (("_bridge", "cuts"), ("_bridge", "cuts")),
    ],
)
def test_tables_are_found_as_postgresql_and_spark_call_them(parts: Parts, place: Place) -> None:
    """One query works in both places."""
    assert find(parts, NAMES) == place


def test_unquoted_names_fold_to_lower_case_first() -> None:
    """As in PostgreSQL; what is still ambiguous is never guessed."""
    names = [LakeName("public", name) for name in ("Odd", "odd", "Even", "EVEN")]

    assert find(("ODD",), names) == ("public", "odd")
    assert find(("Odd",), names) == ("public", "Odd")
    with pytest.raises(UnknownTable, match=r"even may be any of public\.Even, public\.EVEN"):
        find(("even",), names)


def test_columns_that_differ_in_case_alone_are_never_shown_for_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DuckDB shows the first of them whichever is named."""
    rows = ds.dataset(pa.table([[1], ["upper"], ["lower"]], names=["id", "Text", "text"]))

    def ask_rows(sql: str) -> list[dict[str, object]]:
        with answer(sql, lambda _: ("public", "t"), lambda _: ArrowRelation(rows)) as reader:
            found: list[dict[str, object]] = reader.read_all().to_pylist()
        return found

    assert ask_rows("FROM t") == [{"id": 1, "Text__2": "upper", "text__3": "lower"}]
    assert "public.t: columns that differ in case alone are Text__2, text__3" in (
        capsys.readouterr().err
    )
    assert ask_rows("SELECT text__3 AS v FROM t") == [{"v": "lower"}]
    with pytest.raises(QueryFailed, match="text__3"):
        ask_rows('SELECT "text" FROM t')


def test_tables_that_differ_in_case_alone_are_asked_for_one_at_a_time() -> None:
    names = [LakeName("public", "Odd"), LakeName("public", "odd")]
    rows = ArrowRelation(ds.dataset(USERS))

    with (
        pytest.raises(QueryFailed, match=r"public\.Odd and public\.odd differ"),
        answer('FROM "Odd", odd', lambda parts: find(parts, names), lambda _: rows),
    ):
        pass


@pytest.mark.parametrize(
    ("parts", "near"),
    [(("user",), "public.users"), (("orders",), "sales.orders"), (("public", "oders"), "sales")],
)
def test_an_unknown_table_comes_with_names_that_are_near(parts: Parts, near: str) -> None:
    """A wrong schema or a slip of a finger is what it mostly is."""
    with pytest.raises(UnknownTable, match=near):
        find(parts, NAMES)


@pytest.mark.parametrize("name", ["users", "public.users", "lake.public.users", '"users"'])
def test_sql_reads_a_table_under_each_of_its_names(name: str) -> None:
    """And gives what DuckDB makes of it."""
    assert ask(f"SELECT count(name) AS n, max(id) AS m FROM {name}") == [{"n": 2, "m": 3}]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "LINE 1: SELEC 1\n        ^"),
        ("SELECT nam FROM users", 'Candidate bindings: "name"'),
        ("DELETE FROM users", "DELETE is not a query"),
        ("CREATE TABLE t AS SELECT 1", "CREATE is not a query"),
        ("SET memory_limit = '1GB'", "SET is not a query"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("", "0 statements"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled by configuration"),
        ("INSTALL httpfs", "is not a query"),
        ("SELECT 1/'x'", "Could not convert string 'x'"),
    ],
)
def test_what_cannot_be_run_is_said_with_its_place(sql: str, words: str) -> None:
    """Reading is all that is possible: no file, no network, no extension, no second statement."""
    with pytest.raises(QueryFailed) as failure:
        ask(sql)

    assert words in str(failure.value)


def test_sql_cannot_write_a_file(tmp_path: Path) -> None:
    """`COPY` would put the lake's data anywhere."""
    with pytest.raises(QueryFailed, match="COPY is not a query"):
        ask(f"COPY users TO '{tmp_path / 'out.csv'}'")

    assert not list(tmp_path.iterdir())


def test_tables_of_reserved_schemas_are_known_by_their_name_in_postgresql() -> None:
    names = [LakeName("_bridge_", "mine"), LakeName("public__changes_", "t"), LakeName("a", "t")]
    own = [LakeName("_bridge", "cuts"), LakeName("public__changes", "t")]

    assert called_in_postgres([*names, *own]) == {
        LakeName("_bridge", "mine"): names[0],
        LakeName("public__changes", "t"): names[1],
    }
