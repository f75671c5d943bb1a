"""What the storm believes to exist: names, columns and keys, enough to write valid SQL.

It is a model for the generator only. What the tables hold, and which of them are published, is
always asked of PostgreSQL (`truth`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.storm.values import BIG, TYPES, type_of

LEAF_WIDTH = 1_000
"""How many ids one partition holds."""


@dataclass
class Column:
    """A column besides the id; a `big` one holds values that PostgreSQL stores out of line."""

    name: str
    type: str
    nullable: bool = True
    big: bool = False

    def value(self, number: str, salt: int) -> str:
        if self.big:
            return BIG.format(g=f"({number})", s=salt % 5)
        return type_of(self.type).value(number, salt, nullable=self.nullable)


@dataclass
class Leaf:
    """A partition for the ids from `slot * LEAF_WIDTH` on."""

    name: str
    slot: int
    attached: bool = True


@dataclass
class Table:
    """One table, or a partitioned table with its leaves."""

    label: str
    schema: str
    name: str
    columns: list[Column]
    key: tuple[str, ...]
    identity: str = "default"
    published: bool = True
    filter: str = ""
    partitions: str = ""
    """Empty for a plain table; else what is published of a partitioned one: `root` or `leaf`."""

    leaves: list[Leaf] = field(default_factory=list)

    @property
    def sql(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def mine(self) -> list[Column]:
        """Columns that are not part of the key, and may be changed freely."""
        return [column for column in self.columns if column.name not in self.key]

    @property
    def attached(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.attached]

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


@dataclass
class World:
    """The tables of one writer. Nobody else writes to them."""

    letter: str
    schema: str
    tables: list[Table] = field(default_factory=list)
    numbers: int = 0
    ids: int = 1_000
    """New ids are above all that were used before."""

    def fresh(self, prefix: str) -> str:
        self.numbers += 1
        return f"{prefix}{self.numbers}"

    def fresh_ids(self, count: int) -> tuple[int, int]:
        first = self.ids + 1
        self.ids += count
        return first, self.ids

    def new_column(self, rng: random.Random) -> Column:
        return Column(self.fresh("c"), rng.choice(sorted(TYPES)), nullable=rng.random() < 0.8)

    def new_table(self, rng: random.Random, label: str, kind: str) -> Table:
        """A table of one of the `KINDS`."""
        columns = [self.new_column(rng) for _ in range(rng.randint(2, 5))]
        key, identity, partitions = KINDS[kind]
        if kind == "toast":
            columns += [
                Column(self.fresh("big"), "text", big=True),
                Column(self.fresh("n"), "integer"),
            ]
        table = Table(label, "public", label, columns, key, identity, partitions=partitions)
        if partitions:
            table.leaves = [Leaf(f"{label}_p{slot}", slot) for slot in range(3)]
        return table


KINDS = {
    "plain": (("id",), "default", ""),
    "composite": (("region", "id"), "default", ""),
    "text": (("k",), "default", ""),
    "full": (("id",), "full", ""),
    "index": (("id",), "index", ""),
    "toast": (("id",), "default", ""),
    "keyless": ((), "full", ""),
    "root": (("id",), "default", "root"),
    "leaves": (("id",), "default", "leaf"),
}
"""Kinds of tables: key, replica identity, and what is published of partitions."""


def definition(table: Table) -> str:
    """The column list of CREATE TABLE. Every table has `id`, `region` and `k`, any may be a key."""
    own = [
        f"{column.name} {column.type}{'' if column.nullable else ' NOT NULL'}"
        f"{' STORAGE EXTERNAL' if column.big else ''}"
        for column in table.columns
    ]
    base = ["id int NOT NULL", "region text NOT NULL", "k text NOT NULL"]
    named = f"CONSTRAINT {table.label}_pkey PRIMARY KEY ({', '.join(table.key)})"
    return ", ".join([*base, *own, *([named] if table.key and table.identity != "index" else [])])


def creation(table: Table) -> list[str]:
    """The statements that create and publish a table."""
    by = " PARTITION BY RANGE (id)" if table.partitions else ""
    made = [f"CREATE TABLE {table.sql} ({definition(table)}){by}"]
    made += [partition(table, leaf) for leaf in table.leaves]
    if table.identity == "full":
        made.append(f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL")
    if table.identity == "index":
        made.append(
            f"CREATE UNIQUE INDEX {table.label}_key ON {table.sql} ({', '.join(table.key)})"
        )
        made.append(f"ALTER TABLE {table.sql} REPLICA IDENTITY USING INDEX {table.label}_key")
    names = [table.sql]
    if table.partitions == "leaf":
        names = [f"{table.schema}.{leaf.name}" for leaf in table.leaves]
    return [*made, *(publish(name) for name in names)]


def partition(table: Table, leaf: Leaf) -> str:
    return f"CREATE TABLE {table.schema}.{leaf.name} PARTITION OF {table.sql} {bounds(leaf)}"


def bounds(leaf: Leaf) -> str:
    low = leaf.slot * LEAF_WIDTH
    return f"FOR VALUES FROM ({low}) TO ({low + LEAF_WIDTH})"


PUBLICATION = "storm"


def publish(name: str, filter: str = "") -> str:
    where = f" WHERE ({filter})" if filter else ""
    return f"ALTER PUBLICATION {PUBLICATION} ADD TABLE {name}{where}"


def insert(table: Table, ids: str, salt: int) -> str:
    """Insert a row for each number of a set-returning expression; existing keys are left alone."""
    names = ["id", "region", "k", *(column.name for column in table.columns)]
    values = [column.value("g", salt + at) for at, column in enumerate(table.columns)]
    row = ["g", "(ARRAY['eu', 'us', ''])[1 + g % 3]", "'k' || g", *values]
    return (
        f"INSERT INTO {table.sql} ({', '.join(names)}) SELECT {', '.join(row)} FROM {ids} AS g"
        " ON CONFLICT DO NOTHING"
    )
