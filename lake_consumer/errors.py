"""What can go wrong, in one sentence, with what to do about it.

Every error that reaches a person is a `LakeError`: its text says what failed and its `advice` says
what to do. Nothing here retries: the disposition says whether `run` waits and goes on, which
`outages` does. Every other command ends with the exit code. The README's table of exit codes is
generated from these classes.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


def reason_of(error: BaseException) -> str:
    """Say what an exception says of itself; one that says nothing, like a timeout, by its name."""
    return str(error) or type(error).__name__


class Disposition(Enum):
    """What `run` does about an error."""

    RETRY = "wait, and go on from where the tables are"
    STOP = "end the process; nothing is lost"


class LakeError(Exception):
    """A failure a person can act on."""

    disposition: ClassVar[Disposition] = Disposition.STOP
    advice: str = "Run again with --verbose to see where it comes from."
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        if advice is not None:
            self.advice = advice


class BadOption(LakeError):
    """A flag or an environment variable that cannot be used."""

    advice = "lake-consumer --help lists every option with its environment variable."
    exit_code = 2


class NatsUnreachable(LakeError):
    """No NATS server answers."""

    disposition = Disposition.RETRY
    advice = "Check NATS_URL (or NATS_HOST and NATS_PORT), and that nats-server is running."
    exit_code = 3


class NoQuorum(NatsUnreachable):
    """NATS answers, and JetStream has no leader at the moment."""

    advice = (
        "The servers are electing a leader: wait. If it lasts, too few servers of the cluster are "
        "up to agree on one: start them."
    )


class NatsRefused(NatsUnreachable):
    """NATS does not let the lake's user in, or lacks what the lake needs."""

    disposition = Disposition.STOP
    advice = "Check NATS_LAKE_USER with NATS_LAKE_PASSWORD, and the user's permissions."
    exit_code = 6


class StreamMissing(LakeError):
    """JetStream has no CDC stream yet."""

    disposition = Disposition.RETRY
    advice = "Start the bridge: it creates the stream. `lake-consumer run` would wait for it."
    exit_code = 3


class MessagesMissing(LakeError):
    """Messages the lake has not read are gone from the stream."""

    advice = (
        "They expired or were deleted before they were read. `lake-consumer run` and `drain` heal "
        "that with new snapshots; raise the stream's max age or max bytes."
    )


class StreamShorter(LakeError):
    """The stream ends before what the lake has already applied."""

    disposition = Disposition.RETRY
    advice = (
        "If NATS lost its newest messages (power failure, restored disk), wait: the bridge sends "
        "them again. If stream CDC was deleted, start a new lake (an empty LAKE_WAREHOUSE)."
    )
    exit_code = 3

    @classmethod
    def than(cls, applied: int, last: int) -> StreamShorter:
        return cls(f"the lake has applied stream sequence {applied}, but the stream ends at {last}")


class StreamReplaced(LakeError):
    """The stream holds something else than the lake has applied."""

    advice = (
        "Nothing was applied. Stream CDC lost messages or was replaced; start a new lake (an empty "
        "LAKE_WAREHOUSE), or run one lake for each source."
    )


class UndecodableMessage(LakeError):
    """A stored message that does not follow the contract."""

    advice = (
        "Nothing was skipped and nothing was applied from this batch. Check that bridge and "
        "lake_consumer are of the same version, and that nothing else publishes under `cdc.`."
    )


class OutOfOrder(LakeError):
    """The stream holds a message at or below a position that its source had reached before it."""

    advice = (
        "Nothing of this batch was applied; the mirrors show what is before it. Find out what "
        "wrote it (`nats stream get CDC SEQUENCE`): an old session of the bridge, or a copy of "
        "messages. Stop that, delete the messages that do not belong there (`nats stream rmm CDC "
        "SEQUENCE`) and start again: the lake takes them as a gap and rebuilds its mirrors."
    )
    exit_code = 5


class ShapeUnknown(LakeError):
    """A change names a revision of its table's shape that nobody has any more."""

    advice = (
        "The shape expired from the stream and from the KV bucket `schemas`. "
        "Restart the bridge so that it announces the shape anew."
    )


class IncompatibleShape(LakeError):
    """A change of shape that Iceberg cannot follow in place."""

    advice = "`lake-consumer resync TABLE` builds the mirror anew from a snapshot."


class SnapshotGone(LakeError):
    """A snapshot that is not what its meta says, or not there any more."""

    advice = "Another one is asked for by itself."


class NoSnapshot(LakeError):
    """A table waits for a snapshot that nobody takes."""

    advice = (
        "Start the bridge that publishes it, or look at its log. Nothing is lost: start again to "
        "go on. Where the stream holds the whole history, --first-sight stream needs no snapshot."
    )
    exit_code = 4


class LakeBusy(LakeError):
    """Somebody else writes to the lake's tables."""

    advice = (
        "One consumer alone follows the stream into a lake. Stop the other one; nothing of this "
        "batch is shown, and it is taken again at the next start."
    )


class NoLake(LakeError):
    """There is no lake where one was looked for, or its catalog cannot be read."""

    advice = "Check LAKE_WAREHOUSE and LAKE_CATALOG_URI (--warehouse, --catalog-uri)."


class NoLakeYet(NoLake):
    """No consumer has made a lake there so far."""


class CatalogLocked(NoLake):
    """A catalog in a file is written by another process for longer than anybody waits."""

    disposition = Disposition.RETRY
    advice = (
        "A consumer holds it for moments only: find the process (`fuser` names those that have the "
        "file open), or run the command again."
    )


class CatalogAway(NoLake):
    """The database or service of the catalog, or the object store, does not answer."""

    disposition = Disposition.RETRY
    advice = (
        "Check that the catalog of LAKE_CATALOG_URI and the storage of LAKE_WAREHOUSE can be "
        "reached from here."
    )


class DiskFull(LakeError):
    """A disk that the lake writes to has no room left."""

    disposition = Disposition.RETRY
    advice = (
        "Free space where LAKE_WAREHOUSE, its catalog and Spark's temporary files (TMPDIR, "
        "spark.local.dir) are. `lake-consumer run` goes on by itself once there is room."
    )


class NotReadable(LakeError):
    """A table, or the lake, cannot be shown as of the cut that was asked for."""

    advice = "`lake-consumer cuts` lists the states that can be read."


class NotReached(NotReadable):
    """The lake's newest cut is before the moment that was asked for."""

    advice = "--wait SECONDS waits for it; --at latest-cut reads the newest state there is."


class UnknownTable(LakeError):
    """SQL names a table that the lake does not have."""

    advice = "`lake-consumer status` lists the tables."


class NotGone(LakeError):
    """`forget` was asked to forget a table that PostgreSQL still publishes."""

    advice = "Drop it or remove it from the publication first; --force forgets it anyway."


class QueryFailed(LakeError):
    """SQL that cannot be run."""

    advice = "The SQL is DuckDB's; names that are not lower case want double quotes."


class OutputFailed(LakeError):
    """Standard output cannot be written."""

    advice = "What was printed is incomplete. Check the disk or the program that reads it."


class OutputClosed(LakeError):
    """The program that reads standard output has closed it, as `head` does."""

    advice = ""
    exit_code = 141  # as a shell reports a program that SIGPIPE ended


class SparkFailed(LakeError):
    """Spark did not start, or a job of it failed."""

    advice = "Spark's own log is named in the line above; it holds the cause."


class JavaMissing(LakeError):
    """No Java runtime that Spark can use."""

    advice = (
        "Install Java 17 or newer, set JAVA_HOME, or install the package with its extra `lake`."
    )


class PostgresFailed(LakeError):
    """PostgreSQL cannot be reached, or refuses what `verify` asks of it."""

    advice = "Check PG_HOST, PG_PORT, PG_DB, POSTGRES_BRIDGE_USER and POSTGRES_BRIDGE_PASSWORD."
    exit_code = 3


class WrongDatabase(LakeError):
    """`verify` was pointed at a database that these tables do not come from."""

    advice = "Set PG_HOST, PG_PORT and PG_DB as the bridge has them that publishes these tables."


class LakeNotThere(LakeError):
    """The lake does not reach the state that it is to be compared at."""

    advice = "Start `lake-consumer run` (or `drain`) and the bridge, and verify again."


class LakeDiffers(LakeError):
    """Lake and database are not equal."""

    advice = (
        "`lake-consumer verify --heal` reads these rows from PostgreSQL again; "
        "where a whole table is wrong, rebuild it with `lake-consumer resync TABLE`."
    )
    exit_code = 4


class HealRefused(LakeError):
    """Rows were not put right, because the table moved on meanwhile or too many are wrong."""

    advice = "Stop `lake-consumer run` while healing, or rebuild the table: `resync TABLE`."
