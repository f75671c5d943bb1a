"""Every failure the bridge can name, what it means and what to do about it.

An error carries its disposition, its advice and its exit code. The supervisor reads the first, the
command line prints the second and ends with the third; no retry hides anywhere else. The README's
table of exit codes is generated from these classes.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


def reason_of(error: BaseException) -> str:
    """Say what an exception says of itself; one that says nothing, like a timeout, by its name."""
    return str(error) or type(error).__name__


class Disposition(Enum):
    """What the supervisor does about an error."""

    RETRY = "connect again, with backoff, from the slot's confirmed position"
    STOP = "end the process; nothing unconfirmed is lost"


class BridgeError(Exception):
    """A failure with a name; subclasses say which."""

    disposition: ClassVar[Disposition] = Disposition.STOP
    exit_code: ClassVar[int] = 1
    advice: str = "Report this with the log around it."

    def __init__(self, what: str, *, advice: str | None = None) -> None:
        super().__init__(what)
        if advice is not None:
            self.advice = advice


class BadConfiguration(BridgeError):
    """An option, an environment variable or the configuration file makes no sense."""

    exit_code = 2
    advice = "See bridge --help."


class SourceNotReady(BridgeError):
    """PostgreSQL is reachable, and something the bridge needs there is missing or wrong."""

    exit_code = 3
    advice = "Run init.sh against the database; it sets up role, grants and publication."


class SourceRefused(BridgeError):
    """PostgreSQL does not let the bridge's role in."""

    exit_code = 3
    advice = "Check POSTGRES_BRIDGE_USER, POSTGRES_BRIDGE_PASSWORD and pg_hba.conf."


class SlotLost(BridgeError):
    """PostgreSQL discarded WAL the bridge had not read yet."""

    exit_code = 7
    advice = (
        "Raise max_slot_wal_keep_size and start with --on-lost-slot recreate: the slot is made anew"
        " and the gap is marked in the stream, where consumers take new snapshots."
    )


class SlotGone(BridgeError):
    """The slot was lost, and --on-lost-slot says to make it anew."""

    disposition = Disposition.RETRY
    exit_code = 7
    advice = "Raise max_slot_wal_keep_size; consumers take new snapshots at the marked gap."


class HistoryForked(BridgeError):
    """This server's history does not contain what the stream holds: a failover or restore lost it.

    `switch_lsn` is the last position that both share, where that is known.
    """

    exit_code = 13
    advice = (
        "Point the bridge at the server that has the missing transactions, if there is one."
        " If this server's history is the one to keep, start with --on-fork mark: the fork is"
        " marked in the stream, nothing after it is skipped, and consumers take new snapshots."
        " Until then every start ends here; nothing was stored, confirmed or created."
    )

    def __init__(self, what: str, *, switch_lsn: int | None = None) -> None:
        super().__init__(what)
        self.switch_lsn = switch_lsn


class ForkMarked(BridgeError):
    """The history forked, and the stream says so now, because of --on-fork mark."""

    disposition = Disposition.RETRY
    exit_code = 13
    advice = "Consumers take new snapshots at the mark."


class SlotBusy(BridgeError):
    """Another process reads from the slot; this one waits its turn."""

    disposition = Disposition.RETRY
    exit_code = 8
    advice = "Stop the other bridge, or leave this one waiting as its standby."


class SourceLost(BridgeError):
    """The connection to PostgreSQL broke or could not be made."""

    disposition = Disposition.RETRY
    exit_code = 4
    advice = "Check PG_HOST and PG_PORT, and that PostgreSQL is running."


class SourceStopping(SourceLost):
    """PostgreSQL ended a connection of the bridge, mostly because it is shutting down.

    Its WAL senders wait then until everything is confirmed, which takes the sync interval and
    longer. So the session ends by itself; what is not confirmed is sent again.
    """

    advice = "Nothing, if PostgreSQL is being restarted: the bridge connects again."


class MalformedWal(BridgeError):
    """Bytes from PostgreSQL that are not the protocol this bridge speaks."""

    exit_code = 9
    advice = (
        "The slot is not confirmed past this point. Report the message with the server's version."
    )


class SinkLost(BridgeError):
    """The connection to NATS broke, could not be made, or an acknowledgement did not come."""

    disposition = Disposition.RETRY
    exit_code = 5
    advice = "Check NATS_HOST and NATS_PORT, and that nats-server is running."


class SinkRefused(BridgeError):
    """NATS does not let the bridge in, or lacks what the bridge needs."""

    exit_code = 6
    advice = "Check NATS_BRIDGE_USER, NATS_BRIDGE_PASSWORD and the account's permissions."


class PublishRefused(BridgeError):
    """JetStream refused a change; nothing is stored behind it."""

    disposition = Disposition.RETRY
    exit_code = 5
    advice = "If the stream is full, raise its limits or let consumers catch up; the WAL is kept."


class ChainBroken(BridgeError):
    """Somebody else writes to the stream too, or it refused a change; none is stored behind it."""

    disposition = Disposition.RETRY
    exit_code = 5
    advice = (
        "The bridge goes on in batches, which do not mind other writers; nothing is lost. If the"
        " stream refused a change, the next line says why."
    )


class RowTooLarge(BridgeError):
    """A change fits neither into one NATS message nor into the object store."""

    exit_code = 10
    advice = (
        "Let the bridge's user publish to $O.oversize.> and manage stream OBJ_oversize,"
        " or raise max_payload of nats-server, and start the bridge again."
    )


class NothingListens(BridgeError):
    """No bridge answers at the HTTP address."""

    exit_code = 12
    advice = "Give --host and --port of a running bridge; its first log line names them."


class PortInUse(BridgeError):
    """The HTTP address is taken."""

    exit_code = 11
    advice = "Choose another with --port, or stop what listens there."
