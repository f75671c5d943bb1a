"""Storing: what nats-server does for one message, and what ids and compression are of that.

The raw writer of the drains, into streams that differ in one setting each. All messages are as
long; without ids the same bytes travel under a header that JetStream does not know. What the server
spends on a message, no bridge can save, and on two cores it is the larger part of a drain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.ceilings import raw_writer
from benchmarks.scenario import Family, Figures, Scenario, Setting
from schemas.codecs import MSGPACK

MESSAGES = 200_000

BODY = MSGPACK.encode(
    {
        "subject": "cdc.customers.insert",
        "schema": "public",
        "table": "customers",
        "operation": "INSERT",
        "relation_id": 16_400,
        "schema_revision": 1,
        "msg_id": "191bfd0-customers-insert",
        "lsn": 26_329_040,
        "commit_lsn": 26_329_400,
        "commit_ts": "2025-12-08T13:45:21.719719Z",
        "xid": 777,
        "seq": 17,
        "data": {
            "id": 12_345,
            "name": "Customer number 12345",
            "email": "customer12345@example.test",
            "balance": "2345.25",
            "active": True,
            "created_at": "2025-01-01T03:25:45Z",
            "note": "ordered 26 pieces and wants them delivered by noon",
        },
        "last": False,
    }
)


def store(*, with_ids: bool, compressed: bool) -> Callable[[Setting], Iterator[Figures]]:
    """Measure one kind of stream beside the one the bridge makes, in turns."""

    def measure(setting: Setting) -> Iterator[Figures]:
        count = setting.scaled(MESSAGES)
        for _ in range(setting.rounds):
            made = raw_writer(BODY, count)
            other = raw_writer(BODY, count, with_ids=with_ids, compressed=compressed)
            yield {
                **other,
                "made_per_s": made["writer_per_s"],
                "made_nats_cpu_us": made["writer_nats_cpu_us"],
                "cpu_ratio": other["writer_nats_cpu_us"] / made["writer_nats_cpu_us"],
            }

    return measure


FAMILY = Family(
    title="What JetStream spends on a message",
    columns={
        "writer_per_s": "messages/s",
        "writer_nats_cpu_us": "NATS us",
        "made_per_s": "as the bridge makes it, messages/s",
        "made_nats_cpu_us": "NATS us",
        "cpu_ratio": "NATS us, ratio",
    },
    scenarios=(
        Scenario(
            name="store-no-ids",
            about="a stream that is not asked to know message ids again",
            measure=store(with_ids=False, compressed=True),
        ),
        Scenario(
            name="store-no-s2",
            about="a stream that does not compress",
            measure=store(with_ids=True, compressed=False),
        ),
        Scenario(
            name="store-bare",
            about="neither",
            measure=store(with_ids=False, compressed=False),
        ),
    ),
)
