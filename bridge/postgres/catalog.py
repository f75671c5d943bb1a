"""What the catalog knows: publications, the tables in them, columns, keys and types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg.rows import DictRow

from bridge.attnums import XIDS
from bridge.errors import SourceNotReady
from bridge.protocol.messages import Relation, RelationColumn
from bridge.relations import ColumnFacts, TableFacts
from bridge.sources import SourceId
from schemas.positions import Lsn
from schemas.types import CatalogType, is_known

GENERATED_SINCE = 180000

Connection = psycopg.AsyncConnection[DictRow]

_PUBLICATION = "SELECT puballtables FROM pg_publication WHERE pubname = %s"

_PUBLISHED = """
    SELECT c.oid::bigint AS relation_id, p.schemaname AS schema, p.tablename AS table,
           c.relreplident::text AS replica_identity, p.attnames::text[] AS columns
      FROM pg_publication_tables p
      JOIN pg_namespace n ON n.nspname = p.schemaname
      JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
     WHERE p.pubname = %s AND coalesce(c.oid = %s::bigint::oid, true)
     ORDER BY 2, 3
"""

# A transaction id that seems to lie ahead was given out before the ids wrapped around.
_COLUMNS = """
    SELECT a.attrelid::bigint AS relation_id,
           a.attname AS name, a.attnum AS position, NOT a.attnotnull AS is_nullable,
           a.atttypid::bigint AS type_oid, a.atttypmod AS type_modifier, a.atthasdef AS has_default,
           a.attgenerated <> '' AS is_generated,
           CASE WHEN age(a.xmin) >= 0 THEN a.xmin::text::bigint END AS written_by
      FROM pg_attribute a
     WHERE a.attrelid = ANY(%s::bigint[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
     ORDER BY a.attrelid, a.attnum
"""

# The only question that waits for a lock on the table, which ALTER TABLE may hold for hours.
_DEFAULTS = """
    SELECT adrelid::bigint AS relation_id, adnum AS position,
           pg_get_expr(adbin, adrelid) AS expression
      FROM pg_attrdef WHERE adrelid = ANY(%s::bigint[]::oid[])
"""
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '100ms'"

# REPLICA IDENTITY USING INDEX makes that index the key; in every other case it is the primary key.
# A deferrable one is no key: inside a transaction two rows may have it, so a change does not say
# which of them it means. PostgreSQL does not take it as replica identity for the same reason.
_TABLES = """
    SELECT c.oid::bigint AS relation_id, c.relnatts AS highest, k.positions AS key, k.written_by
      FROM pg_class c
     CROSS JOIN LATERAL (
           SELECT array_agg(u.attnum::int ORDER BY u.place) AS positions,
                  max(CASE WHEN age(i.xmin) >= 0 THEN i.xmin::text::bigint END) AS written_by
             FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS u(attnum, place)
            WHERE i.indrelid = c.oid AND u.place <= i.indnkeyatts
              AND CASE c.relreplident WHEN 'i' THEN i.indisreplident
                       ELSE i.indisprimary AND i.indimmediate END
           ) k
     WHERE c.oid = ANY(%s::bigint[]::oid[])
"""

_TYPE_NAMES = """
    SELECT t.oid::bigint AS oid, u.modifier, format_type(t.oid, u.modifier) AS name
      FROM ROWS FROM (unnest(%s::bigint[]), unnest(%s::int[])) AS u(oid, modifier)
      JOIN pg_type t ON t.oid = u.oid::oid
"""

# Only an element's own array type is an array; int2vector and others have elements and no braces.
_TYPES = """
    SELECT t.oid::bigint AS oid, t.typname AS name, t.typbasetype::bigint AS base_oid,
           t.typtypmod AS base_modifier, t.typdelim::text AS delimiter,
           coalesce(e.oid, 0)::bigint AS element_oid
      FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
     WHERE t.oid = ANY(%s::bigint[]::oid[])
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


async def published_tables(
    connection: Connection, publication: str, only: int | None = None
) -> list[PublishedTable]:
    """Describe every table of the publication, in as many questions as one table needs."""
    rows = await (await connection.execute(_PUBLISHED, [publication, only])).fetchall()
    columns = await _fetch_columns(connection, [row["relation_id"] for row in rows])
    # PostgreSQL 15 lists generated columns, and no version before 18 publishes them.
    may_be_generated = connection.info.server_version >= GENERATED_SINCE
    relations = [
        _relation(
            row,
            [
                column
                for column in columns.get(row["relation_id"], ())
                if may_be_generated or not column["is_generated"]
            ],
        )
        for row in rows
    ]
    facts = await _facts(connection, relations, columns)
    return [PublishedTable(relation, facts[relation.relation_id]) for relation in relations]


def _relation(row: DictRow, columns: Sequence[DictRow]) -> Relation:
    listed = set(row["columns"] or ())
    return Relation(
        relation_id=row["relation_id"],
        schema=row["schema"],
        table=row["table"],
        replica_identity=row["replica_identity"],
        columns=tuple(
            # Flags of the replica identity come with the WAL; the catalog's key stands for them.
            RelationColumn(column["name"], column["type_oid"], column["type_modifier"], False)
            for column in columns
            if column["name"] in listed
        ),
    )


async def table_facts(connection: Connection, relation: Relation) -> TableFacts:
    """Describe a table the WAL speaks of; nothing is known of one that is gone."""
    columns = await _fetch_columns(connection, [relation.relation_id])
    return (await _facts(connection, [relation], columns))[relation.relation_id]


async def oldest_running(connection: Connection) -> int:
    """Give the id below which every transaction has ended, and is seen from now on."""
    row = await _one(connection, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xid")
    return int(row["xid"]) % XIDS


async def _fetch_columns(
    connection: Connection, relation_ids: Sequence[int]
) -> dict[int, list[DictRow]]:
    columns: dict[int, list[DictRow]] = {}
    for row in await (await connection.execute(_COLUMNS, [list(relation_ids)])).fetchall():
        columns.setdefault(row["relation_id"], []).append(row)
    return columns


async def _fetch_defaults(
    connection: Connection, relation_ids: Sequence[int]
) -> dict[tuple[int, int], str]:
    """Give defaults by table and attnum; none of a table that is locked: no value needs them."""
    if not relation_ids:
        return {}
    try:
        async with connection.transaction():
            await connection.execute(_LOCK_TIMEOUT)
            rows = await (await connection.execute(_DEFAULTS, [list(relation_ids)])).fetchall()
    except psycopg.errors.LockNotAvailable:
        if len(relation_ids) == 1:
            return {}
        found = [await _fetch_defaults(connection, [one]) for one in relation_ids]
        return {place: default for some in found for place, default in some.items()}
    return {(row["relation_id"], row["position"]): row["expression"] for row in rows}


async def _facts(
    connection: Connection, relations: Sequence[Relation], columns: Mapping[int, list[DictRow]]
) -> dict[int, TableFacts]:
    ids = [relation.relation_id for relation in relations]
    rows = await (await connection.execute(_TABLES, [ids])).fetchall()
    tables = {row["relation_id"]: row for row in rows}
    # Types of the WAL's columns, not of the catalog's: a dropped column's values have one too.
    wanted = {(c.type_oid, c.type_modifier) for r in relations for c in r.columns}
    oids, modifiers = [oid for oid, _ in wanted], [modifier for _, modifier in wanted]
    names = await (await connection.execute(_TYPE_NAMES, [oids, modifiers])).fetchall()
    type_names = {(row["oid"], row["modifier"]): row["name"] for row in names}
    types = await fetch_types(connection, oids)
    defaults = await _fetch_defaults(
        connection, [one for one in ids if any(c["has_default"] for c in columns.get(one, ()))]
    )
    return {
        one: TableFacts(
            columns={
                column["name"]: ColumnFacts(
                    position=column["position"],
                    is_nullable=column["is_nullable"],
                    default=defaults.get((one, column["position"])),
                    type_oid=column["type_oid"],
                    type_modifier=column["type_modifier"],
                    written_by=column["written_by"],
                )
                for column in columns.get(one, ())
            },
            key=tuple(tables[one]["key"] or ()) if one in tables else (),
            key_written_by=tables[one]["written_by"] if one in tables else None,
            types=types,
            type_names=type_names,
            highest=tables[one]["highest"] if one in tables else 0,
        )
        for one in ids
    }


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


async def source_id(connection: Connection, slot: str) -> SourceId:
    """Name this slot of this database among all others, whatever the database is called."""
    row = await _one(
        connection,
        "SELECT system_identifier::text AS system, oid::bigint AS database"
        " FROM pg_control_system(), pg_database WHERE datname = current_database()",
    )
    return SourceId(row["system"], row["database"], slot)


async def live_slots(connection: Connection) -> set[str]:
    """Name every slot of this database."""
    query = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    return {row["slot_name"] for row in await (await connection.execute(query)).fetchall()}


_PAGE_BYTES, _SEGMENT_BYTES = 1 << 13, 1 << 24
_HEADER_BYTES, _LONG_HEADER_BYTES = 24, 40


async def visible_end(connection: Connection) -> Lsn:
    """Say up to where transactions may have committed that queries see.

    With `synchronous_commit = off` that is further than the WAL is written. The position is that of
    the next record: past the header of a page that nothing is on yet, where no reader arrives.
    """
    row = await _one(connection, "SELECT pg_current_wal_insert_lsn()::text AS lsn")
    return before_header(Lsn.parse(row["lsn"]))


def before_header(lsn: Lsn) -> Lsn:
    """Give the end of the page before, for a position right after the header of an empty page."""
    if lsn % _PAGE_BYTES == _HEADER_BYTES:
        return Lsn(lsn - _HEADER_BYTES)
    return Lsn(lsn - _LONG_HEADER_BYTES) if lsn % _SEGMENT_BYTES == _LONG_HEADER_BYTES else lsn


async def wal_end(connection: Connection) -> Lsn:
    """Say how far PostgreSQL has written its WAL."""
    row = await _one(connection, "SELECT pg_current_wal_lsn()::text AS lsn")
    return Lsn.parse(row["lsn"])
