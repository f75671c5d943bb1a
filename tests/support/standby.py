"""A second PostgreSQL for the same data: a standby to promote, or a copy to go back to."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psycopg

from examples.embedded import EmbeddedPostgres
from tests.support.bridge import wait_for

_STANDBY_SLOT = "standby"


def make_standby(primary: EmbeddedPostgres, folder: Path) -> EmbeddedPostgres:
    """Start a standby that follows the primary through a physical slot."""
    standby = base_backup(primary, folder)
    return _follow(standby, primary)


def base_backup(primary: EmbeddedPostgres, folder: Path) -> EmbeddedPostgres:
    """Copy a running server with `pg_basebackup`; the copy has no slots, and is not started."""
    backup = _beside(primary, folder)
    _run(primary, "pg_basebackup", "--host", primary.sockets, "--port", primary.port,
         "--username", primary.superuser, "--pgdata", backup.data,
         "--checkpoint", "fast", "--no-sync")  # fmt: skip
    _include_own_settings(backup, primary)
    return backup


def rewind(old: EmbeddedPostgres, primary: EmbeddedPostgres) -> None:
    """Let a former primary follow the present one: `pg_rewind` takes back what it alone has."""
    source = f"host={primary.sockets} port={primary.port} user={primary.superuser} dbname=postgres"
    _run(primary, "pg_rewind", "--target-pgdata", old.data, "--source-server", source, "--no-sync")
    _include_own_settings(old, primary)
    (old.data / "postgresql.auto.conf").write_text("")
    _follow(old, primary)


def _follow(standby: EmbeddedPostgres, primary: EmbeddedPostgres) -> EmbeddedPostgres:
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot(%s)", [_STANDBY_SLOT])
    (standby.data / "standby.signal").touch()
    conninfo = f"host={primary.sockets} port={primary.port} user={primary.superuser}"
    standby.settings |= {
        "primary_conninfo": f"{conninfo} dbname={primary.superuser}",
        "primary_slot_name": _STANDBY_SLOT,
        "hot_standby_feedback": "on",
        "wal_retrieve_retry_interval": "200ms",
    }
    return standby.start()


def begin_archive(server: EmbeddedPostgres) -> Path:
    """Let a server archive its WAL from now on, and say where."""
    archive = server.folder / "archive"
    archive.mkdir()
    if user := server.user():
        os.chown(archive, user.pw_uid, user.pw_gid)
    server.settings |= {"archive_mode": "on", "archive_command": f'cp %p "{archive}/%f"'}
    server.restart()
    return archive


def finish_archive(server: EmbeddedPostgres) -> None:
    """Wait until all that a server has written is in its archive."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        segment = _one(connection, "SELECT pg_walfile_name(pg_switch_wal())")
    done = server.data / "pg_wal" / "archive_status" / f"{segment}.done"
    wait_for(done.exists, f"segment {segment} in the archive")


def restore_archive(backup: EmbeddedPostgres, archive: Path, target: str) -> None:
    """Recover a backup up to an LSN, on which it becomes a primary: point-in-time recovery."""
    (backup.data / "recovery.signal").touch()
    backup.settings |= {
        "restore_command": f'cp "{archive}/%f" %p',
        "recovery_target_lsn": target,
        "recovery_target_inclusive": "off",
        "recovery_target_action": "promote",
    }
    backup.start()
    with psycopg.connect(backup.dsn(), autocommit=True) as connection:
        wait_for(lambda: _one(connection, "SELECT NOT pg_is_in_recovery()"), "the recovery to end")


def copy_cold(server: EmbeddedPostgres, folder: Path) -> Path:
    """Stop a server, copy its data as a storage snapshot does, and start it again."""
    server.stop()
    shutil.copytree(server.data, folder, symlinks=True)
    server.start()
    return folder


def restore_cold(server: EmbeddedPostgres, copy: Path) -> None:
    """Go back to a copy: the same timeline, slots and system identifier, and less history."""
    server.stop()
    shutil.rmtree(server.data)
    shutil.copytree(copy, server.data, symlinks=True)
    if user := server.user():
        for path in (server.data, *server.data.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
    server.start()


def wait_replayed(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """Wait until the standby has replayed all that the primary has written."""
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        wait_for(lambda: _one(connection, query, row[0]), "the standby to replay")


def sync_slots(primary: EmbeddedPostgres, standby: EmbeddedPostgres, slot: str) -> None:
    """Bring a failover slot over; it stays temporary until the standby has what it needs."""
    query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:

        def synced() -> bool:
            with psycopg.connect(primary.dsn(), autocommit=True) as writing:
                # What makes a snapshot of running transactions, from which decoding can begin.
                writing.execute("SELECT pg_log_standby_snapshot()")
            wait_replayed(primary, standby)
            connection.execute("SELECT pg_sync_replication_slots()")
            return bool(_one(connection, query, slot))

        wait_for(synced, f"slot {slot} on the standby")


def cut_off(standby: EmbeddedPostgres) -> None:
    """Let the standby receive nothing any more."""
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
        connection.execute("SELECT pg_reload_conf()")
        query = "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"
        wait_for(lambda: _one(connection, query), "the receiver to end")


def promote(standby: EmbeddedPostgres) -> None:
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        assert _one(connection, "SELECT pg_promote(true, 120)")


def _run(server: EmbeddedPostgres, program: str, *options: object) -> None:
    """Run a program of PostgreSQL as the user that the servers run as."""
    user = server.user()
    subprocess.run(
        [server.binaries / program, *map(str, options)],
        check=True,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        cwd=server.folder,
    )


def _beside(primary: EmbeddedPostgres, folder: Path) -> EmbeddedPostgres:
    """Describe a server of the same binaries and passwords, and make its folders."""
    other = EmbeddedPostgres(folder, durable=False, binaries=primary.binaries)
    other.password = primary.password
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    user = primary.user()
    for made in (other.data, other.sockets):
        made.mkdir(mode=0o700)
        if user:
            os.chown(made, user.pw_uid, user.pw_gid)
    return other


def _include_own_settings(other: EmbeddedPostgres, primary: EmbeddedPostgres) -> None:
    file = other.data / "postgresql.conf"
    file.write_text(file.read_text().replace(str(primary.folder), str(other.folder)))


def _one(connection: psycopg.Connection[tuple[object, ...]], query: str, *values: object) -> object:
    row = connection.execute(query, values).fetchone()
    return row[0] if row else None
