"""Subjects, keys and message ids: where a message goes and how a resend is recognised."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from schemas.names import BadToken, TableName, escape, unescape

CDC = "cdc"
INIT = "init"
LOGICAL_MESSAGES = "_message"
GAP_PREFIX = "bridge-gap"
"""Prefix of the bridge's own message: changes are missing here, so take new snapshots."""

DDL_PREFIX = "bridge-ddl"
"""Prefix of the bridge's own message: what DDL did to published tables (`schemas.ddl`)."""

FORK_PREFIX = "bridge-fork"
"""Prefix of the bridge's own message: messages before it never happened (`schemas.forks`)."""

SESSION_PREFIX = "bridge-session-"
"""Prefix of the bridge's own messages that open a session in a stream with several writers.

They tell consumers nothing: such a message repeats the place of its slot's last message.
"""

OWN_PREFIXES = "bridge-"
"""Prefixes that begin like this are the bridge's own: what SQL writes under them is renamed."""

Operation = Literal["INSERT", "UPDATE", "DELETE", "TRUNCATE"]
OPERATIONS: tuple[Operation, ...] = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")
SCHEMA_OPERATION = "SCHEMA"
MESSAGE_OPERATION = "MESSAGE"
"""What `operation` says in messages that are no change of a row or table."""

_VERBS = {operation.lower(): operation for operation in OPERATIONS}

SCHEMA_SUBJECTS = f"{CDC}.*.schema"
"""All announcements of shapes; a logical message of prefix `schema` is among them."""

SNAPSHOT_REQUESTS = "snapshot.request.>"
SNAPSHOT_CANCELS = "snapshot.cancel.>"
STORED_SNAPSHOT_REQUESTS = f"{INIT}.request.>"


def change_subject(table: TableName, operation: Operation) -> str:
    return f"{CDC}.{table.token}.{operation.lower()}"


def schema_subject(table: TableName) -> str:
    return f"{CDC}.{table.token}.schema"


def schema_filter() -> str:
    """The shapes of all tables."""
    return f"{CDC}.*.schema"


def is_schema_subject(subject: str) -> bool:
    """Whether a table's schema comes here; a logical message may have the prefix `schema`."""
    return subject.endswith(".schema") and not is_message_subject(subject)


def is_message_subject(subject: str) -> bool:
    return subject.startswith(f"{CDC}.{LOGICAL_MESSAGES}.")


def is_own_subject(subject: str) -> bool:
    """Whether only the bridge itself writes here."""
    return subject.startswith(message_subject(OWN_PREFIXES))


def message_subject(prefix: str) -> str:
    return f"{CDC}.{LOGICAL_MESSAGES}.{escape(prefix)}"


def session_prefix(source: str) -> str:
    return f"{SESSION_PREFIX}{source_token(source)}"


def session_subject(source: str) -> str:
    """Where the sessions of one slot open."""
    return message_subject(session_prefix(source))


def is_session_subject(subject: str) -> bool:
    return subject.startswith(message_subject(SESSION_PREFIX))


def sql_prefix(prefix: str) -> str:
    """Give the prefix under which a message written by SQL is published.

    Any database role can write any prefix. Consumers act on the bridge's own, so those are marked.
    """
    return f"sql-{prefix}" if prefix.startswith(OWN_PREFIXES) else prefix


def message_filter() -> str:
    """All logical messages, of every database that shares the stream."""
    return f"{CDC}.{LOGICAL_MESSAGES}.*"


def table_filter(table: TableName) -> str:
    """All that the CDC stream carries of one table."""
    return f"{CDC}.{table.token}.*"


def snapshot_request_subject(table: TableName) -> str:
    return f"snapshot.request.{table.token}"


def stored_snapshot_request_subject(table: TableName) -> str:
    """Where a request waits in the INIT stream until the bridge has served it."""
    return f"{INIT}.request.{table.token}"


def snapshot_cancel_subject(table: TableName) -> str:
    return f"snapshot.cancel.{table.token}"


def snapshot_progress_subject(table: TableName) -> str:
    """Where a running snapshot says every second how far it is; not stored."""
    return f"snapshot.progress.{table.token}"


def snapshot_chunks_filter(table: TableName, snapshot_id: str) -> str:
    """All chunks of one snapshot."""
    return f"{INIT}.snap.{table.token}.{snapshot_id}.*"


def snapshot_start_subject(table: TableName) -> str:
    return f"{INIT}.start.{table.token}"


def snapshot_chunk_subject(table: TableName, snapshot_id: str, chunk: int) -> str:
    return f"{INIT}.snap.{table.token}.{snapshot_id}.{chunk}"


def snapshot_meta_subject(table: TableName) -> str:
    return f"{INIT}.meta.{table.token}"


def snapshot_error_subject(table: TableName) -> str:
    return f"{INIT}.error.{table.token}"


@dataclass(frozen=True, slots=True)
class ChangeSubject:
    """A row change of a table."""

    table: TableName
    operation: Operation


@dataclass(frozen=True, slots=True)
class SchemaSubject:
    """A table's new shape."""

    table: TableName


@dataclass(frozen=True, slots=True)
class MessageSubject:
    """A logical message."""

    prefix: str


def parse_cdc_subject(subject: str) -> ChangeSubject | SchemaSubject | MessageSubject:
    """Say what a message of the CDC stream is about; `BadToken` if it is none of ours."""
    match subject.split("."):
        case ["cdc", "_message", prefix]:
            return MessageSubject(unescape(prefix))
        case ["cdc", token, "schema"]:
            return SchemaSubject(TableName.from_token(token))
        case ["cdc", token, verb] if verb in _VERBS:
            return ChangeSubject(TableName.from_token(token), _VERBS[verb])
    raise BadToken(f"{subject!r} is not a subject of the CDC stream")


def message_id(lsn: int, token: str, verb: str, repeat: int = 0) -> str:
    """Name a message by the WAL alone, so that a resend after any restart has the same id.

    The rows of one COPY share one LSN; `repeat` counts them from the second on.
    """
    suffix = f"-{repeat}" if repeat else ""
    return f"{lsn:x}-{token}-{verb}{suffix}"


def source_token(source: str) -> str:
    """Tell slots apart in the id of a logical message, which has no table to do so."""
    return hashlib.sha256(source.encode()).hexdigest()[:8]


def chunk_id(snapshot_id: str, table: TableName, chunk: int) -> str:
    return f"{snapshot_id}-{table.token}-{chunk}"
