"""What a survey of both servers can find out, as plain values; `doctor` judges them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A server that could not be asked, and why."""

    why: str
    advice: str


@dataclass(frozen=True, slots=True)
class ClockReading:
    """How far a server's clock is ahead of this machine's, and how sure that is."""

    ahead_seconds: float
    uncertainty_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFinding:
    """A published table as far as its rows can be told apart and read."""

    name: str
    replica_identity: str
    has_key: bool
    may_read: bool
    grant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFinding:
    """The slot as PostgreSQL shows it."""

    plugin: str | None
    database: str | None
    in_this_database: bool
    active_pid: int | None
    wal_status: str | None
    retained_bytes: int
    is_failover: bool = False
    """Whether standbys may hold a copy of it; PostgreSQL 17 and newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationFinding:
    """Which operations the publication carries."""

    missing_operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """PostgreSQL as the bridge's own role sees it."""

    version: str
    version_number: int
    is_standby: bool
    encrypted: bool
    wal_level: str
    slots_used: int
    slots_max: int
    senders_used: int
    senders_max: int
    role: str
    may_replicate: bool
    keep_size_mib: int
    idle_slot_timeout_seconds: int
    standby_slots: tuple[str, ...] = ()
    """Physical slots: the standbys that could be promoted."""
    synchronized_standby_slots: str | None = None
    """The standbys that logical decoding waits for; None before PostgreSQL 17."""
    publication: PublicationFinding | None
    tables: tuple[TableFinding, ...]
    slot: SlotFinding | None
    clock: ClockReading


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFinding:
    """One stream or bucket: the risks its settings bring, or that it is missing."""

    name: str
    exists: bool
    problems: tuple[tuple[Verdict, str, str], ...] = ()
    reserves_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFacts:
    """NATS as the bridge's own user sees it."""

    version: str
    encrypted: bool
    jetstream: Unreachable | None
    streams: tuple[StoreFinding, ...] = ()
    buckets: tuple[StoreFinding, ...] = ()
    storage_free: int | None = None
    clock: ClockReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that could be found out, and what it was asked for."""

    slot: str
    publication: str
    source: SourceFacts | Unreachable
    sink: SinkFacts | Unreachable
