"""Keeps tables in a SQLite file in step with PostgreSQL, with nothing but a NATS client.

    python examples/follow_sqlite.py nats://127.0.0.1:4222 copy.db users sales/orders

The hand-over, in any language: ask for snapshots, load them, then read the CDC stream behind the
first of their `cdc_sequence` and apply the changes whose `commit_lsn` is not below their table's
`lsn`. Here that is strict: an insert of a row that is there, or an update of none, is an error; so
is a change whose `(commit_lsn, seq)` is not above the one before, and a fork or a gap, after which
only new snapshots help. One source (one bridge) is assumed.
"""

import asyncio
import hashlib
import json
import sqlite3
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
import nats
import zstandard
from nats.js.api import ConsumerConfig, DeliverPolicy

EVERYTHING, NEVER = "cdc.>", 1 << 64
OPERATIONS = ("INSERT", "UPDATE", "DELETE", "TRUNCATE")  # not SCHEMA and MESSAGE
LSN, SEQ = "cdc.> commit_lsn", "cdc.> seq"
for kind in (list, dict, bool):
    sqlite3.register_adapter(kind, json.dumps)


def decode(body: bytes) -> Any:
    return json.loads(body) if body[:1] == b"{" else msgpack.unpackb(body)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Follower:
    """A SQLite file and how far it is; both change in the same SQLite transaction."""

    def __init__(self, client: Any, file: str, tables: Iterable[str]) -> None:
        self.client, self.js, self.tables = client, client.jetstream(timeout=30), list(tables)
        self.expanders: dict[Any, Any] = {None: zstandard.ZstdDecompressor()}
        self.db = sqlite3.connect(file, isolation_level=None)
        self.db.execute("CREATE TABLE IF NOT EXISTS _follow (name TEXT PRIMARY KEY, place INTEGER)")
        self.places: dict[str, int] = dict(self.db.execute("SELECT name, place FROM _follow"))

    def set_place(self, name: str, place: int) -> None:
        self.places[name] = place
        self.db.execute("INSERT OR REPLACE INTO _follow VALUES (?, ?)", [name, place])

    async def body(self, table: str, message: Any) -> bytes:
        """Give a message's body: fetched where it was too large, expanded where compressed."""
        headers, body = message.headers or {}, bytes(message.data)
        if name := headers.get("Oversize"):
            body = (await (await self.js.object_store("oversize")).get(name)).data or b""
        if headers.get("Content-Encoding") == "zstd":
            if (key := headers.get("Zstd-Dictionary")) not in self.expanders:
                entry = await (await self.js.key_value("dictionaries")).get(f"{table}.{key}")
                known = zstandard.ZstdCompressionDict(entry.value or b"")
                self.expanders[key] = zstandard.ZstdDecompressor(dict_data=known)
            body = self.expanders[key].decompress(body)
        return body

    async def load(self) -> None:
        """Load every table that is not there yet, and note where its changes begin."""
        for table in [table for table in self.tables if table not in self.places]:
            meta = await self.take_snapshot(table)
            self.db.execute("BEGIN")
            await self.make(table)
            await self.load_chunks(table, meta)
            self.set_place(table, meta["lsn"])
            start = meta["cdc_sequence"]
            self.set_place(EVERYTHING, min(start, self.places.get(EVERYTHING, start)))
            self.db.execute("COMMIT")

    async def take_snapshot(self, table: str) -> Any:
        notices = await self.client.subscribe(f"init.*.{table}")
        reply = await self.client.request(f"snapshot.request.{table}", b"", timeout=120)
        answer = json.loads(reply.data)
        while "error" not in answer and "row_count" not in answer:
            notice = decode((await notices.next_msg(timeout=600)).data)
            answer = notice if notice["snapshot_id"] == answer["snapshot_id"] else answer
        if "error" in answer:
            raise RuntimeError(f"no snapshot of {table}: {answer['error']}")
        return answer

    async def make(self, table: str) -> None:
        """Make the table from its shape in KV `schemas`."""
        entry = await (await self.js.key_value("schemas")).get(table)
        columns = decode(entry.value or b"")["columns"]
        key = sorted((c for c in columns if c["key"] is not None), key=lambda c: c["key"])
        names, keyed = (", ".join(quote(c["name"]) for c in part) for part in (columns, key))
        rule = f", PRIMARY KEY ({keyed})" if keyed else ""
        self.db.execute(f"CREATE TABLE {quote(table)} ({names}{rule})")

    async def load_chunks(self, table: str, meta: dict[str, Any]) -> None:
        checksum, subject = hashlib.sha256(), f"init.snap.{table}.{meta['snapshot_id']}.*"
        chunks = await self.js.subscribe(subject, ordered_consumer=True)
        for _ in range(meta["batch_count"]):
            body = await self.body(table, await chunks.next_msg(timeout=60))
            checksum.update(body)
            for row in decode(body)["data"]:
                self.apply(table, "INSERT", row)
        if f"sha256:{checksum.hexdigest()}" != meta["checksum"]:
            raise RuntimeError(f"the snapshot of {table} is not whole")

    async def follow(self, is_done: Callable[[], bool] = lambda: False) -> None:
        """Apply changes in the stream's order; a PostgreSQL transaction is one of SQLite's."""
        config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE)
        config.opt_start_seq = self.places[EVERYTHING] + 1
        stream = await self.js.subscribe(EVERYTHING, ordered_consumer=True, config=config)
        while not is_done():
            try:
                message = await stream.next_msg(timeout=1)
            except TimeoutError:
                continue
            change = decode(await self.body(table := message.subject.split(".")[1], message))
            if not self.db.in_transaction:
                self.db.execute("BEGIN")
            self.check_order(message, change)
            is_change = change.get("operation") in OPERATIONS
            if is_change and change["commit_lsn"] >= self.places.get(table, NEVER):
                self.apply(table, change["operation"], change["data"], change.get("key"))
            if change["last"]:
                self.set_place(EVERYTHING, message.metadata.sequence.stream)
                self.db.execute("COMMIT")

    def check_order(self, message: Any, change: dict[str, Any]) -> None:
        """Stop where the order of the source is broken, instead of going back in time."""
        if message.subject in ("cdc._message.bridge-fork", "cdc._message.bridge-gap"):
            raise RuntimeError(f"{message.subject}: {change['content']}; begin with a new file")
        if change.get("operation") not in OPERATIONS:
            return
        at = change["commit_lsn"], change["seq"]
        before = self.places.get(LSN, 0), self.places.get(SEQ, -1)
        if at <= before:
            raise RuntimeError(
                f"stream sequence {message.metadata.sequence.stream} ({message.subject}) is at {at}"
                f" after {before}: changes were stored again or out of order; nothing was applied"
            )
        self.set_place(LSN, at[0])
        self.set_place(SEQ, at[1])

    def apply(self, table: str, operation: str, data: dict[str, Any], key: Any = None) -> None:
        name, columns = quote(table), self.db.execute(f"PRAGMA table_info({quote(table)})")
        key = key or {column[1]: data.get(column[1]) for column in columns if column[5]}
        where, new = " = ? AND ".join(map(quote, key)), " = ?, ".join(map(quote, data))
        into, marks = ", ".join(map(quote, data)), ", ".join("?" * len(data))
        both = [*data.values(), *key.values()]
        do, values = {
            "INSERT": (f"INSERT INTO {name} ({into}) VALUES ({marks})", [*data.values()]),
            "UPDATE": (f"UPDATE {name} SET {new} = ? WHERE {where} = ?", both),
            "DELETE": (f"DELETE FROM {name} WHERE {where} = ?", [*key.values()]),
            "TRUNCATE": (f"DELETE FROM {name}", []),
        }[operation]
        changed = self.db.execute(do, values).rowcount
        if changed != 1 and operation != "TRUNCATE":
            raise RuntimeError(f"{operation} of {changed} rows of {table}, not one: {key}")


async def main(url: str, file: str, *tables: str) -> None:
    follower = Follower(await nats.connect(url), file, tables)
    await follower.load()
    await follower.follow()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
