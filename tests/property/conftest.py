"""The judge of this folder, and hypothesis with the same examples at every run and no clock."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql

from examples.embedded import EmbeddedPostgres
from tests.property.oracle import MORE_TYPES, ODD_DEFAULTS, Oracle

settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def oracle(postgres: EmbeddedPostgres) -> Iterator[Oracle]:
    database = postgres.create_database("values_oracle")
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        for statement in MORE_TYPES:
            connection.execute(statement)
        for name, value in ODD_DEFAULTS.items():
            connection.execute(
                sql.SQL("ALTER DATABASE values_oracle SET {} = {}").format(
                    sql.Identifier(name), sql.SQL(value if "," in value else f"'{value}'")
                )
            )
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        yield Oracle(connection)
    postgres.drop_database(database)
