"""Which database each table comes from, as KV `schemas` has it from the bridge."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from nats.js.errors import NotFoundError

from lake_consumer.jetstream.connection import connect, jetstream
from lake_consumer.natsoptions import NatsOptions
from schemas.codecs import decode_entry
from schemas.names import TableName
from schemas.streams import SCHEMAS_BUCKET


def read_owners(nats: NatsOptions, tables: Sequence[TableName]) -> dict[TableName, str]:
    """The source that wrote each table's newest shape; without tables that nobody knows."""
    return asyncio.run(_read_owners(nats, tables))


async def _read_owners(nats: NatsOptions, tables: Sequence[TableName]) -> dict[TableName, str]:
    client = await connect(nats)
    try:
        js, found = jetstream(client), {}
        for table in tables:
            subject = f"$KV.{SCHEMAS_BUCKET.name}.{table.token}"
            try:
                entry = await js.get_last_msg(f"KV_{SCHEMAS_BUCKET.name}", subject)
            except NotFoundError:
                continue
            if entry.data:
                found[table] = str(decode_entry(entry.data)["source"])
        return found
    finally:
        await client.close()
