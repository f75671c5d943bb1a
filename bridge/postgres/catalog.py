"""What the catalog knows: publications, the tables in them, columns, keys and types."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

from bridge.errors import SourceNotReady
from bridge.protocol.messages import Relation, RelationColumn
from bridge.relations import ColumnFacts, TableFacts
from schemas.positions import Lsn
from schemas.types import CatalogType, is_known

Connection = psycopg.AsyncConnection[DictRow]

_PUBLICATION = "SELECT puballtables FROM pg_publication WHERE pubname = %s"

_PUBLISHED = """
    SELECT c.oid::bigint AS relation_id, p.schemaname AS schema, p.tablename AS table,
           c.relreplident::text AS replica_identity, p.attnames::text[] AS columns
      FROM pg_publication_tables p
      JOIN pg_namespace n ON n.nspname = p.schemaname
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
     WHERE p.pubname = %s
     ORDER BY 2, 3
"""

_COLUMNS = """
    SELECT a.attname AS name, a.attnum AS position, NOT a.attnotnull AS is_nullable,
           format_type(a.atttypid, a.atttypmod) AS data_type, a.atttypid::bigint AS type_oid,
           a.atttypmod AS type_modifier, pg_get_expr(d.adbin, d.adrelid) AS default
      FROM pg_attribute a
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attnum
"""

# REPLICA IDENTITY USING INDEX makes that index the key; in every other case it is the primary key.
_KEY = """
    SELECT a.attname AS name
      FROM pg_class c
      JOIN pg_index i ON i.indrelid = c.oid
       AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
     CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
     WHERE c.oid = %s::oid AND k.place <= i.indnkeyatts
     ORDER BY k.place
"""

# int2vector and oidvector are arrays by category and write their elements without braces.
_TYPES = """
    SELECT oid::bigint AS oid, typname AS name, typbasetype::bigint AS base_oid,
           typtypmod AS base_modifier, typdelim::text AS delimiter,
           CASE WHEN typcategory = 'A' AND typname NOT IN ('int2vector', 'oidvector')
                THEN typelem::bigint ELSE 0 END AS element_oid
      FROM pg_type WHERE oid = ANY(%s::bigint[]::oid[])
"""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of the publication as the catalog has it now, in the WAL's own form."""

    relation: Relation
    facts: TableFacts


async def check_source(connection: Connection, publication: str) -> None:
    """Stop early, in one sentence, where PostgreSQL lacks what logical decoding needs."""
    level = await _one(connection, "SELECT current_setting('wal_level') AS value")
    if level["value"] != "logical":
        raise SourceNotReady(
            f"wal_level is {level['value']}, and logical decoding needs logical",
            advice="ALTER SYSTEM SET wal_level = logical, then restart PostgreSQL.",
        )
    role = await _one(
        connection,
        "SELECT rolname, rolreplication OR rolsuper AS may FROM pg_roles WHERE rolname = user",
    )
    if not role["may"]:
        raise SourceNotReady(
            f"role {role['rolname']} may not replicate",
            advice=f'ALTER ROLE "{role["rolname"]}" REPLICATION, or run init.sh.',
        )
    found = await (await connection.execute(_PUBLICATION, [publication])).fetchone()
    if found is None:
        raise SourceNotReady(
            f"publication {publication} does not exist in this database",
            advice=f'CREATE PUBLICATION "{publication}" FOR TABLE ..., or run init.sh.',
        )


async def published_tables(connection: Connection, publication: str) -> list[PublishedTable]:
    """Describe every table of the publication."""
    rows = await (await connection.execute(_PUBLISHED, [publication])).fetchall()
    return [await _published_table(connection, row) for row in rows]


async def _published_table(connection: Connection, row: DictRow) -> PublishedTable:
    listed = set(row["columns"] or ())
    attributes = await _fetch_columns(connection, row["relation_id"])
    columns = [column for column in attributes if column["name"] in listed]
    facts = await _facts(connection, row["relation_id"], attributes)
    relation = Relation(
        relation_id=row["relation_id"],
        schema=row["schema"],
        table=row["table"],
        replica_identity=row["replica_identity"],
        columns=tuple(
            # Flags of the replica identity come with the WAL; the catalog's key stands for them.
            RelationColumn(column["name"], column["type_oid"], column["type_modifier"], False)
            for column in columns
        ),
    )
    return PublishedTable(relation, facts)


async def table_facts(connection: Connection, relation_id: int) -> TableFacts:
    """Describe a table the WAL speaks of; nothing is known of one that is gone."""
    return await _facts(connection, relation_id, await _fetch_columns(connection, relation_id))


async def _fetch_columns(connection: Connection, relation_id: int) -> list[DictRow]:
    return await (await connection.execute(_COLUMNS, [relation_id])).fetchall()


async def _facts(connection: Connection, relation_id: int, columns: list[DictRow]) -> TableFacts:
    key = await (await connection.execute(_KEY, [relation_id])).fetchall()
    return TableFacts(
        columns={
            column["name"]: ColumnFacts(
                position=column["position"],
                data_type=column["data_type"],
                is_nullable=column["is_nullable"],
                default=column["default"],
            )
            for column in columns
        },
        key=tuple(column["name"] for column in key),
        types=await fetch_types(connection, (column["type_oid"] for column in columns)),
    )


async def fetch_types(connection: Connection, oids: Iterable[int]) -> dict[int, CatalogType]:
    """Describe types that are not built in, down to what they are made of."""
    known: dict[int, CatalogType] = {}
    wanted = {oid for oid in oids if not is_known(oid)}
    while wanted:
        rows = await (await connection.execute(_TYPES, [list(wanted)])).fetchall()
        known |= {row["oid"]: CatalogType(**row) for row in rows}
        parts = {part for row in rows for part in (row["base_oid"], row["element_oid"]) if part}
        wanted = {oid for oid in parts if not is_known(oid)} - known.keys()
    return known


async def _one(connection: Connection, query: str) -> DictRow:
    row = await (await connection.execute(query)).fetchone()
    if row is None:
        raise SourceNotReady(f"PostgreSQL answered nothing to {query!r}")
    return row


async def wal_end(connection: Connection) -> Lsn:
    """Say how far PostgreSQL has written its WAL."""
    row = await _one(connection, "SELECT pg_current_wal_lsn()::text AS lsn")
    return Lsn.parse(row["lsn"])
