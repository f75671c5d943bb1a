"""The judge of this folder, and hypothesis with the same examples at every run and no clock."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import settings

from examples.embedded import EmbeddedPostgres
from tests.property.oracle import Oracle, make_odd

settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.load_profile("steady")


@pytest.fixture(scope="session")
def oracle(postgres: EmbeddedPostgres) -> Iterator[Oracle]:
    database = postgres.create_database("values_oracle")
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        make_odd(connection)
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        yield Oracle(connection)
    postgres.drop_database(database)
