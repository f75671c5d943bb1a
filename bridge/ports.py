"""What the pipeline needs of the outside, without a word about who does it.

One folder implements each: `postgres/` the source, `jetstream/` the sink and the oversize store;
`app` joins both into the shapes. A test may put a double in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from bridge.compression import StoredDictionary
from bridge.outbox import Message
from bridge.protocol.messages import Relation
from schemas.compression import Dictionary
from schemas.ddl import DdlEvent, DdlKind
from schemas.events import Place
from schemas.names import TableName
from schemas.shapes import TableShape


class Source(Protocol):
    """The WAL, from the slot's confirmed position on."""

    async def read(self) -> list[bytes]:
        """Wait for replication frames and give them in order."""

    def confirm(self, lsn: int, *, ask: bool = False) -> None:
        """Tell PostgreSQL that everything before `lsn` is stored; repeating it is harmless.

        `ask` requests a keepalive, which says how far PostgreSQL has sent.
        """


class Sink(Protocol):
    """The stream. What comes behind a message that was refused is refused too."""

    max_payload: int

    last_sequence: int

    async def send(
        self,
        messages: Sequence[Message],
        content_type: str,
        *,
        close: bool,
        on_stored: Callable[[int], None],
    ) -> None:
        """Send in order and call back as more of what was sent is stored.

        Returns when more may be sent; with `close`, when everything is stored. After an error only
        the stream knows what it holds.
        """

    async def watch(self) -> None:
        """Raise when the connection is lost, also while there is nothing to send.

        A server that comes back may have forgotten what it acknowledged last; the next session
        finds that out.
        """


class Shapes(Protocol):
    """What is known of tables outside the WAL."""

    async def shape(self, relation: Relation, place: Place) -> TableShape:
        """Say what a relation looks like to a change at this place."""

    async def altered(
        self, relation_id: int, place: Place, kinds: Collection[DdlKind]
    ) -> TableShape | None:
        """Look at a table that DDL touched at this place; None if there is nothing to announce.

        `kinds` is what DDL is reported to have done to it.
        """

    def described(self, relation_id: int) -> None:
        """Note that the WAL describes a table, which it does again whenever it was altered."""

    def truncated(self, relation_id: int, xid: int) -> None:
        """Note that a transaction sent a TRUNCATE of a table."""

    async def confirmed(self, events: Sequence[DdlEvent], place: Place) -> list[DdlEvent]:
        """Give those events of a message at this place that the catalog bears out."""

    async def register(self, shape: TableShape, lsn: int) -> int:
        """Give the revision of an entry for a shape that the WAL has at `lsn`; idempotent."""

    async def announced(self, table: TableName) -> str | None:
        """Give the fingerprint of the last shape the stream carries."""

    def told(self, shape: TableShape) -> None:
        """Note that the stream carries a shape, or has it queued: only then is it told."""


class Dictionaries(Protocol):
    """Where a table's zstd dictionaries are, for whoever reads its messages."""

    async def newest(self, table: TableName) -> StoredDictionary | None:
        """Find the dictionary that was stored last."""

    async def put(
        self, table: TableName, dictionary: Dictionary, *, fingerprint: str, content_type: str
    ) -> None:
        """Store a dictionary durably; storing the same one again is harmless."""


class Oversize(Protocol):
    """Where bodies go that no message can carry."""

    async def put(self, name: str, body: bytes) -> None:
        """Store a body durably; putting the same one again is harmless."""
