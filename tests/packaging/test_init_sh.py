"""init.sh against a real server: what the bridge's role may do, and what a second run changes."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import cast

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import TupleRow

from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Message
from examples.embedded import EmbeddedPostgres
from schemas.ddl import DdlEvent, parse_ddl
from tests.conftest import Connection
from tests.packaging import ROOT

PASSWORD = """it's "odd" $HOME \\ `id`"""
ODD_NAME = 'Odd, "N".*;--'

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def role() -> str:
    """Roles belong to the whole server, so each test has its own."""
    return f"Bridge {secrets.token_hex(4)}"


@pytest.fixture
def init(postgres: EmbeddedPostgres, database: str, role: str) -> Run:
    def run(*arguments: str, shell: str = "sh", **env: str) -> subprocess.CompletedProcess[str]:
        given = {"POSTGRES_BRIDGE_USER": role, "POSTGRES_BRIDGE_PASSWORD": PASSWORD, **env}
        return subprocess.run(
            [shell, str(ROOT / "init.sh"), *arguments],
            env={"PATH": os.environ["PATH"], **postgres.psql_env(database), **given},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def tables(connection: Connection) -> None:
    connection.execute("CREATE TABLE users (id int PRIMARY KEY)")
    connection.execute("INSERT INTO users VALUES (1)")
    connection.execute("CREATE TABLE secret (id int PRIMARY KEY)")
    connection.execute("CREATE SCHEMA sales")
    connection.execute("CREATE TABLE sales.orders (id int PRIMARY KEY)")
    odd = sql.Identifier(ODD_NAME)
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(odd))
    connection.execute(sql.SQL("CREATE TABLE {}.{} (id int PRIMARY KEY)").format(odd, odd))


def published(connection: Connection) -> set[tuple[object, ...]]:
    query = "SELECT pubname, schemaname, tablename FROM pg_publication_tables"
    return set(connection.execute(query).fetchall())


def state(connection: Connection) -> list[list[TupleRow]]:
    """All that init.sh may touch, except the password's salt."""
    queries = (
        "SELECT r::text FROM pg_roles AS r ORDER BY 1",
        "SELECT p::text FROM pg_publication AS p ORDER BY 1",
        "SELECT prpubid, prrelid FROM pg_publication_rel ORDER BY 1, 2",
        "SELECT pnpubid, pnnspid FROM pg_publication_namespace ORDER BY 1, 2",
        "SELECT oid, relacl::text FROM pg_class ORDER BY 1",
        "SELECT oid, nspacl::text FROM pg_namespace WHERE nspname !~ '^pg_t' ORDER BY 1",
        "SELECT oid, datacl::text FROM pg_database ORDER BY 1",
        "SELECT oid, evtname, evtenabled FROM pg_event_trigger ORDER BY 1",
        "SELECT p.oid, prosrc FROM pg_proc p WHERE pronamespace = to_regnamespace('walbridge')"
        " ORDER BY 1",
        "SELECT defaclrole, defaclobjtype, defaclacl::text FROM pg_default_acl ORDER BY 1, 2",
    )
    return [connection.execute(query).fetchall() for query in queries]


TRIGGERS = "SELECT evtname FROM pg_event_trigger ORDER BY 1"

STATEMENTS = (
    "CREATE TEMP TABLE temporary (id int)",
    "ALTER TABLE temporary ADD v text DEFAULT random()::text",
    "DROP TABLE temporary",
    "CREATE UNLOGGED TABLE unlogged (id int)",
    "ALTER TABLE unlogged SET LOGGED",
    "ALTER TABLE unlogged SET UNLOGGED",
    "CREATE TABLE copied AS SELECT g AS id FROM generate_series(1, 10) g",
    "SELECT 1 AS id INTO into_table",
    "CREATE MATERIALIZED VIEW seen AS SELECT id FROM copied",
    "CREATE UNIQUE INDEX ON seen (id)",
    "REFRESH MATERIALIZED VIEW CONCURRENTLY seen",
    "DO $$ BEGIN CREATE TABLE inside (id int); ALTER TABLE inside ADD v int DEFAULT 1; END $$",
    "CREATE FUNCTION makes() RETURNS void LANGUAGE sql AS 'CREATE TABLE made (id int)'",
    "SELECT makes()",
    "CREATE TABLE wide ("
    + ", ".join(f"c{at} text DEFAULT '{'x' * 200}'" for at in range(900))
    + ")",
    "CREATE TABLE parent (id int) PARTITION BY RANGE (id)",
    "CREATE TABLE child PARTITION OF parent FOR VALUES FROM (1) TO (5)",
    "ALTER TABLE parent DETACH PARTITION child",
    "CREATE SCHEMA s CREATE TABLE inside (id int) CREATE VIEW v AS SELECT 1",
    "DROP SCHEMA s CASCADE",
    "CREATE TYPE mood AS ENUM ('a')",
    "CREATE TABLE moody (m mood, ms mood[])",
    "ALTER TYPE mood RENAME VALUE 'a' TO 'b'",
    "CREATE EXTENSION IF NOT EXISTS plpgsql",
    "ALTER TABLE copied RENAME TO renamed",
    "COMMENT ON TABLE renamed IS 'x'",
    "GRANT SELECT ON renamed TO PUBLIC",
    "CREATE PUBLICATION other FOR TABLE renamed",
    "ALTER PUBLICATION other DROP TABLE renamed",
    "DROP PUBLICATION other",
    "REINDEX TABLE renamed",
    "CREATE INDEX CONCURRENTLY ON renamed (id)",
    "DROP TABLE renamed CASCADE",
)


def test_event_triggers_make_no_statement_fail(
    init: Run, connection: Connection, postgres: EmbeddedPostgres, role: str
) -> None:
    """Whatever the statement, whoever runs it; an error in them is a warning at most."""
    assert init().returncode == 0
    owner = f"owner {role}"
    connection.execute(
        sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'x'; GRANT CREATE ON DATABASE {} TO {};"
                " GRANT CREATE ON SCHEMA public TO {}").format(
            *map(sql.Identifier, (owner, connection.info.dbname, owner, owner))
        )
    )  # fmt: skip
    warnings: list[str] = []

    with psycopg.connect(
        postgres.dsn(connection.info.dbname, owner, "x"), autocommit=True
    ) as other:
        other.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
        for statement in STATEMENTS:
            other.execute(statement)

    assert not [warning for warning in warnings if "walbridge" in warning]


def test_broken_event_triggers_warn_and_let_the_statement_pass(
    init: Run, connection: Connection
) -> None:
    """As where pg_logical_emit_message is not allowed."""
    assert init().returncode == 0
    connection.execute("DROP FUNCTION walbridge.report(oid[], text, text)")
    warnings: list[str] = []
    connection.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))

    connection.execute("CREATE TABLE broken (id int)")
    connection.execute("ALTER TABLE broken ADD v float DEFAULT random()")

    assert [warning for warning in warnings if "walbridge" in warning]


@pytest.mark.parametrize(
    ("statements", "says"),
    [
        (["CREATE SCHEMA walbridge AUTHORIZATION {role}"], "schema walbridge belongs to"),
        (
            ["CREATE SCHEMA walbridge", "GRANT ALL ON SCHEMA walbridge TO {role}"],
            "the right to create in schema walbridge belongs to",
        ),
        (
            ["CREATE SCHEMA walbridge", "GRANT ALL ON SCHEMA walbridge TO PUBLIC"],
            "the right to create in schema walbridge belongs to role PUBLIC",
        ),
        (
            [
                "CREATE SCHEMA walbridge",
                "CREATE FUNCTION walbridge.report(oid[], text, text) RETURNS int"
                " LANGUAGE sql AS 'SELECT 1'",
                "ALTER FUNCTION walbridge.report(oid[], text, text) OWNER TO {role}",
            ],
            "function walbridge.report(oid[],text,text) belongs to",
        ),
    ],
)
def test_nothing_of_another_role_is_adopted(
    init: Run, connection: Connection, role: str, statements: list[str], says: str
) -> None:
    """Event triggers run for everybody: whoever owns their functions could act as anybody."""
    other = sql.Identifier(f"other {role}")
    connection.execute(sql.SQL("CREATE ROLE {}").format(other))
    for statement in statements:
        connection.execute(sql.SQL(statement).format(role=other))
    before = state(connection)

    done = init()

    assert done.returncode != 0
    assert says in done.stderr
    assert "DROP SCHEMA walbridge CASCADE" in done.stderr
    assert state(connection) == before
    connection.execute("DROP SCHEMA walbridge CASCADE")
    assert init().returncode == 0


HIJACKS = """
CREATE TABLE public.stolen (by_role name, signature text);
GRANT ALL ON public.stolen TO PUBLIC;
CREATE DOMAIN public.text AS int4;
DO $attack$
DECLARE
    signature pg_catalog.text;
BEGIN
    FOREACH signature IN ARRAY ARRAY[
        'format(pg_catalog.text)', 'format(pg_catalog.text, pg_catalog.text)',
        'format(pg_catalog.text, name)', 'format(pg_catalog.text, pg_catalog.text, name)',
        'format(pg_catalog.text, name, pg_catalog.text)', 'format(pg_catalog.text, regprocedure)',
        'format(pg_catalog.text, name, name, name, name)',
        'format(pg_catalog.text, pg_catalog.text, pg_catalog.text)',
        'format(pg_catalog.text, name, name, pg_catalog.text)', 'btrim(pg_catalog.text)',
        'btrim(pg_catalog.text, pg_catalog.text)', 'current_setting(pg_catalog.text)',
        'set_config(pg_catalog.text, pg_catalog.text, boolean)', 'quote_ident(pg_catalog.text)',
        'regexp_replace(pg_catalog.text, pg_catalog.text, pg_catalog.text)',
        'to_regclass(pg_catalog.text)', 'to_regnamespace(pg_catalog.text)', 'current_database()',
        'matches(pg_catalog.text, pg_catalog.text)', 'matches(name, pg_catalog.text)'] LOOP
        EXECUTE pg_catalog.format(
            'CREATE FUNCTION public.%s RETURNS pg_catalog.text LANGUAGE plpgsql AS $$ BEGIN'
            ' INSERT INTO public.stolen VALUES (current_user, %L); RETURN NULL; END $$',
            signature, signature);
    END LOOP;
END $attack$;
CREATE OPERATOR public.~ (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text,
                          FUNCTION = public.matches);
CREATE OPERATOR public.!~ (LEFTARG = name, RIGHTARG = pg_catalog.text, FUNCTION = public.matches);
"""


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("path", ['"$user", public', "public, pg_catalog"])
@pytest.mark.parametrize("listed", ["", "users,sales.*"])
def test_functions_of_others_are_not_called(
    init: Run, connection: Connection, role: str, path: str, listed: str
) -> None:
    """A superuser runs it: with one call a role that may create functions would be a superuser."""
    thief = sql.Identifier(f"thief {role}")
    connection.execute(sql.SQL("CREATE ROLE {}").format(thief))
    connection.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(thief))
    connection.execute(sql.SQL("SET ROLE {}").format(thief))
    connection.execute(HIJACKS)
    connection.execute("RESET ROLE")
    options = "-c search_path=" + path.replace(" ", "\\ ")

    runs = [
        init(*arguments, BRIDGE_TABLES=listed, PGOPTIONS=options)
        for arguments in [(), (), ("--remove",)]
    ]

    assert [done.returncode for done in runs] == [0, 0, 0], [done.stderr for done in runs]
    assert connection.execute("SELECT * FROM public.stolen").fetchall() == []
    assert connection.execute(TRIGGERS).fetchall() == []


@pytest.mark.usefixtures("tables")
def test_unqualified_names_are_found_on_the_search_path_of_the_role(
    init: Run, connection: Connection
) -> None:
    """As psql would find them."""
    connection.execute("CREATE TABLE sales.users (id int PRIMARY KEY)")

    done = init(BRIDGE_TABLES="users,orders,secret", PGOPTIONS="-c search_path=sales,public")

    assert done.returncode == 0, done.stderr
    assert published(connection) == {
        ("cdc_pub", "sales", "users"),
        ("cdc_pub", "sales", "orders"),
        ("cdc_pub", "public", "secret"),
    }


def reported(connection: Connection) -> list[list[DdlEvent]]:
    """Read the events of each message since the slot was made, or last read."""
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(current_database(), NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'cdc_pub', 'messages', 'true')"
    ).fetchall()
    found = [decode_message(cast("bytes", data)) for (data,) in rows]
    return [list(parse_ddl(one.content)) for one in found if isinstance(one, Message)]


def test_event_triggers_report_whatever_the_session_is_set_to(
    init: Run, connection: Connection
) -> None:
    """A restore or a migration under session_replication_role = replica is DDL as well."""
    assert init().returncode == 0
    connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
    odd = sql.Identifier(ODD_NAME)

    connection.execute("SET session_replication_role = replica")
    connection.execute("SET search_path = ''")
    connection.execute("SET default_transaction_isolation = serializable")
    connection.execute(sql.SQL("CREATE TABLE public.{} (id int)").format(odd))
    connection.execute("CREATE EXTENSION hstore SCHEMA public")
    connection.execute("DROP EXTENSION hstore")
    connection.execute(sql.SQL("DROP TABLE public.{}").format(odd))

    events = [event for message in reported(connection) for event in message]
    assert [(event.kind, event.name.table) for event in events] == [
        ("alter", ODD_NAME),
        ("drop", ODD_NAME),
    ]


def test_many_events_are_several_messages(init: Run, connection: Connection) -> None:
    """The bridge reads no message that names more tables than any real one does."""
    assert init().returncode == 0
    connection.execute("CREATE SCHEMA many")
    connection.execute(
        "DO $$ BEGIN FOR i IN 1..1001 LOOP EXECUTE"
        " format('CREATE TABLE many.t%s (id int)', i); END LOOP; END $$"
    )
    connection.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")

    connection.execute("DROP SCHEMA many CASCADE")

    messages = reported(connection)
    assert sorted(map(len, messages)) == [1, 1_000]
    assert {event.kind for message in messages for event in message} == {"drop"}
    assert len({event.name for message in messages for event in message}) == 1_001


def test_event_triggers_are_removed_and_installed_again(init: Run, connection: Connection) -> None:
    """Removing them leaves everything else."""
    assert init().returncode == 0
    installed = connection.execute(TRIGGERS).fetchall()
    before = published(connection)

    removed = init("--remove")

    assert removed.returncode == 0, removed.stderr
    assert installed == [("walbridge_ddl",), ("walbridge_drop",), ("walbridge_rewrite",)]
    assert connection.execute(TRIGGERS).fetchall() == []
    assert connection.execute("SELECT to_regnamespace('walbridge')").fetchone() == (None,)
    assert published(connection) == before
    assert init("--remove").returncode == 0
    assert init().returncode == 0
    assert connection.execute(TRIGGERS).fetchall() == installed


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_named_tables_are_published_and_nothing_else(
    init: Run, connection: Connection, shell: str
) -> None:
    """A name with a comma, quotes and SQL in it is a name."""
    quoted = '"' + ODD_NAME.replace('"', '""') + '"'

    done = init(shell=shell, BRIDGE_TABLES=f"users, sales.orders ,{quoted}.{quoted}")

    assert done.returncode == 0, done.stderr
    assert published(connection) == {
        ("cdc_pub", "public", "users"),
        ("cdc_pub", "sales", "orders"),
        ("cdc_pub", ODD_NAME, ODD_NAME),
    }


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("listed", ["", "users,sales.*", "users,sales.orders"])
def test_a_second_run_changes_nothing(init: Run, connection: Connection, listed: str) -> None:
    """Deployments run it again and again."""
    first = init(BRIDGE_TABLES=listed)
    before = state(connection)

    second = init(BRIDGE_TABLES=listed)

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert state(connection) == before


@pytest.mark.usefixtures("tables")
def test_a_later_run_adds_the_missing_table(init: Run, connection: Connection) -> None:
    """A longer list is how a table joins; a shorter one takes none away from a running bridge."""
    init(BRIDGE_TABLES="users")

    init(BRIDGE_TABLES="sales.orders")

    assert published(connection) == {
        ("cdc_pub", "public", "users"),
        ("cdc_pub", "sales", "orders"),
    }


@pytest.mark.usefixtures("tables")
def test_the_role_reads_its_tables_and_nothing_more(
    init: Run, postgres: EmbeddedPostgres, database: str, role: str
) -> None:
    """Whoever takes over the bridge has not taken over the database."""
    assert init(BRIDGE_TABLES="users").returncode == 0

    with psycopg.connect(
        postgres.dsn(database, user=role, password=PASSWORD), autocommit=True
    ) as bridge:
        assert bridge.execute("SELECT id FROM users").fetchall() == [(1,)]
        attributes = "SELECT rolsuper, rolcreatedb, rolcreaterole, rolbypassrls, rolreplication"
        assert bridge.execute(
            f"{attributes} FROM pg_roles WHERE rolname = current_user"
        ).fetchone() == (False, False, False, False, True)
        for forbidden in (
            "SELECT id FROM secret",
            "SELECT id FROM sales.orders",
            "INSERT INTO users VALUES (2)",
            "UPDATE users SET id = 2",
            "DELETE FROM users",
            "TRUNCATE users",
            "CREATE TABLE mine (id int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                bridge.execute(forbidden)


@pytest.mark.usefixtures("tables")
def test_the_role_can_replicate(
    init: Run, postgres: EmbeddedPostgres, database: str, role: str
) -> None:
    """The grants are enough: this is how the bridge connects and makes its slot."""
    init(BRIDGE_TABLES="users")
    dsn = postgres.dsn(database, user=role, password=PASSWORD)

    with psycopg.connect(dsn, replication="database", autocommit=True) as bridge:
        made = bridge.execute("CREATE_REPLICATION_SLOT probe TEMPORARY LOGICAL pgoutput").fetchone()

    assert made is not None
    assert made[0] == "probe"


def test_without_a_list_tables_made_later_are_published_and_readable(
    init: Run, postgres: EmbeddedPostgres, connection: Connection, database: str, role: str
) -> None:
    """In a new container there are no tables yet when the script runs, but perhaps schemas."""
    connection.execute("CREATE SCHEMA empty")
    assert init().returncode == 0

    connection.execute("CREATE SCHEMA later")
    for schema in ("later", "empty"):
        connection.execute(f"CREATE TABLE {schema}.users AS SELECT 1 AS id")

    assert published(connection) == {("cdc_pub", at, "users") for at in ("later", "empty")}
    with psycopg.connect(postgres.dsn(database, user=role, password=PASSWORD)) as bridge:
        for schema in ("later", "empty"):
            assert bridge.execute(f"SELECT id FROM {schema}.users").fetchall() == [(1,)]


def test_the_password_can_be_a_file(
    init: Run, postgres: EmbeddedPostgres, database: str, role: str, tmp_path: Path
) -> None:
    """Secrets are mounted as files, and editors end files with a newline."""
    secret = tmp_path / "secret"
    secret.write_text("from a file\n")

    done = init(POSTGRES_BRIDGE_PASSWORD="", POSTGRES_BRIDGE_PASSWORD_FILE=str(secret))

    assert done.returncode == 0, done.stderr
    psycopg.connect(postgres.dsn(database, user=role, password="from a file")).close()


def test_it_works_where_the_postgres_image_sources_it(
    postgres: EmbeddedPostgres, database: str, role: str
) -> None:
    """A mount without the executable bit is sourced, with the image's file list as arguments."""
    entrypoint = """
        set -Eeo pipefail
        process_files() { local f; for f; do . "$f"; done; }
        process_files "$1"
        echo "still here, options $-"
    """
    connection = postgres.psql_env(database)
    done = subprocess.run(
        ["bash", "-c", entrypoint, "docker-entrypoint.sh", str(ROOT / "init.sh")],
        env={
            "PATH": os.environ["PATH"],
            "PSQL": connection["PSQL"],
            "PGHOST": str(postgres.sockets),
            "PGPORT": connection["PGPORT"],
            "POSTGRES_USER": connection["PGUSER"],
            "POSTGRES_DB": database,
            "POSTGRES_BRIDGE_USER": role,
            "POSTGRES_BRIDGE_PASSWORD": PASSWORD,
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("still here")
    assert "u" not in last.rpartition(" ")[2]
    psycopg.connect(postgres.dsn(database, user=role, password=PASSWORD)).close()


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"POSTGRES_BRIDGE_PASSWORD": ""}, "set POSTGRES_BRIDGE_PASSWORD"),
        ({"POSTGRES_BRIDGE_PASSWORD_FILE": "/x"}, "not both"),
        (
            {"POSTGRES_BRIDGE_PASSWORD": "", "POSTGRES_BRIDGE_PASSWORD_FILE": "/no/such"},
            "cannot read POSTGRES_BRIDGE_PASSWORD_FILE: /no/such",
        ),
        ({"BRIDGE_TABLES": "users,nowhere"}, "nowhere. Create them first"),
        ({"BRIDGE_TABLES": '"users'}, "users"),
        ({"BRIDGE_TABLES": ","}, "names no table"),
        ({"POSTGRES_BRIDGE_USER": "postgres"}, "Choose another name in POSTGRES_BRIDGE_USER"),
        ({"PSQL": "/no/such/psql"}, "name its psql in PSQL"),
    ],
)
@pytest.mark.usefixtures("tables")
def test_a_wrong_input_is_named_and_changes_nothing(
    init: Run, connection: Connection, env: dict[str, str], says: str
) -> None:
    """Half a set-up would look like a whole one."""
    before = state(connection)

    done = init(**env)

    assert done.returncode != 0
    assert says in done.stderr
    assert state(connection) == before


def test_wal_level_is_checked_with_its_remedy(own_postgres: EmbeddedPostgres) -> None:
    """Without logical WAL everything would be granted and nothing would ever arrive."""
    own_postgres.settings["wal_level"] = "replica"
    own_postgres.restart()

    done = subprocess.run(
        [str(ROOT / "init.sh")],
        env={
            "PATH": os.environ["PATH"],
            **own_postgres.psql_env(),
            "POSTGRES_BRIDGE_PASSWORD": PASSWORD,
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode != 0
    assert "ALTER SYSTEM SET wal_level = logical" in done.stderr
    assert "restart" in done.stderr


def test_a_table_without_a_key_is_pointed_out(init: Run, connection: Connection) -> None:
    """Publishing it makes PostgreSQL refuse the application's updates."""
    connection.execute("CREATE TABLE keyless (id int)")

    done = init(BRIDGE_TABLES="keyless")

    assert "ALTER TABLE public.keyless REPLICA IDENTITY FULL" in done.stdout


def test_the_password_is_neither_in_the_log_nor_in_the_output(
    own_postgres: EmbeddedPostgres,
) -> None:
    """Logs are read by more people than passwords are meant for."""
    own_postgres.settings["log_statement"] = "all"
    own_postgres.restart()

    done = subprocess.run(
        [str(ROOT / "init.sh")],
        env={
            "PATH": os.environ["PATH"],
            **own_postgres.psql_env(),
            "POSTGRES_BRIDGE_PASSWORD": "hush-hush",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert "statement:" in own_postgres.log_tail(1_000)
    assert "hush-hush" not in own_postgres.log_tail(1_000) + done.stdout + done.stderr


def test_help_needs_no_server(init: Run) -> None:
    """The first thing a person tries, often on another machine."""
    done = init("--help", PGPORT="1", POSTGRES_BRIDGE_PASSWORD="")

    assert done.returncode == 0
    assert "BRIDGE_TABLES" in done.stdout
