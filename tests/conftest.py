"""Real servers for every test folder.

One PostgreSQL serves the whole run, with a fresh database per test; a NATS server starts in a
fraction of a second, so a test that writes streams has its own. A test that stops or kills
PostgreSQL makes its own server too, in `server_folder`: pytest's `tmp_path` is closed to other
users, and PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest

from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder

# A busy machine is slow, not wrong: no example has a time limit.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture(scope="session")
def postgres() -> Iterator[EmbeddedPostgres]:
    """The run's PostgreSQL; leave its settings and its life alone."""
    with temporary_folder() as folder, EmbeddedPostgres(folder, durable=False) as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[EmbeddedNats]:
    """One NATS server for the run, for tests that leave nothing behind in it."""
    with temporary_folder() as folder, EmbeddedNats(folder) as server:
        yield server


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A folder in which a test may start servers of its own."""
    with temporary_folder() as folder:
        yield folder


@pytest.fixture
def own_postgres(server_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL that the test may stop, kill and configure."""
    with EmbeddedPostgres(server_folder / "postgres", durable=False) as server:
        yield server


@pytest.fixture
def nats(server_folder: Path) -> Iterator[EmbeddedNats]:
    """A NATS server that the test has to itself."""
    with EmbeddedNats(server_folder / "nats") as server:
        yield server


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A fresh database on the run's PostgreSQL; slots left in it are dropped with it."""
    name = postgres.create_database(f"test_{secrets.token_hex(4)}")
    yield name
    postgres.drop_database(name)


@pytest.fixture
def connection(postgres: EmbeddedPostgres, database: str) -> Iterator[Connection]:
    """A superuser's autocommit connection to the test's database."""
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connected:
        yield connected
