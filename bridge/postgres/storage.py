"""Reads what the catalog remembers of published tables: the facts that `bridge.storage` compares.

One snapshot of the catalog serves all questions, so the facts belong together. No question waits
for a lock on a table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import DictRow
from psycopg.sql import SQL

from bridge.attnums import XIDS, is_later
from bridge.postgres.catalog import (
    Connection,
    PublishedTable,
    published_tables,
    table_facts,
    visible_end,
)
from bridge.protocol.messages import Relation
from bridge.relations import TableFacts
from bridge.storage import Attribute, File, TableStorage
from schemas.ddl import CatalogState
from schemas.names import TableName
from schemas.positions import Lsn

_FIRST_OWN_OID = 16_384
"""Types below are built in: their values read the same for ever."""

LOCK_TIMEOUT = "500ms"
NO_WAIT = "1ms"
"""How long to wait for the lock of a table: of one that was locked moments ago, no longer."""

VISIBLE_WITHIN_SECONDS = 1.0
_LOOK_AGAIN_SECONDS = 0.01

# Not by pg_get_publication_tables, which waits for a lock on each table. Every table is joined with
# its ancestors and those with what publishes them: looked up for each table, that takes its square.
# Who wrote a row last shows what was changed and changed back between two looks: the publication's
# options or name, and the schema of a table that is published with its schema.
_TABLES = """
    WITH RECURSIVE line AS (
        SELECT oid AS relid, oid AS above, relnamespace, relispartition
          FROM pg_class
         WHERE relkind IN ('r', 'p') AND relpersistence = 'p' AND oid >= 16384
           AND (%(only)s::bigint[] IS NULL OR oid = ANY(%(only)s::bigint[]::oid[]))
        UNION ALL
        SELECT line.relid, c.oid, c.relnamespace, c.relispartition
          FROM line JOIN pg_inherits i ON i.inhrelid = line.above AND NOT i.inhdetachpending
          JOIN pg_class c ON c.oid = i.inhparent
         WHERE line.relispartition
    ), publication AS (
        SELECT *, xmin::text AS written_by FROM pg_publication WHERE pubname = %(publication)s
    ), member AS (
        SELECT m.relid, array_agg(m.oid::bigint ORDER BY m.oid) AS oids,
               string_agg(m.list, ' ' ORDER BY m.oid, m.list) AS lists,
               bool_or(m.is_own) AS is_own, bool_or(NOT m.is_own) AS is_above
          FROM (SELECT line.relid, line.relid = line.above AS is_own, r.oid,
                       concat(r.prattrs::text, '/', md5(r.prqual::text)) AS list
                  FROM line JOIN pg_publication_rel r ON r.prrelid = line.above
                  JOIN publication p ON p.oid = r.prpubid
                UNION ALL
                SELECT line.relid, line.relid = line.above, s.oid, d.xmin::text
                  FROM line JOIN pg_publication_namespace s ON s.pnnspid = line.relnamespace
                  JOIN publication p ON p.oid = s.pnpubid
                  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = line.above
                   AND d.objsubid = 0 AND d.refclassid = 'pg_namespace'::regclass) m
         GROUP BY m.relid
    )
    SELECT c.oid::bigint AS relation_id, n.nspname AS schema, c.relname AS table,
           c.relkind::text AS kind, c.relfilenode::bigint AS filenode,
           c.reltoastrelid::bigint AS toast, c.xmin::text::bigint AS written_by,
           c.cmin::text::int AS command,
           concat_ws(' ', p.written_by, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate,
                     p.pubviaroot, to_jsonb(p) ->> 'pubgencols', member.lists) AS publishing,
           array_remove(member.oids || CASE WHEN p.puballtables THEN p.oid::bigint END, NULL)
               AS membership
      FROM publication p CROSS JOIN line
      JOIN pg_class c ON c.oid = line.relid
      JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN member ON member.relid = line.relid
     WHERE line.relid = line.above
       AND CASE WHEN p.pubviaroot
                THEN p.puballtables AND NOT c.relispartition
                     OR NOT p.puballtables AND member.is_own AND NOT member.is_above
                ELSE c.relkind = 'r' AND (p.puballtables OR member.is_own OR member.is_above) END
"""

_ATTRIBUTES = """
    SELECT a.attrelid::bigint AS relation_id, a.attnum AS position,
           a.xmin::text::bigint AS written_by, a.atttypid::bigint AS type_oid,
           a.atttypmod AS type_modifier, a.attisdropped AS is_dropped,
           a.atthasmissing AS has_missing, a.attgenerated <> '' AS is_generated,
           (a.attmissingval::text::text[])[1] AS missing,
           a.xmin = c.xmin AND a.cmin::text::bigint > c.cmin::text::bigint AS is_swapped
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE a.attrelid = ANY(%s::bigint[]::oid[]) AND a.attnum > 0
     ORDER BY 1, 2
"""

# Not by pg_partition_tree, which locks every partition and waits for those that are locked.
_TREE = """
    WITH RECURSIVE tree AS (
        SELECT oid AS root, oid AS relid, '' AS joined
          FROM unnest(%s::bigint[]::oid[]) AS roots(oid)
        UNION ALL
        SELECT tree.root, i.inhrelid, concat_ws('/', nullif(tree.joined, ''), i.xmin)
          FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid AND NOT i.inhdetachpending
    )
"""

_LEAVES = f"""
    {_TREE}
    SELECT tree.root::bigint AS relation_id, leaf.oid::bigint AS leaf,
           tree.joined, leaf.relfilenode::bigint AS filenode, leaf.reltuples < 0 AS is_fresh,
           leaf.reltoastrelid::bigint AS toast, leaf.xmin::text::bigint AS written_by,
           leaf.cmin::text::int AS command,
           CASE WHEN toast.xmin = leaf.xmin THEN toast.cmin::text::int END AS toast_command
      FROM tree JOIN pg_class leaf ON leaf.oid = tree.relid AND leaf.relkind <> 'p'
      LEFT JOIN pg_class toast ON toast.oid = leaf.reltoastrelid
"""  # noqa: S608 - constants alone

# Waits for a lock on each partition. Only ordinary tables have a file that shows their rows.
_EMPTY = """
    SELECT oid::bigint AS leaf FROM pg_class
     WHERE oid = ANY(%s::bigint[]::oid[]) AND relkind = 'r' AND pg_relation_size(oid) = 0
"""

# A root stores no missing values, its partitions do; what they do not agree on is not known.
_LEAF_MISSING = f"""
    {_TREE}
    SELECT tree.root::bigint AS relation_id, a.attnum AS position,
           bool_or(l.atthasmissing) AS has_missing,
           CASE WHEN bool_and(l.atthasmissing) AND count(DISTINCT l.attmissingval::text) = 1
                THEN min((l.attmissingval::text::text[])[1]) END AS missing
      FROM tree JOIN pg_class leaf ON leaf.oid = tree.relid AND leaf.relkind <> 'p'
      JOIN pg_attribute a ON a.attrelid = tree.root AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_attribute l ON l.attrelid = tree.relid AND l.attname = a.attname
     GROUP BY 1, 2
    HAVING bool_or(l.atthasmissing)
"""  # noqa: S608 - constants alone

# Enums and composites that values are made of, through arrays, domains, ranges and one another.
_TYPES = """
    WITH RECURSIVE used AS (
        SELECT oid AS root, oid FROM unnest(%s::bigint[]::oid[]) AS own(oid)
        UNION
        SELECT used.root, part.oid
          FROM used JOIN pg_type t ON t.oid = used.oid
         CROSS JOIN LATERAL (
               SELECT t.typbasetype AS oid UNION ALL SELECT t.typelem
               UNION ALL SELECT rngsubtype FROM pg_range
                          WHERE rngtypid = t.oid OR rngmultitypid = t.oid
               UNION ALL SELECT atttypid FROM pg_attribute
                          WHERE attrelid = t.typrelid AND attnum > 0 AND NOT attisdropped) part
         WHERE part.oid >= 16384
    )
    SELECT root::bigint, 'e' || e.oid AS name, e.enumlabel::text AS text
      FROM used JOIN pg_enum e ON e.enumtypid = used.oid
    UNION ALL
    SELECT root::bigint, 'c' || t.oid,
           string_agg(concat_ws(':', attnum, atttypid, atttypmod, attisdropped), ' '
                      ORDER BY attnum)
      FROM used JOIN pg_type t ON t.oid = used.oid AND t.typrelid <> 0
      JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
     GROUP BY root, t.oid
"""

_SNAPSHOT = """
    SELECT pg_snapshot_xmax(s)::text AS next,
           ARRAY(SELECT x::text FROM pg_snapshot_xip(s) x) AS running
      FROM pg_current_snapshot() s
"""

_RELATION_NAMES = """
    SELECT c.oid::bigint AS relation_id, n.nspname AS schema, c.relname AS table
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = ANY(%s::bigint[]::oid[])
"""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A published table under the name it has now."""

    name: TableName
    storage: TableStorage


@dataclass(frozen=True, slots=True)
class Reading:
    """The catalog at one moment; no change behind `seen_at` is older than it."""

    tables: Mapping[int, StoredTable]
    seen_at: Lsn


@asynccontextmanager
async def one_moment(
    connection: Connection, *, lock_timeout: str | None = None
) -> AsyncIterator[None]:
    """Answer every question inside from the same snapshot of the catalog.

    The list of a publication's columns waits for locks on its tables, at most so long.
    """
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if lock_timeout is not None:
            await connection.execute(SQL("SET LOCAL lock_timeout = {}").format(lock_timeout))
        yield


async def read_storage(
    connection: Connection, publication: str, only: Sequence[int] | None = None
) -> Reading:
    """Read the facts of all published tables, or of those among some relations."""
    async with one_moment(connection):
        tables = await _read(connection, publication, only)
        return Reading(tables, await visible_end(connection))


async def read_all(
    connection: Connection, publication: str, *, is_patient: bool = True
) -> tuple[Reading, list[PublishedTable]]:
    """Read facts and shapes of all published tables, as of one moment."""
    async with one_moment(connection, lock_timeout=None if is_patient else LOCK_TIMEOUT):
        tables = await _read(connection, publication, None)
        published = await published_tables(connection, publication)
        seen_at = await visible_end(connection)
    return Reading(await _with_empty_leaves(connection, tables), seen_at), published


@dataclass(frozen=True, slots=True)
class TableReading:
    """One table at one moment; without storage it is not published by then."""

    relation: Relation | None
    facts: TableFacts
    name: TableName | None
    storage: TableStorage | None
    is_locked: bool = False
    """Somebody else had the table: there is no description, and storage is as last committed."""


async def read_table(
    connection: Connection,
    publication: str,
    relation: Relation | int,
    *,
    lock_timeout: str = LOCK_TIMEOUT,
) -> TableReading:
    """Read all of one table, in the WAL's description or by its OID in the catalog's."""
    try:
        return await _read_table(connection, publication, relation, lock_timeout)
    except psycopg.errors.LockNotAvailable:
        relation_id = relation if isinstance(relation, int) else relation.relation_id
        reading = await read_storage(connection, publication, [relation_id])
        found = reading.tables.get(relation_id)
        name, storage = (found.name, found.storage) if found else (None, None)
        return TableReading(None, TableFacts(), name, storage, is_locked=True)


async def _read_table(
    connection: Connection, publication: str, relation: Relation | int, lock_timeout: str
) -> TableReading:
    relation_id = relation if isinstance(relation, int) else relation.relation_id
    async with one_moment(connection, lock_timeout=lock_timeout):
        stored = (await _read(connection, publication, [relation_id])).get(relation_id)
        described, facts = None, TableFacts()
        if isinstance(relation, Relation):
            described, facts = relation, await table_facts(connection, relation)
        elif found := await published_tables(connection, publication, relation_id):
            described, facts = found[0].relation, found[0].facts
    if stored is None:
        return TableReading(described, facts, None, None)
    stored = (await _with_empty_leaves(connection, {relation_id: stored}))[relation_id]
    return TableReading(described, facts, stored.name, stored.storage)


async def relation_names(connection: Connection, ids: Sequence[int]) -> dict[int, TableName]:
    """Give the names that relations have now; those that are gone have none."""
    rows = await (await connection.execute(_RELATION_NAMES, [list(ids)])).fetchall()
    return {row["relation_id"]: TableName(row["schema"], row["table"]) for row in rows}


async def relation_states(
    connection: Connection, publication: str, ids: Sequence[int]
) -> dict[int, CatalogState]:
    """Say what relations are called now and whether the publication has them, without locks."""
    async with one_moment(connection):
        names = await relation_names(connection, ids)
        asked = {"publication": publication, "only": list(names)}
        rows = await (await connection.execute(_TABLES, asked)).fetchall()
    published = {row["relation_id"] for row in rows}
    return {one: CatalogState(name, one in published) for one, name in names.items()}


async def until_visible(connection: Connection, xid: int) -> None:
    """Wait a moment for a transaction whose commit was decoded to be seen by queries as well.

    PostgreSQL sends a commit before others see it, longer so if it waits for a standby.
    """
    deadline = asyncio.get_running_loop().time() + VISIBLE_WITHIN_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        row = await (await connection.execute(_SNAPSHOT)).fetchone()
        if row is None or not _is_running(row, xid):
            return
        await asyncio.sleep(_LOOK_AGAIN_SECONDS)


def _is_running(snapshot: DictRow, xid: int) -> bool:
    if xid in {int(running) % XIDS for running in snapshot["running"]}:
        return True
    return not is_later(int(snapshot["next"]) % XIDS, xid)


async def _read(
    connection: Connection, publication: str, only: Sequence[int] | None
) -> dict[int, StoredTable]:
    asked: dict[str, Any] = {
        "publication": publication,
        "only": list(only) if only is not None else None,
    }
    rows = await (await connection.execute(_TABLES, asked)).fetchall()
    ids = [row["relation_id"] for row in rows]
    roots = [row["relation_id"] for row in rows if row["kind"] == "p"]
    attributes = await _attributes(connection, ids, roots)
    leaves = await _grouped(connection, _LEAVES, roots)
    types = await _types(connection, attributes)
    return {
        row["relation_id"]: StoredTable(
            TableName(row["schema"], row["table"]),
            _storage(
                row,
                attributes.get(row["relation_id"], {}),
                leaves.get(row["relation_id"], ()),
                types,
            ),
        )
        for row in rows
    }


def _storage(
    row: DictRow,
    columns: Mapping[int, Attribute],
    leaves: Sequence[DictRow],
    types: Mapping[int, Mapping[str, str]],
) -> TableStorage:
    used = {column.type_oid for column in columns.values() if not column.is_dropped}
    return TableStorage(
        file=File(
            node=row["filenode"],
            toast=row["toast"],
            written_by=row["written_by"],
            command=row["command"],
        ),
        columns=columns,
        membership=tuple(sorted(row["membership"] or ())),
        publishing=row["publishing"],
        leaves={leaf["leaf"]: _leaf(leaf) for leaf in leaves},
        joined={leaf["leaf"]: leaf["joined"] for leaf in leaves},
        types={name: text for oid in used for name, text in types.get(oid, {}).items()},
    )


def _leaf(row: DictRow) -> File:
    return File(
        node=row["filenode"],
        toast=row["toast"],
        written_by=row["written_by"],
        command=row["command"],
        toast_command=row["toast_command"],
        is_fresh=row["is_fresh"],
    )


async def _with_empty_leaves(
    connection: Connection, tables: Mapping[int, StoredTable]
) -> Mapping[int, StoredTable]:
    """Add which partitions without statistics have no rows; if one is locked, none is known.

    A partition that is empty later than the catalog was read serves as well: rows that it had
    before were deleted by changes, or by TRUNCATE, which gives it another file.
    """
    fresh = sorted(
        {
            leaf
            for table in tables.values()
            for leaf, file in table.storage.leaves.items()
            if file.is_fresh
        }
    )
    if not fresh:
        return tables
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '100ms'")
            rows = await (await connection.execute(_EMPTY, [fresh])).fetchall()
    except psycopg.errors.LockNotAvailable:
        return tables
    empty = {row["leaf"] for row in rows}
    return {one: _with_empty(table, empty) for one, table in tables.items()}


def _with_empty(table: StoredTable, empty: Collection[int]) -> StoredTable:
    leaves = {
        leaf: replace(file, is_empty=leaf in empty) for leaf, file in table.storage.leaves.items()
    }
    return replace(table, storage=replace(table.storage, leaves=leaves))


async def _attributes(
    connection: Connection, ids: Sequence[int], roots: Sequence[int]
) -> dict[int, dict[int, Attribute]]:
    missing = {
        (row["relation_id"], row["position"]): row
        for rows in (await _grouped(connection, _LEAF_MISSING, roots)).values()
        for row in rows
    }
    return {
        relation_id: {
            row["position"]: _attribute({**row, **missing.get((relation_id, row["position"]), {})})
            for row in rows
        }
        for relation_id, rows in (await _grouped(connection, _ATTRIBUTES, ids)).items()
    }


def _attribute(row: Mapping[str, Any]) -> Attribute:
    return Attribute(
        written_by=row["written_by"],
        type_oid=row["type_oid"],
        type_modifier=row["type_modifier"],
        is_dropped=row["is_dropped"],
        has_missing=row["has_missing"],
        is_generated=row["is_generated"],
        missing=row["missing"],
        is_swapped=row["is_swapped"],
    )


async def _types(
    connection: Connection, attributes: Mapping[int, Mapping[int, Attribute]]
) -> dict[int, dict[str, str]]:
    own = {
        column.type_oid
        for columns in attributes.values()
        for column in columns.values()
        if column.type_oid >= _FIRST_OWN_OID and not column.is_dropped
    }
    types: dict[int, dict[str, str]] = {}
    if own:
        for row in await (await connection.execute(_TYPES, [sorted(own)])).fetchall():
            types.setdefault(row["root"], {})[row["name"]] = row["text"]
    return types


async def _grouped(
    connection: Connection, query: str, ids: Sequence[int]
) -> dict[int, list[DictRow]]:
    """Ask about some relations, and give the rows of each."""
    found: dict[int, list[DictRow]] = {}
    if ids:
        for row in await (await connection.execute(query, [list(ids)])).fetchall():
            found.setdefault(row["relation_id"], []).append(row)
    return found
