"""DDL statements, each on a table of its own, and what must become of the table's mirror.

| Expected | The mirror |
|---|---|
| equal    | follows without a snapshot |
| reloads  | waits for a snapshot, visibly, and is equal when it is loaded |
| either   | one of the two: a false alarm costs a snapshot, and is not wrong |
| no key   | is parked: only the change log is kept |
| gone     | is not compared: PostgreSQL has the table no more, or under another name |

`create` runs before the bridge starts, `rows` through the stream, `statements` while a writer
changes the rows 1 and 2 and those from 100 on. All other rows are changed by the statements alone.
Each case has a schema of its own, which is the search path; `{schema}` names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

Expected = Literal["equal", "reloads", "either", "no key", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table."""

    id: str
    expected: Expected
    create: tuple[str, ...]
    rows: tuple[str, ...]
    statements: tuple[str, ...]
    """Each in a transaction of its own, unless it brings BEGIN and COMMIT along."""
    table: str = "t"
    published: tuple[str, ...] = ("t",)

    @property
    def is_compared(self) -> bool:
        return self.expected not in ("gone", "no key")


CREATE = ("CREATE TABLE t (id int PRIMARY KEY, n int, v text)",)
ROWS = ("INSERT INTO t SELECT g, g * 10, 'v' || g FROM generate_series(1, 8) g",)


def case(
    id: str,
    expected: Expected,
    *statements: str,
    create: Iterable[str] = CREATE,
    rows: Iterable[str] = ROWS,
    table: str = "t",
    published: Iterable[str] = ("t",),
) -> Case:
    return Case(
        id=id,
        expected=expected,
        create=tuple(create),
        rows=tuple(rows),
        statements=statements,
        table=table,
        published=tuple(published),
    )


def _slug(text: str) -> str:
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return "_".join(words)[:40]


# ADD COLUMN -------------------------------------------------------------------------------------

_CONSTANTS: tuple[tuple[str, str, Expected], ...] = (
    ("bool", "true", "equal"),
    ("smallint", "-7", "equal"),
    ("int", "5", "equal"),
    ("bigint", "9007199254740993", "either"),
    ("real", "0.1", "equal"),
    ("float8", "-1e-300", "equal"),
    ("float8", "'NaN'", "reloads"),
    ("float8", "'Infinity'", "reloads"),
    ("numeric", "1.50", "equal"),
    ("numeric(10, 2)", "1.5", "equal"),
    ("numeric(10, 2)", "'NaN'", "reloads"),
    ("money", "12.34", "equal"),
    ("text", "'it''s'", "equal"),
    ("text", "''", "equal"),
    ("text", "repeat('long ', 2000)", "equal"),
    ("varchar(5)", "'abc'", "equal"),
    ("char(5)", "'ab'", "equal"),
    ("name", "'n'", "equal"),
    ("date", "'2020-02-29'", "equal"),
    ("date", "'infinity'", "reloads"),
    ("date", "'0044-03-15 BC'", "reloads"),
    ("time", "'12:34:56.789'", "equal"),
    ("timetz", "'12:34:56+02'", "equal"),
    ("timestamp", "'2020-02-29 12:34:56.789012'", "equal"),
    ("timestamptz", "'2020-02-29 12:34:56.789012+02'", "equal"),
    ("timestamptz", "'-infinity'", "reloads"),
    ("timestamptz(0)", "'2020-02-29 12:34:56+00'", "equal"),
    ("interval", "'1 day 2 hours'", "equal"),
    ("uuid", "'f81d4fae-7dec-11d0-a765-00a0c91e6bf6'", "equal"),
    ("bytea", r"'\x00ff'", "either"),
    ("json", '\'{"b": 1, "a": [2, null]}\'', "either"),
    ("jsonb", '\'{"b": 1, "a": [2, null]}\'', "either"),
    ("jsonb", "'2.50'", "either"),
    ("inet", "'10.0.0.1/8'", "equal"),
    ("macaddr", "'08:00:2b:01:02:03'", "equal"),
    ("bit(4)", "B'1010'", "equal"),
    ("int4range", "'[1,5)'", "equal"),
    ("point", "'(1,2)'", "equal"),
    ("tsvector", "'a b'", "equal"),
    ("int[]", "'{1,2,NULL}'", "reloads"),
    ("text[]", "'{}'", "reloads"),
    ("oid", "42", "equal"),
)

_ADDED = [
    case(f"add_{_slug(kind)}_{_slug(value) or 'empty'}", expected,
         f"ALTER TABLE t ADD c {kind} DEFAULT {value}")
    for kind, value, expected in _CONSTANTS
]  # fmt: skip

_ADDED_NULL = [
    case(f"add_{_slug(kind)}_null", "equal", f"ALTER TABLE t ADD c {kind}")
    for kind in ("int", "text", "numeric(8, 3)", "timestamptz", "jsonb", "int[]", "uuid", "bytea")
]

_ADDED_OTHERWISE = [
    case("add_not_null_default", "equal", "ALTER TABLE t ADD c int NOT NULL DEFAULT 5"),
    case("add_default_then_drop_default", "equal",
         "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT; COMMIT"),
    case("add_default_then_drop_default_apart", "equal",
         "ALTER TABLE t ADD c int DEFAULT 5", "ALTER TABLE t ALTER c DROP DEFAULT"),
    case("add_default_then_other_default", "equal",
         "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c SET DEFAULT 6; COMMIT"),
    case("add_default_null", "equal", "ALTER TABLE t ADD c int DEFAULT NULL"),
    case("add_then_set_default", "equal",
         "ALTER TABLE t ADD c int", "ALTER TABLE t ALTER c SET DEFAULT 9"),
    case("add_two_at_once", "equal",
         "ALTER TABLE t ADD c int DEFAULT 5, ADD d text DEFAULT 'x'"),
    case("add_constant_expression", "equal", "ALTER TABLE t ADD c int DEFAULT 2 + 3"),
    case("add_now", "either", "ALTER TABLE t ADD c timestamptz DEFAULT now()"),
    case("add_current_date", "either", "ALTER TABLE t ADD c date DEFAULT current_date"),
    case("add_clock_timestamp", "reloads",
         "ALTER TABLE t ADD c timestamptz DEFAULT clock_timestamp()"),
    case("add_random", "reloads", "ALTER TABLE t ADD c float8 DEFAULT random()"),
    case("add_random_uuid", "reloads", "ALTER TABLE t ADD c uuid DEFAULT gen_random_uuid()"),
    case("add_random_then_drop_default", "reloads",
         "BEGIN; ALTER TABLE t ADD c float8 DEFAULT random(); ALTER TABLE t ALTER c DROP DEFAULT;"
         " COMMIT"),
    case("add_serial", "reloads", "ALTER TABLE t ADD c serial"),
    case("add_bigserial_not_null", "reloads", "ALTER TABLE t ADD c bigserial NOT NULL"),
    case("add_identity_always", "reloads",
         "ALTER TABLE t ADD c int GENERATED ALWAYS AS IDENTITY"),
    case("add_identity_by_default", "reloads",
         "ALTER TABLE t ADD c bigint GENERATED BY DEFAULT AS IDENTITY (START 100)"),
    case("add_nextval", "reloads",
         "CREATE SEQUENCE s", "ALTER TABLE t ADD c int DEFAULT nextval('s')"),
    case("add_generated_stored", "either",
         "ALTER TABLE t ADD c int GENERATED ALWAYS AS (id * 2) STORED"),
    case("add_generated_virtual", "either",
         "ALTER TABLE t ADD c int GENERATED ALWAYS AS (id * 2) VIRTUAL"),
    case("add_domain", "either", "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
         "ALTER TABLE t ADD c positive"),
    case("add_domain_default", "either", "CREATE DOMAIN five AS int DEFAULT 5",
         "ALTER TABLE t ADD c five"),
    case("add_domain_default_not_null", "either", "CREATE DOMAIN five AS int DEFAULT 5 NOT NULL",
         "ALTER TABLE t ADD c five"),
    case("add_domain_own_default", "either", "CREATE DOMAIN five AS int DEFAULT 5",
         "ALTER TABLE t ADD c five DEFAULT 6"),
    case("add_domain_volatile_default", "reloads",
         "CREATE DOMAIN chance AS float8 DEFAULT random()", "ALTER TABLE t ADD c chance"),
    case("add_enum", "equal", "CREATE TYPE mood AS ENUM ('sad', 'ok')",
         "ALTER TABLE t ADD c mood DEFAULT 'ok'"),
    case("add_enum_array", "either", "CREATE TYPE mood AS ENUM ('sad', 'ok')",
         "ALTER TABLE t ADD c mood[] DEFAULT '{ok,sad}'"),
    case("add_composite", "equal", "CREATE TYPE pair AS (a int, b text)",
         "ALTER TABLE t ADD c pair DEFAULT '(1,x)'"),
    case("add_check", "equal", "ALTER TABLE t ADD c int DEFAULT 5 CHECK (c > 0)"),
    case("add_unique", "either", "ALTER TABLE t ADD c int UNIQUE"),
    case("add_references", "equal", "CREATE TABLE r (id int PRIMARY KEY)",
         "INSERT INTO r VALUES (5)", "ALTER TABLE t ADD c int REFERENCES r DEFAULT 5"),
    case("add_if_not_exists", "equal", "ALTER TABLE t ADD IF NOT EXISTS v text DEFAULT 'no'"),
    case("add_quoted_name", "equal", "ALTER TABLE t ADD \"C d.é\" int DEFAULT 5"),
    case("add_named_like_ours", "equal", "ALTER TABLE t ADD stream_seq int DEFAULT 5"),
    case("add_two_steps_with_update", "either", "ALTER TABLE t ADD c int DEFAULT 5",
         "UPDATE t SET c = 6 WHERE id = 3", "ALTER TABLE t ADD d int DEFAULT 7",
         "UPDATE t SET d = 8 WHERE id = 4"),
    case("add_between_changes_of_one_transaction", "equal",
         "BEGIN; UPDATE t SET v = 'a' WHERE id = 3; INSERT INTO t VALUES (50, 1, 'before');"
         " ALTER TABLE t ADD c int DEFAULT 5; UPDATE t SET c = 6 WHERE id = 4;"
         " INSERT INTO t VALUES (51, 1, 'after'); COMMIT"),
    case("add_drop_add_same_name", "equal", "ALTER TABLE t ADD c int DEFAULT 5",
         "ALTER TABLE t DROP c", "ALTER TABLE t ADD c int DEFAULT 6"),
    case("add_drop_add_other_type", "equal", "ALTER TABLE t ADD c int DEFAULT 5",
         "ALTER TABLE t DROP c", "ALTER TABLE t ADD c text DEFAULT 'six'"),
    case("add_drop_add_in_one", "equal",
         "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t DROP c;"
         " ALTER TABLE t ADD c text DEFAULT 'six'; COMMIT"),
    case("add_then_type", "either", "ALTER TABLE t ADD c int DEFAULT 5",
         "ALTER TABLE t ALTER c TYPE bigint"),
    case("add_then_type_using", "reloads", "ALTER TABLE t ADD c int DEFAULT 5",
         "ALTER TABLE t ALTER c TYPE bigint USING c * 10"),
    case("add_then_rewrite", "either", "ALTER TABLE t ADD c int DEFAULT 5", "VACUUM FULL t"),
    case("add_then_default_rewrite", "either", "ALTER TABLE t ADD c int DEFAULT 5",
         "ALTER TABLE t ALTER c SET DEFAULT 6", "VACUUM FULL t",
         "ALTER TABLE t ADD d int DEFAULT 7"),
    case("add_and_rename", "equal", "ALTER TABLE t ADD c int DEFAULT 5",
         "ALTER TABLE t RENAME c TO d"),
    case("add_and_truncate", "either", "ALTER TABLE t ADD c int DEFAULT 5", "TRUNCATE t",
         "INSERT INTO t VALUES (3, 1, 'x')"),
]  # fmt: skip

# Columns that go, get other names, other defaults and other constraints ---------------------------

_COLUMNS = [
    case("drop", "equal", "ALTER TABLE t DROP v"),
    case("drop_two", "equal", "ALTER TABLE t DROP v, DROP n"),
    case("drop_cascade", "equal", "CREATE VIEW seen AS SELECT v FROM t",
         "ALTER TABLE t DROP v CASCADE"),
    case("drop_readd", "equal", "ALTER TABLE t DROP v", "ALTER TABLE t ADD v text"),
    case("drop_readd_default", "equal", "ALTER TABLE t DROP v",
         "ALTER TABLE t ADD v text DEFAULT 'again'"),
    case("drop_readd_in_one", "equal", "ALTER TABLE t DROP v, ADD v text DEFAULT 'again'"),
    case("drop_readd_other_type", "equal", "ALTER TABLE t DROP v", "ALTER TABLE t ADD v int"),
    case("rename", "equal", "ALTER TABLE t RENAME v TO title"),
    case("rename_back", "equal", "ALTER TABLE t RENAME v TO title",
         "ALTER TABLE t RENAME title TO v"),
    case("rename_swap", "equal",
         "BEGIN; ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME n TO v;"
         " ALTER TABLE t RENAME x TO n; COMMIT"),
    case("rename_key", "equal", "ALTER TABLE t RENAME id TO key",
         "INSERT INTO t (key) VALUES (60)"),
    case("rename_and_add_old_name", "equal", "ALTER TABLE t RENAME v TO title",
         "ALTER TABLE t ADD v int DEFAULT 5"),
    case("rename_upper", "equal", "ALTER TABLE t RENAME v TO \"V\""),
    case("set_default", "equal", "ALTER TABLE t ALTER n SET DEFAULT 7",
         "INSERT INTO t (id) VALUES (61)"),
    case("drop_default", "equal", "ALTER TABLE t ALTER n SET DEFAULT 7",
         "ALTER TABLE t ALTER n DROP DEFAULT"),
    case("set_not_null", "equal", "ALTER TABLE t ALTER n SET NOT NULL",
         create=("CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0, v text)",)),
    case("set_drop_not_null", "equal", "ALTER TABLE t ALTER id SET NOT NULL",
         "ALTER TABLE t ADD m int DEFAULT 3", "ALTER TABLE t ALTER m SET NOT NULL",
         "ALTER TABLE t ALTER m DROP NOT NULL"),
    case("set_statistics", "equal", "ALTER TABLE t ALTER v SET STATISTICS 500"),
    case("set_storage", "equal", "ALTER TABLE t ALTER v SET STORAGE EXTERNAL"),
    case("set_compression", "equal", "ALTER TABLE t ALTER v SET COMPRESSION pglz"),
    case("set_options", "equal", "ALTER TABLE t ALTER n SET (n_distinct = 5)"),
    case("comment", "equal", "COMMENT ON COLUMN t.v IS 'a comment'"),
    case("identity_on_existing", "equal", "ALTER TABLE t ALTER id SET NOT NULL",
         "ALTER TABLE t ALTER id ADD GENERATED BY DEFAULT AS IDENTITY"),
    case("drop_expression", "either", "ALTER TABLE t ALTER g DROP EXPRESSION",
         create=("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)",),
         rows=("INSERT INTO t SELECT x FROM generate_series(1, 8) x",)),
    case("set_expression", "either", "ALTER TABLE t ALTER g SET EXPRESSION AS (id * 3)",
         create=("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)",),
         rows=("INSERT INTO t SELECT x FROM generate_series(1, 8) x",)),
]  # fmt: skip

# ALTER TYPE -------------------------------------------------------------------------------------

_TYPES: tuple[tuple[str, str, str, str, Expected], ...] = (
    # from, value, to, USING, expected
    ("int", "g", "bigint", "", "either"),
    ("int", "g", "bigint", "c * 10", "reloads"),
    ("int", "g", "smallint", "", "reloads"),
    ("int", "g", "int", "c + 1", "reloads"),
    ("int", "g", "numeric", "", "reloads"),
    ("int", "g", "float8", "", "reloads"),
    ("int", "g", "text", "", "reloads"),
    ("int", "g", "text", "'n' || c", "reloads"),
    ("int", "g", "bool", "c > 3", "reloads"),
    ("int", "g", "int[]", "ARRAY[c]", "reloads"),
    ("bigint", "g", "int", "", "reloads"),
    ("bigint", "g", "oid", "c::oid", "reloads"),
    ("smallint", "g", "int", "", "either"),
    ("real", "g / 7.0", "float8", "", "reloads"),
    ("float8", "g / 7.0", "real", "", "reloads"),
    ("float8", "g / 7.0", "numeric(10, 2)", "", "reloads"),
    ("numeric", "g / 7.0", "numeric(10, 2)", "", "reloads"),
    ("numeric(10, 2)", "g / 7.0", "numeric(12, 2)", "", "either"),
    ("numeric(10, 2)", "g / 7.0", "numeric(12, 4)", "", "reloads"),
    ("numeric(10, 4)", "g / 7.0", "numeric(10, 2)", "", "reloads"),
    ("numeric(10, 2)", "g / 7.0", "numeric", "", "reloads"),
    ("numeric(10, 2)", "g", "int", "", "reloads"),
    ("text", "'v' || g", "varchar(10)", "", "either"),
    ("text", "'value' || g", "varchar(3)", "left(c, 3)", "reloads"),
    ("text", "'v' || g", "text", "upper(c)", "reloads"),
    ("text", "g::text", "int", "c::int", "reloads"),
    ("text", "g::text", "jsonb", "to_jsonb(c)", "reloads"),
    ("text", "'2020-01-0' || g", "date", "c::date", "reloads"),
    ("text", "'a'", "bytea", "c::bytea", "reloads"),
    ("varchar(10)", "'v' || g", "varchar(20)", "", "either"),
    ("varchar(10)", "'v' || g", "varchar(5)", "", "either"),
    ("varchar(10)", "'v' || g", "text", "", "either"),
    ("varchar(10)", "'v' || g", "char(10)", "", "reloads"),
    ("char(5)", "'v' || g", "text", "", "reloads"),
    ("char(5)", "'v' || g", "char(8)", "", "reloads"),
    ("char(5)", "'v' || g", "varchar(5)", "", "reloads"),
    ("inet", "'10.0.0.1'::inet + g", "text", "", "reloads"),
    ("cidr", "'10.0.0.0/8'", "inet", "", "either"),
    ("date", "date '2020-01-01' + g", "timestamp", "", "reloads"),
    ("date", "date '2020-01-01' + g", "text", "", "reloads"),
    ("timestamp", "timestamp '2020-01-01' + g * interval '1.5 s'", "date", "", "reloads"),
    ("timestamp", "timestamp '2020-01-01' + g * interval '1.5 s'", "timestamp(0)", "", "reloads"),
    ("timestamp", "timestamp '2020-01-01' + g * interval '1.5 s'", "timestamptz", "", "either"),
    (
        "timestamptz",
        "timestamptz '2020-01-01' + g * interval '1.5 s'",
        "timestamptz(0)",
        "",
        "reloads",
    ),
    (
        "timestamptz(3)",
        "timestamptz '2020-01-01' + g * interval '1.5 s'",
        "timestamptz(6)",
        "",
        "either",
    ),
    (
        "timestamptz",
        "timestamptz '2020-01-01' + g * interval '1 s'",
        "bigint",
        "extract(epoch from c)::bigint",
        "reloads",
    ),
    ("time", "time '12:00' + g * interval '1.5 s'", "time(0)", "", "reloads"),
    ("interval", "g * interval '1.5 s'", "interval(0)", "", "reloads"),
    ("json", "'{\"a\":  1}'", "jsonb", "", "reloads"),
    ("jsonb", "'{\"a\":  1}'", "json", "", "reloads"),
    ("jsonb", "'{\"a\":  1}'", "text", "", "reloads"),
    ("uuid", "gen_random_uuid()", "text", "", "reloads"),
    ("bit(4)", "B'1010'", "varbit", "", "either"),
    ("bool", "g > 3", "int", "c::int", "reloads"),
    ("bool", "g > 3", "text", "", "reloads"),
    ("int[]", "ARRAY[g]", "bigint[]", "", "reloads"),
    ("int[]", "ARRAY[g]", "text", "", "reloads"),
    ("money", "g::money", "numeric", "", "reloads"),
    ("bytea", "'a'", "text", "encode(c, 'hex')", "reloads"),
    ("point", "point(g, 1)", "text", "", "reloads"),
)

_ALTERED = [
    case(f"type_{_slug(before)}_to_{_slug(after)}{'_using_' + _slug(using) if using else ''}",
         expected,
         f"ALTER TABLE t ALTER c TYPE {after}" + (f" USING {using}" if using else ""),
         create=(f"CREATE TABLE t (id int PRIMARY KEY, c {before})",),
         rows=(f"INSERT INTO t SELECT g, {value} FROM generate_series(1, 8) g",))
    for before, value, after, using, expected in _TYPES
]  # fmt: skip

_ALTERED_OTHERWISE = [
    case("type_of_key", "either", "ALTER TABLE t ALTER id TYPE bigint"),
    case("type_of_key_using", "reloads", "ALTER TABLE t ALTER id TYPE bigint USING id + 1000"),
    case("type_there_and_back", "reloads", "ALTER TABLE t ALTER v TYPE bytea USING v::bytea",
         "ALTER TABLE t ALTER v TYPE text USING encode(v, 'escape')"),
    case("type_of_two", "reloads",
         "ALTER TABLE t ALTER n TYPE bigint USING n * 2, ALTER v TYPE varchar(2) USING left(v, 2)"),
    case("type_collate", "either", "ALTER TABLE t ALTER v TYPE text COLLATE \"C\""),
    case("type_between_changes", "reloads",
         "BEGIN; UPDATE t SET n = 1 WHERE id = 3; ALTER TABLE t ALTER n TYPE bigint USING n * 10;"
         " UPDATE t SET n = n + 1 WHERE id = 4; COMMIT"),
    case("type_to_domain", "either", "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
         "ALTER TABLE t ALTER n TYPE positive USING coalesce(n, 1)"),
    case("type_to_enum", "reloads", "CREATE TYPE vs AS ENUM ('v')",
         "ALTER TABLE t ALTER v TYPE vs USING 'v'::vs"),
]  # fmt: skip

# Types that change under a column -----------------------------------------------------------------

_ENUM = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
    "CREATE TABLE t (id int PRIMARY KEY, c mood)",
)
_ENUM_ROWS = ("INSERT INTO t SELECT g, (ARRAY['sad', 'ok', 'happy'])[g % 3 + 1]::mood"
              " FROM generate_series(1, 8) g",)  # fmt: skip
_PAIR = (
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE TABLE t (id int PRIMARY KEY, c pair)",
)
_PAIR_ROWS = ("INSERT INTO t SELECT g, (g, 'b')::pair FROM generate_series(1, 8) g",)

_UNDER_A_COLUMN = [
    case("enum_add_value", "equal", "ALTER TYPE mood ADD VALUE 'ecstatic'",
         "UPDATE t SET c = 'ecstatic' WHERE id = 3", create=_ENUM, rows=_ENUM_ROWS),
    case("enum_rename_value", "reloads", "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
         create=_ENUM, rows=_ENUM_ROWS),
    case("enum_rename_type", "either", "ALTER TYPE mood RENAME TO feeling",
         create=_ENUM, rows=_ENUM_ROWS),
    case("composite_add_attribute", "reloads", "ALTER TYPE pair ADD ATTRIBUTE c int",
         create=_PAIR, rows=_PAIR_ROWS),
    case("composite_drop_attribute", "reloads", "ALTER TYPE pair DROP ATTRIBUTE b",
         create=_PAIR, rows=_PAIR_ROWS),
    case("composite_rename_attribute", "either", "ALTER TYPE pair RENAME ATTRIBUTE b TO z",
         create=_PAIR, rows=_PAIR_ROWS),
    case("domain_default", "equal", "ALTER DOMAIN d SET DEFAULT 6",
         create=("CREATE DOMAIN d AS int DEFAULT 5", "CREATE TABLE t (id int PRIMARY KEY, c d)"),
         rows=("INSERT INTO t SELECT g FROM generate_series(1, 8) g",)),
    case("domain_constraint", "equal", "ALTER DOMAIN d ADD CHECK (VALUE > 0)",
         create=("CREATE DOMAIN d AS int DEFAULT 5", "CREATE TABLE t (id int PRIMARY KEY, c d)"),
         rows=("INSERT INTO t SELECT g FROM generate_series(1, 8) g",)),
    case("domain_rename", "either", "ALTER DOMAIN d RENAME TO e",
         create=("CREATE DOMAIN d AS int DEFAULT 5", "CREATE TABLE t (id int PRIMARY KEY, c d)"),
         rows=("INSERT INTO t SELECT g FROM generate_series(1, 8) g",)),
]  # fmt: skip

# Keys and replica identity ------------------------------------------------------------------------

_WIDE = ("CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, v text)",)

_KEYS = [
    case("key_composite", "reloads",
         "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id, n)",
         create=_WIDE),
    case("key_composite_in_one", "reloads",
         "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (n, id);"
         " COMMIT", create=_WIDE),
    case("key_other_column", "reloads",
         "BEGIN; UPDATE t SET n = id * 1000; ALTER TABLE t DROP CONSTRAINT t_pkey;"
         " ALTER TABLE t ADD PRIMARY KEY (n); COMMIT", create=_WIDE),
    case("key_dropped", "no key", "ALTER TABLE t DROP CONSTRAINT t_pkey",
         "INSERT INTO t VALUES (70, 1, 'x')"),
    case("key_dropped_and_back", "either", "ALTER TABLE t DROP CONSTRAINT t_pkey",
         "INSERT INTO t VALUES (71, 1, 'x')", "ALTER TABLE t ADD PRIMARY KEY (id)"),
    case("key_dropped_and_back_in_one", "either",
         "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id); COMMIT"),
    case("key_using_index", "either", "CREATE UNIQUE INDEX other ON t (id)",
         "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey;"
         " ALTER TABLE t ADD PRIMARY KEY USING INDEX other; COMMIT"),
    case("key_renamed", "equal", "ALTER TABLE t RENAME CONSTRAINT t_pkey TO other"),
    case("key_deferrable", "either",
         "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey;"
         " ALTER TABLE t ADD PRIMARY KEY (id) DEFERRABLE; COMMIT"),
    case("key_extended_by_added_column", "reloads", "ALTER TABLE t ADD c int NOT NULL DEFAULT 5",
         "ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (id, c)"),
    case("identity_full", "equal", "ALTER TABLE t REPLICA IDENTITY FULL",
         "UPDATE t SET n = n + 1 WHERE id = 3", "DELETE FROM t WHERE id = 4"),
    case("identity_full_and_back", "equal", "ALTER TABLE t REPLICA IDENTITY FULL",
         "UPDATE t SET n = n + 1 WHERE id = 3", "ALTER TABLE t REPLICA IDENTITY DEFAULT",
         "UPDATE t SET n = n + 1 WHERE id = 4"),
    case("identity_index", "either", "CREATE UNIQUE INDEX u ON t (n)",
         "ALTER TABLE t REPLICA IDENTITY USING INDEX u", "DELETE FROM t WHERE id = 4",
         create=_WIDE),
    case("identity_index_and_back", "either", "CREATE UNIQUE INDEX u ON t (n)",
         "ALTER TABLE t REPLICA IDENTITY USING INDEX u", "ALTER TABLE t REPLICA IDENTITY DEFAULT",
         "DELETE FROM t WHERE id = 4", create=_WIDE),
    case("identity_nothing_and_back", "either", "ALTER TABLE t REPLICA IDENTITY NOTHING",
         "INSERT INTO t VALUES (72, 1, 'x')", "ALTER TABLE t REPLICA IDENTITY DEFAULT",
         "UPDATE t SET n = 5 WHERE id = 3"),
    case("identity_index_dropped", "either", "CREATE UNIQUE INDEX u ON t (n)",
         "ALTER TABLE t REPLICA IDENTITY USING INDEX u", "DROP INDEX u",
         "ALTER TABLE t REPLICA IDENTITY DEFAULT", create=_WIDE),
]  # fmt: skip

# What changes nothing that a mirror shows ---------------------------------------------------------

_HARMLESS = [
    case(f"harmless_{_slug(' '.join(statements))}", "equal", *statements)
    for statements in (
        ("VACUUM FULL t",),
        ("CLUSTER t USING t_pkey",),
        ("VACUUM t",),
        ("ANALYZE t",),
        ("REINDEX TABLE t",),
        ("CREATE INDEX i ON t (n)", "DROP INDEX i"),
        ("CREATE UNIQUE INDEX i ON t (id, n)",),
        ("CREATE INDEX CONCURRENTLY i ON t (v)",),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (id > 0)",),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (id > 0) NOT VALID",
         "ALTER TABLE t VALIDATE CONSTRAINT c"),
        ("ALTER TABLE t ADD CONSTRAINT c UNIQUE (id, n)", "ALTER TABLE t DROP CONSTRAINT c"),
        ("ALTER TABLE t ADD CONSTRAINT c EXCLUDE (id WITH =)",),
        ("CREATE TABLE r (id int PRIMARY KEY)", "INSERT INTO r SELECT generate_series(1, 90000)",
         "ALTER TABLE t ADD FOREIGN KEY (n) REFERENCES r NOT VALID"),
        ("ALTER TABLE t SET (fillfactor = 50)",),
        ("ALTER TABLE t SET (autovacuum_enabled = false)",),
        ("ALTER TABLE t SET TABLESPACE pg_default",),
        ("ALTER TABLE t SET WITHOUT CLUSTER",),
        ("ALTER TABLE t OWNER TO CURRENT_USER",),
        ("GRANT SELECT ON t TO PUBLIC",),
        ("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY p ON t USING (id > 3)"),
        ("CREATE RULE r AS ON DELETE TO t WHERE OLD.id = 8 DO INSTEAD NOTHING",),
        ("CREATE VIEW seen AS SELECT * FROM t", "DROP VIEW seen"),
        ("CREATE MATERIALIZED VIEW m AS SELECT * FROM t",),
        ("CREATE STATISTICS s ON id, n FROM t",),
        ("COMMENT ON TABLE t IS 'a comment'",),
        ("CREATE TABLE copy AS SELECT * FROM t",),
        ("CREATE TABLE alike (LIKE t INCLUDING ALL)",),
        ("CREATE TABLE child () INHERITS (t)", "INSERT INTO child VALUES (80, 1, 'child')"),
        ("CREATE TABLE p (id int)", "ALTER TABLE t INHERIT p", "ALTER TABLE t NO INHERIT p"),
        ("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE; COMMIT",),
        ("ALTER TABLE t DISABLE TRIGGER ALL", "ALTER TABLE t ENABLE TRIGGER ALL"),
    )
]  # fmt: skip

_TRIGGER = (
    "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN NEW.v := upper(NEW.v); RETURN NEW; END $$",
    "CREATE TRIGGER shout BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION shout()",
    "UPDATE t SET n = 1 WHERE id = 3",
)

# Rows that go without a message each, and transactions ------------------------------------------

_ROWS = [
    case("trigger", "equal", *_TRIGGER),
    case("truncate", "equal", "TRUNCATE t"),
    case("truncate_then_insert", "equal", "TRUNCATE t", "INSERT INTO t VALUES (3, 3, 'x')"),
    case("truncate_restart", "equal", "TRUNCATE t RESTART IDENTITY",
         create=("CREATE TABLE t (id int PRIMARY KEY, n serial, v text)",)),
    case("truncate_cascade", "equal", "TRUNCATE parent CASCADE",
         create=("CREATE TABLE parent (id int PRIMARY KEY)",
                 "CREATE TABLE t (id int PRIMARY KEY, n int REFERENCES parent, v text)"),
         rows=("INSERT INTO parent SELECT generate_series(1, 80)",
               "INSERT INTO t SELECT g, g, 'v' FROM generate_series(1, 8) g")),
    case("truncate_between_changes", "equal",
         "BEGIN; INSERT INTO t VALUES (50, 1, 'gone'); TRUNCATE t;"
         " INSERT INTO t VALUES (51, 1, 'x'); COMMIT"),
    case("truncate_and_alter", "either",
         "BEGIN; TRUNCATE t; ALTER TABLE t ADD c int DEFAULT 5; INSERT INTO t (id) VALUES (51);"
         " COMMIT"),
    case("rolled_back_add", "equal", "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; ROLLBACK"),
    case("rolled_back_type", "equal",
         "BEGIN; ALTER TABLE t ALTER n TYPE bigint USING n * 10; ROLLBACK"),
    case("rolled_back_drop", "equal", "BEGIN; DROP TABLE t; ROLLBACK"),
    case("rolled_back_truncate", "equal", "BEGIN; TRUNCATE t; ROLLBACK"),
    case("savepoint_add", "equal",
         "BEGIN; SAVEPOINT a; ALTER TABLE t ADD c int DEFAULT 5; ROLLBACK TO a;"
         " ALTER TABLE t ADD c text DEFAULT 'kept'; COMMIT"),
    case("savepoint_type", "equal",
         "BEGIN; SAVEPOINT a; ALTER TABLE t ALTER n TYPE bigint USING n * 10; ROLLBACK TO a;"
         " UPDATE t SET n = 1 WHERE id = 3; COMMIT"),
    case("savepoint_kept", "equal",
         "BEGIN; SAVEPOINT a; ALTER TABLE t ADD c int DEFAULT 5; RELEASE a;"
         " UPDATE t SET c = 6 WHERE id = 3; COMMIT"),
    case("many_in_one", "reloads",
         "BEGIN; ALTER TABLE t ADD c int DEFAULT 5; UPDATE t SET c = 6 WHERE id = 3;"
         " ALTER TABLE t RENAME v TO w; ALTER TABLE t ALTER n TYPE bigint USING n + 1;"
         " ALTER TABLE t DROP w; INSERT INTO t (id, n) VALUES (52, 1); COMMIT"),
    case("do_block", "equal", "DO $$ BEGIN ALTER TABLE t ADD c int DEFAULT 5; END $$"),
    case("do_block_using", "reloads",
         "DO $$ BEGIN EXECUTE 'ALTER TABLE t ALTER n TYPE bigint USING n * 10'; END $$"),
    case("do_block_caught", "equal",
         "DO $$ BEGIN BEGIN ALTER TABLE t ALTER n TYPE bigint USING n * 10; RAISE 'no';"
         " EXCEPTION WHEN OTHERS THEN NULL; END; END $$"),
    case("function", "equal",
         "CREATE FUNCTION grow() RETURNS void LANGUAGE plpgsql AS"
         " $$ BEGIN ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT; END $$",
         "SELECT grow()"),
    case("procedure_commits", "equal",
         "CREATE PROCEDURE grow() LANGUAGE plpgsql AS $$ BEGIN ALTER TABLE t ADD c int DEFAULT 5;"
         " COMMIT; ALTER TABLE t ADD d int DEFAULT 6; END $$", "CALL grow()"),
]  # fmt: skip

# Tables that come, go and move --------------------------------------------------------------------

_TABLES = [
    case("dropped", "gone", "DROP TABLE t"),
    case("dropped_recreated", "either", "DROP TABLE t",
         "CREATE TABLE t (id int PRIMARY KEY, other text)",
         "ALTER PUBLICATION pub ADD TABLE {schema}.t",
         "INSERT INTO t SELECT g, 'o' || g FROM generate_series(1, 8) g"),
    case("renamed", "gone", "ALTER TABLE t RENAME TO u", "INSERT INTO u (id) VALUES (73)"),
    case("renamed_and_back", "either", "ALTER TABLE t RENAME TO u",
         "INSERT INTO u (id) VALUES (74)", "ALTER TABLE u RENAME TO t",
         "INSERT INTO t (id) VALUES (75)"),
    case("schema_renamed", "gone", "ALTER SCHEMA {schema} RENAME TO {schema}_other"),
    case("set_schema", "gone", "CREATE SCHEMA {schema}_other",
         "ALTER TABLE t SET SCHEMA {schema}_other"),
    case("swapped", "either",
         "CREATE TABLE fresh (id int PRIMARY KEY, n int, v text)",
         "ALTER PUBLICATION pub ADD TABLE {schema}.fresh",
         "INSERT INTO fresh VALUES (3, 3, 'fresh')",
         "BEGIN; ALTER TABLE t RENAME TO old; ALTER TABLE fresh RENAME TO t; COMMIT",
         "INSERT INTO t VALUES (4, 4, 'fresh')"),
]  # fmt: skip

_PUBLICATION = [
    case("publication_row_filter", "reloads",
         "ALTER PUBLICATION pub DROP TABLE {schema}.t; ALTER PUBLICATION pub ADD TABLE"
         " {schema}.t WHERE (id > 3)"),
    case("publication_row_filter_in_one", "reloads",
         "BEGIN; ALTER PUBLICATION pub DROP TABLE {schema}.t; ALTER PUBLICATION pub ADD TABLE"
         " {schema}.t WHERE (id > 3); COMMIT"),
    case("publication_column_list", "either",
         "BEGIN; ALTER PUBLICATION pub DROP TABLE {schema}.t; ALTER PUBLICATION pub ADD TABLE"
         " {schema}.t (id, n); COMMIT"),
    case("publication_out_and_in", "reloads", "ALTER PUBLICATION pub DROP TABLE {schema}.t",
         "UPDATE t SET v = 'unseen' WHERE id = 3", "ALTER PUBLICATION pub ADD TABLE {schema}.t"),
    case("publication_out", "gone", "ALTER PUBLICATION pub DROP TABLE {schema}.t",
         "UPDATE t SET v = 'unseen' WHERE id = 3"),
]  # fmt: skip

# Partitions ---------------------------------------------------------------------------------------

_ROOT = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (5)",
    "CREATE TABLE high PARTITION OF t FOR VALUES FROM (5) TO (1000000)",
)
_SPARE = "CREATE TABLE spare (id int PRIMARY KEY, n int, v text)"
_SPARE_ROWS = "INSERT INTO spare VALUES (-3, 1, 'attached'), (-2, 2, 'attached')"

_PARTITIONS = [
    case("partition_insert", "equal", "UPDATE t SET n = 1 WHERE id = 3", create=_ROOT),
    case("partition_add_column", "equal", "ALTER TABLE t ADD c int DEFAULT 5", create=_ROOT),
    case("partition_add_volatile", "reloads", "ALTER TABLE t ADD c float8 DEFAULT random()",
         create=_ROOT),
    case("partition_type_using", "reloads", "ALTER TABLE t ALTER n TYPE bigint USING n * 10",
         create=_ROOT),
    case("partition_new", "either",
         "CREATE TABLE below PARTITION OF t FOR VALUES FROM (-10) TO (0)",
         "INSERT INTO t VALUES (-1, 1, 'x')", create=_ROOT),
    case("partition_attach", "reloads", _SPARE, _SPARE_ROWS,
         "ALTER TABLE t ATTACH PARTITION spare FOR VALUES FROM (-10) TO (0)", create=_ROOT),
    case("partition_attach_empty", "either", _SPARE,
         "ALTER TABLE t ATTACH PARTITION spare FOR VALUES FROM (-10) TO (0)", create=_ROOT),
    case("partition_attach_in_one", "reloads",
         f"BEGIN; {_SPARE}; {_SPARE_ROWS}; ALTER TABLE t ATTACH PARTITION spare"
         " FOR VALUES FROM (-10) TO (0); UPDATE t SET n = 9 WHERE id = -3; COMMIT", create=_ROOT),
    case("partition_detach", "reloads", "ALTER TABLE t DETACH PARTITION low", create=_ROOT),
    case("partition_detach_concurrently", "reloads",
         "ALTER TABLE t DETACH PARTITION low CONCURRENTLY", create=_ROOT),
    case("partition_detach_and_back", "reloads", "ALTER TABLE t DETACH PARTITION low",
         "UPDATE low SET v = 'unseen' WHERE id = 3",
         "ALTER TABLE t ATTACH PARTITION low FOR VALUES FROM (0) TO (5)", create=_ROOT),
    case("partition_drop_leaf", "reloads", "DROP TABLE low", create=_ROOT),
    case("partition_truncate_leaf", "reloads", "TRUNCATE low", create=_ROOT),
    case("partition_truncate_root", "either", "TRUNCATE t", create=_ROOT),
    case("partition_moves_row", "equal", "UPDATE t SET id = 600 WHERE id = 3", create=_ROOT),
    case("partition_default", "either", "CREATE TABLE rest PARTITION OF t DEFAULT",
         "INSERT INTO t VALUES (-5, 1, 'x')", create=_ROOT),
    case("partition_vacuum_full_leaf", "equal", "VACUUM FULL low", create=_ROOT),
    case("partition_nested", "reloads",
         "CREATE TABLE sub (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id)",
         "CREATE TABLE subsub PARTITION OF sub FOR VALUES FROM (-10) TO (0)",
         "INSERT INTO sub VALUES (-4, 1, 'nested')",
         "ALTER TABLE t ATTACH PARTITION sub FOR VALUES FROM (-10) TO (0)", create=_ROOT),
    case("partition_nested_leaf_truncated", "reloads", "TRUNCATE subsub",
         create=(*_ROOT,
                 "CREATE TABLE sub PARTITION OF t FOR VALUES FROM (-10) TO (0)"
                 " PARTITION BY RANGE (id)",
                 "CREATE TABLE subsub PARTITION OF sub FOR VALUES FROM (-10) TO (0)"),
         rows=(*ROWS, "INSERT INTO t VALUES (-4, 1, 'nested')")),
]  # fmt: skip

_ALL = (
    *_ADDED, *_ADDED_NULL, *_ADDED_OTHERWISE, *_COLUMNS, *_ALTERED, *_ALTERED_OTHERWISE,
    *_UNDER_A_COLUMN, *_KEYS, *_HARMLESS, *_ROWS, *_TABLES, *_PUBLICATION, *_PARTITIONS,
)  # fmt: skip


def _numbered(cases: Iterable[Case]) -> Iterator[Case]:
    """Give every case an id of its own, also where two begin alike."""
    seen: Counter[str] = Counter()
    for one in cases:
        seen[one.id] += 1
        yield replace(one, id=f"{one.id}_{seen[one.id]}") if seen[one.id] > 1 else one


CASES: tuple[Case, ...] = tuple(_numbered(_ALL))

KNOWN_GAPS: dict[str, str] = {}
"""Statements whose effect a bridge without event triggers does not report yet."""
