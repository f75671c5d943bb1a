"""Compression: how much smaller, with and without a dictionary, and what it costs.

Orders as shops have them: names, streets and words that repeat, ids, amounts and times that do not.
A bridge without `--zstd` gives the bodies, which are compressed here one by one, both ways and by
the bridge's own press. Then a bridge with `--zstd=all` stores the same orders; everything is
expanded as a consumer would, and must be the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import nats
from nats.js.errors import NotFoundError
from psycopg.sql import SQL

from benchmarks.loads import in_transactions
from benchmarks.measure import CpuMeter
from benchmarks.scenario import Family, Figures, Scenario, Setting, Wrong
from benchmarks.snapshot import take
from benchmarks.stack import Stack, running_stack, wait_until
from bridge.compression import Press
from schemas.compression import Dictionary
from schemas.streams import DICTIONARIES_BUCKET
from tests.support.snapshots import read_snapshots
from tests.support.stream import StoredMessage, read_changes

TABLE = "orders"
ORDERS = 20_000
Part = Literal["changes", "chunks"]

_CREATE = """
    CREATE TABLE orders (
        id uuid PRIMARY KEY, number bigint, customer text, email text, street text, city text,
        status text, amount numeric(12, 2), items jsonb, placed_at timestamptz, note text)
"""
# Nothing here is random: a round and the next one, and two machines, compress the same bytes.
_ORDER = """
    INSERT INTO orders SELECT
        md5('order' || n)::uuid, 1000000 + n,
        first || ' ' || last, lower(first || '.' || last) || n % 89 || '@example.test',
        (n * 7919) % 240 + 1 || ' ' || street, city,
        (ARRAY['placed', 'paid', 'shipped', 'delivered', 'returned'])[n * 31 % 5 + 1],
        (n * 7907 % 50000) / 100.0 + 3,
        jsonb_build_array(jsonb_build_object('sku', upper(left(md5('sku' || n * 17 % 4001), 8)),
            'quantity', n % 4 + 1, 'price', (n * 613 % 9900) / 100.0)),
        timestamptz '2025-03-01 08:00+00' + n * interval '7.3 seconds',
        CASE WHEN n % 3 = 0 THEN (ARRAY['please ring twice', 'leave it with the neighbours',
            'gift, no invoice', 'before noon if possible'])[n * 13 % 4 + 1] END
    FROM generate_series(i * 100 + 1, i * 100 + 100) AS n,
        LATERAL (SELECT (ARRAY['Anna', 'Ben', 'Chloe', 'Deepak', 'Elena', 'Femi', 'Greta', 'Hiro',
            'Ines', 'Jonas', 'Katja', 'Luis'])[n * 5 % 12 + 1] AS first,
            (ARRAY['Andersen', 'Bauer', 'Costa', 'Dubois', 'Eriksson', 'Fischer', 'Garcia',
            'Haddad', 'Ivanova', 'Jensen', 'Kowalski'])[n * 3 % 11 + 1] AS last,
            (ARRAY['Harbour Street', 'Station Road', 'Mill Lane', 'Church Walk', 'Park Avenue',
            'Old Market', 'Kings Way'])[n * 11 % 7 + 1] AS street,
            (ARRAY['Oslo', 'Lisbon', 'Hamburg', 'Lyon', 'Turin', 'Gdansk', 'Cork', 'Ghent'])
            [n * 29 % 8 + 1] AS city) AS words
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """What one bridge made of the orders, its CPU for each of them, and its dictionary."""

    messages: Sequence[StoredMessage]
    cpu_us: float
    dictionary: Dictionary | None


def compression(part: Part) -> Callable[[Setting], Iterator[Figures]]:
    """Measure the compression of single changes, or of the chunks of a snapshot."""

    def measure(setting: Setting) -> Iterator[Figures]:
        count = setting.scaled(ORDERS) // 100 * 100
        with running_stack() as stack:
            stack.execute(_CREATE)
            stack.publish()
            in_transactions(stack.connection, count // 100, SQL(_ORDER))
            if part == "chunks":
                stack.forget_wal()
            stack.end_load()
            for _ in range(setting.rounds):
                yield measure_round(stack, part, count)

    return measure


def measure_round(stack: Stack, part: Part, count: int) -> Figures:
    plain = store(stack, part, count)
    pressed = store(stack, part, count, "--zstd=all")
    if rows_of(plain.messages) != rows_of(pressed.messages):
        raise Wrong("what was compressed does not expand to what it was")
    if pressed.dictionary is None:
        raise Wrong("the bridge trained no dictionary")
    bodies = [message.body for message in plain.messages]
    return {
        "messages": len(bodies),
        "message_bytes": sum(map(len, bodies)) / len(bodies),
        **squeeze(bodies, pressed.dictionary),
        "plain_cpu_us": plain.cpu_us,
        "zstd_cpu_us": pressed.cpu_us,
    }


def store(stack: Stack, part: Part, count: int, *flags: str) -> Stored:
    """Let a bridge store the orders, as changes or as a snapshot."""
    with stack.bridge(*flags) as bridge:
        url = bridge.server.url
        if part == "chunks":
            wait_until(lambda: 'msg="serving snapshots"' in bridge.process.said(), "snapshots")
        meter = CpuMeter(bridge=bridge.pid)
        if part == "changes":
            bridge.wait_stored()
        else:
            asyncio.run(take(url, TABLE))
        cpu = meter.microseconds_each(count)["bridge_cpu_us"]
        if part == "changes":
            bridge.demand({f"cdc.{TABLE}.insert": count})
            messages = read_changes(url)
        else:
            (snapshot,) = read_snapshots(url).values()
            snapshot.assert_whole()
            messages = snapshot.chunks
        return Stored(messages, cpu, asyncio.run(newest_dictionary(url)))


async def newest_dictionary(url: str) -> Dictionary | None:
    """Give the table's dictionary, where the bridge has trained one."""
    async with await nats.connect(url) as client:
        try:
            stored = await client.jetstream().get_last_msg(
                f"KV_{DICTIONARIES_BUCKET.name}", f"$KV.{DICTIONARIES_BUCKET.name}.{TABLE}.*"
            )
        except NotFoundError:
            return None
        return Dictionary(stored.data or b"")


def rows_of(messages: Sequence[StoredMessage]) -> list[Any]:
    """Give the rows that messages carry, in their order."""
    carried = [message.fields["data"] for message in messages]
    return [row for data in carried for row in (data if isinstance(data, list) else [data])]


def squeeze(bodies: Sequence[bytes], dictionary: Dictionary) -> Figures:
    """Compress bodies one by one both ways: how many times smaller, and CPU for each."""
    total = sum(map(len, bodies))
    figures: dict[str, float] = {}
    for name, press in (("alone", Press()), ("dictionary", Press(dictionary))):
        started = time.process_time()
        small = [press.press(body)[0] for body in bodies]
        seconds = time.process_time() - started
        figures[f"{name}_times"] = total / sum(map(len, small))
        figures[f"{name}_us"] = seconds / len(bodies) * 1e6
    return figures


COLUMNS = {
    "messages": "messages",
    "message_bytes": "bytes each",
    "alone_times": "times smaller without dictionary",
    "dictionary_times": "with dictionary",
    "alone_us": "us each without",
    "dictionary_us": "us each with",
    "plain_cpu_us": "bridge us per row, plain",
    "zstd_cpu_us": "with `--zstd=all`",
}
_GUARDED = ("alone_times", "dictionary_times")

FAMILY = Family(
    title="Compression of real-looking orders",
    columns=COLUMNS,
    plot="compression",
    scenarios=(
        Scenario(
            name="compression-changes",
            about="single changes",
            measure=compression("changes"),
            guarded=_GUARDED,
        ),
        Scenario(
            name="compression-chunks",
            about="chunks of a snapshot",
            measure=compression("chunks"),
            guarded=_GUARDED,
        ),
    ),
)
