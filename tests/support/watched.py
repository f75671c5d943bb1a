"""A table whose COPY stops or fails in the middle, at a row and for as long as a test tells.

The server itself does what it is asked to. The key's domain calls a function for every row that a
COPY of a key range compares; at the row in question it looks which advisory lock the test holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.conftest import Connection

ROWS = 30_000
TOO_OLD, WAIT = 72, 73
WHOLE_RANGE = b'{"from": [1]}'

_WATCH = """
    CREATE FUNCTION watch() RETURNS bool LANGUAGE plpgsql AS $$
    DECLARE row_number int;
    BEGIN
        IF current_query() NOT LIKE 'COPY%' THEN RETURN true; END IF;
        row_number := 1 + coalesce(nullif(current_setting('watch.row', true), ''), '0')::int;
        PERFORM set_config('watch.row', row_number::text, true);
        IF row_number <> 20000 THEN RETURN true; END IF;
        IF EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 72) THEN
            RAISE EXCEPTION 'snapshot too old' USING ERRCODE = '72000';
        END IF;
        WHILE EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 73) LOOP
            PERFORM pg_sleep(0.02);
        END LOOP;
        RETURN true;
    END $$
"""


def make_watched(connection: Connection) -> None:
    """Make and publish the table `big`; a COPY of a key range, like WHOLE_RANGE, is watched."""
    connection.execute(_WATCH)
    connection.execute("CREATE DOMAIN watched AS int CHECK (watch())")
    connection.execute("CREATE TABLE big (id watched PRIMARY KEY, filler text)")
    connection.execute(
        "INSERT INTO big SELECT g, repeat('x', 300) FROM generate_series(1, %s) g", [ROWS]
    )
    connection.execute("CREATE PUBLICATION pub FOR TABLE big")
    # An index would compare with the bound once, and not at every row.
    for way in ("indexscan", "bitmapscan"):
        setting = f'ALTER DATABASE "{connection.info.dbname}" SET enable_{way} = off'
        connection.execute(setting.encode())


@contextmanager
def holding(connection: Connection, lock: int) -> Iterator[None]:
    """Hold a lock: with `WAIT` a COPY stands at its 20,000th row, with `TOO_OLD` it fails there."""
    connection.execute("SELECT pg_advisory_lock(%s)", [lock])
    try:
        yield
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", [lock])
