"""What the storm does: one row per action, with a weight and what it needs.

An action is a generator of statements. It reads the model (`world`), yields SQL, and changes the
model after a statement has succeeded; a statement that fails ends the action and undoes it. So the
same seed gives the same statements, because PostgreSQL answers the same to one writer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.storm.values import TYPE_CHANGES, TYPES, type_of
from tests.storm.world import (
    LEAF_WIDTH,
    PUBLICATION,
    Column,
    Leaf,
    Table,
    World,
    bounds,
    creation,
    insert,
    partition,
    publish,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, and the label of the table that it touches."""

    sql: str
    label: str


Steps = Iterator[Statement]
Act = Callable[[random.Random, World], Steps]


@dataclass(frozen=True, slots=True)
class Action:
    """One row of the table of actions."""

    name: str
    weight: float
    act: Act
    needs: str = ""
    """The capability without which the action is left out."""


def pick(rng: random.Random, world: World, fits: Callable[[Table], bool]) -> Table | None:
    found = [table for table in world.tables if fits(table)]
    return rng.choice(found) if found else None


def anything(_: Table) -> bool:
    return True


def plain(table: Table) -> bool:
    return not table.partitions


def keyed(table: Table) -> bool:
    return bool(table.key) and plain(table)


def do(table: Table, *statements: str) -> Steps:
    for statement in statements:
        yield Statement(statement, table.label)


def numbers(rng: random.Random, table: Table, world: World, most: int = 30) -> str:
    """Numbers for new rows: fresh ones, or, every third time, some that were used before."""
    count = rng.randint(1, most)
    if table.partitions:
        leaf = rng.choice(table.attached) if table.attached else Leaf("", 0)
        first = leaf.slot * LEAF_WIDTH + rng.randrange(LEAF_WIDTH - most)
    elif rng.random() < 0.35:
        first = rng.randint(1, max(1, min(world.ids, 1_200)))
    else:
        first, _ = world.fresh_ids(count)
    return f"generate_series({first}, {first + count - 1})"


def some_rows(rng: random.Random, table: Table) -> str:
    """A condition that holds for a few rows, for a share of them, or for all."""
    few = (
        f"id IN (SELECT id FROM {table.sql} ORDER BY id OFFSET {rng.randrange(20)}"
        f" LIMIT {rng.randint(1, 6)})"
    )
    share = f"id % {rng.randint(2, 5)} = {rng.randrange(2)}"
    return rng.choice([few, few, share, "true"])


# DML


def insert_rows(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, anything):
        yield from do(table, insert(table, numbers(rng, table, world), rng.randint(1, 99)))


def update_rows(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: bool(table.mine))
    if table is None:
        return
    chosen = rng.sample(table.mine, rng.randint(1, min(2, len(table.mine))))
    salt = rng.randint(1, 99)
    new = ", ".join(f"{column.name} = {column.value('id', salt)}" for column in chosen)
    yield from do(table, f"UPDATE {table.sql} SET {new} WHERE {some_rows(rng, table)}")


def update_beside_toast(rng: random.Random, world: World) -> Steps:
    """Change anything but the values out of line, which PostgreSQL then does not send."""
    table = pick(rng, world, lambda table: any(column.big for column in table.columns))
    if table is None:
        return
    small = [column for column in table.mine if not column.big]
    if small:
        column = rng.choice(small)
        new = f"{column.name} = {column.value('id', rng.randint(1, 99))}"
        yield from do(table, f"UPDATE {table.sql} SET {new} WHERE {some_rows(rng, table)}")


def move_beside_toast(rng: random.Random, world: World) -> Steps:
    """Change keys of rows whose large values are not sent."""
    fits = lambda table: keyed(table) and any(column.big for column in table.columns)  # noqa: E731
    if table := pick(rng, world, fits):
        low, high = world.fresh_ids(10_000)
        where = some_rows(rng, table)
        yield from do(table, f"UPDATE {table.sql} SET {rekey(low)} WHERE {where}")
        yield from do(table, insert(table, f"generate_series(1, {rng.randint(1, 15)})", high % 97))


def delete_rows(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, anything):
        yield from do(table, f"DELETE FROM {table.sql} WHERE {some_rows(rng, table)}")


def delete_and_insert(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, plain):
        first = rng.randint(1, 1_100)
        ids = f"generate_series({first}, {first + rng.randint(1, 40)})"
        yield from do(
            table,
            f"DELETE FROM {table.sql} WHERE id IN (SELECT {ids})",
            insert(table, ids, rng.randint(1, 99)),
        )


def truncate(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, anything):
        yield from do(table, f"TRUNCATE {table.sql}")
        if rng.random() < 0.7:
            yield from do(table, insert(table, numbers(rng, table, world), rng.randint(1, 99)))


def rekey(step: int) -> str:
    """SET clauses that give rows other keys, whatever the key is."""
    return f"id = id + {step}, k = k || '+' || ({step})::text"


def shift_keys(rng: random.Random, world: World) -> Steps:
    """Move keys up, and use the old ones again."""
    table = pick(rng, world, keyed)
    if table is None:
        return
    step, _ = world.fresh_ids(10_000)
    yield from do(table, f"UPDATE {table.sql} SET {rekey(step)} WHERE {some_rows(rng, table)}")
    if rng.random() < 0.8:
        first = rng.randint(1, 1_010)
        ids = f"generate_series({first}, {first + rng.randint(5, 25)})"
        yield from do(table, insert(table, ids, rng.randint(1, 99)))
    if rng.random() < 0.3:
        back = f"id = id - {step}, k = 'b' || k WHERE id > {step} AND id % 2 = 0"
        yield from do(table, f"UPDATE {table.sql} SET {back}")


def swap_keys(rng: random.Random, world: World) -> Steps:
    """Two rows exchange their keys by way of a third."""
    table = pick(rng, world, keyed)
    if table is None:
        return
    at, aside = rng.randrange(8), -rng.randint(1, 10**6)
    one = f"(SELECT id FROM {table.sql} WHERE id > 0 ORDER BY id OFFSET {at} LIMIT 1)"
    two = f"(SELECT id FROM {table.sql} WHERE id > 0 ORDER BY id DESC OFFSET {at} LIMIT 1)"
    hold = f"set_config('storm.one', {one}::text, true), set_config('storm.two', {two}::text, true)"
    held = "nullif(current_setting('storm.{}'), '')::int"
    a, b = held.format("one"), held.format("two")
    change = "UPDATE {t} SET id = {to}, k = 's{s}' || {to} WHERE id = {at}"
    salt = rng.randint(1, 10**6)
    yield from do(
        table,
        f"SELECT {hold}",
        change.format(t=table.sql, to=aside, at=a, s=salt),
        change.format(t=table.sql, to=a, at=b, s=salt),
        change.format(t=table.sql, to=b, at=aside, s=salt),
    )


def churn_one_key(rng: random.Random, world: World) -> Steps:
    """One key many times in one transaction."""
    table = pick(rng, world, keyed)
    if table is None:
        return
    at = rng.randint(1, 1_050)
    for _ in range(rng.randint(2, 6)):
        made = insert(table, f"generate_series({at}, {at})", rng.randint(1, 99))
        gone = f"DELETE FROM {table.sql} WHERE id = {at}"
        moved = f"UPDATE {table.sql} SET {rekey(world.fresh_ids(1)[0])} WHERE id = {at}"
        yield from do(table, rng.choice([made, made, gone, moved]))


def big_transaction(rng: random.Random, world: World) -> Steps:
    """More messages than the lake puts into one part of a batch, then key changes behind them."""
    filler = pick(rng, world, lambda table: table.label.endswith("filler"))
    if filler is None:
        return
    rows = rng.choice([26_000, 52_000])
    first, last = world.fresh_ids(rows)
    yield from do(filler, f"DELETE FROM {filler.sql} WHERE id < {first - 60_000}")
    yield from do(filler, insert(filler, f"generate_series({first}, {last})", rng.randint(1, 99)))
    yield from shift_keys(rng, world)
    yield from swap_keys(rng, world)


# Columns


def add_column(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, anything):
        column = Column(world.fresh("c"), rng.choice(sorted(TYPES)))
        yield from do(table, f"ALTER TABLE {table.sql} ADD COLUMN {column.name} {column.type}")
        table.columns.append(column)


def add_with_default(rng: random.Random, world: World, *, volatile: bool) -> Steps:
    table = pick(rng, world, anything)
    if table is None:
        return
    kinds = sorted(name for name, kind in TYPES.items() if kind.volatile or not volatile)
    column = Column(world.fresh("d"), rng.choice(kinds), nullable=rng.random() < 0.6)
    kind = type_of(column.type)
    default = kind.volatile if volatile else kind.constant
    null = "" if column.nullable else " NOT NULL"
    added = f"ADD COLUMN {column.name} {column.type}{null} DEFAULT {default}"
    yield from do(table, f"ALTER TABLE {table.sql} {added}")
    table.columns.append(column)
    # What migration tools do: the default is for the rows there are.
    if rng.random() < 0.5:
        yield from do(table, f"ALTER TABLE {table.sql} ALTER COLUMN {column.name} DROP DEFAULT")


def add_constant(rng: random.Random, world: World) -> Steps:
    yield from add_with_default(rng, world, volatile=False)


def add_volatile(rng: random.Random, world: World) -> Steps:
    yield from add_with_default(rng, world, volatile=True)


def drop_column(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: len(table.mine) > 2)
    if table is None:
        return
    column = rng.choice(table.mine)
    yield from do(table, f"ALTER TABLE {table.sql} DROP COLUMN {column.name}")
    table.columns.remove(column)
    if rng.random() < 0.3:
        # The same name for another column.
        again = Column(column.name, rng.choice(sorted(TYPES)))
        yield from do(table, f"ALTER TABLE {table.sql} ADD COLUMN {again.name} {again.type}")
        table.columns.append(again)


def rename_column(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: bool(table.columns))
    if table is None:
        return
    column, name = rng.choice(table.columns), world.fresh("r")
    yield from do(table, f"ALTER TABLE {table.sql} RENAME COLUMN {column.name} TO {name}")
    table.key = tuple(name if part == column.name else part for part in table.key)
    column.name = name


def swap_names(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: len(table.mine) > 1)
    if table is None:
        return
    one, two = rng.sample(table.mine, 2)
    start = f"ALTER TABLE {table.sql} RENAME COLUMN"
    yield from do(
        table,
        f"{start} {one.name} TO swapping",
        f"{start} {two.name} TO {one.name}",
        f"{start} swapping TO {two.name}",
    )
    one.name, two.name = two.name, one.name


def change_type(rng: random.Random, world: World) -> Steps:
    possible = [
        (table, column, change)
        for table in world.tables
        for column in table.mine
        for change in TYPE_CHANGES
        if change.before == column.type and not column.big
    ]
    if not possible:
        return
    table, column, change = rng.choice(possible)
    using = f" USING {change.using.format(c=column.name)}" if change.using else ""
    yield from do(
        table,
        f"ALTER TABLE {table.sql} ALTER COLUMN {column.name} DROP DEFAULT",
        f"ALTER TABLE {table.sql} ALTER COLUMN {column.name} TYPE {change.after}{using}",
    )
    column.type = change.after


def set_default(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: bool(table.mine))
    if table is None:
        return
    column = rng.choice(table.mine)
    default = f"SET DEFAULT {type_of(column.type).constant}"
    what = rng.choice([default, "DROP DEFAULT", "DROP NOT NULL"])
    yield from do(table, f"ALTER TABLE {table.sql} ALTER COLUMN {column.name} {what}")
    column.nullable = column.nullable or what == "DROP NOT NULL"


# Keys and identity


def change_key(rng: random.Random, world: World) -> Steps:
    """Another primary key; a table without one gets one."""
    fits = lambda table: plain(table) and table.identity in ("default", "full") and not table.filter  # noqa: E731
    table = pick(rng, world, fits)
    if table is None:
        return
    key = rng.choice([key for key in (("id",), ("region", "id"), ("k",)) if key != table.key])
    yield from do(
        table,
        f"ALTER TABLE {table.sql} DROP CONSTRAINT IF EXISTS {table.label}_pkey",
        f"ALTER TABLE {table.sql} ADD CONSTRAINT {table.label}_pkey PRIMARY KEY ({', '.join(key)})",
    )
    table.key = key


def change_identity(rng: random.Random, world: World) -> Steps:
    fits = lambda table: keyed(table) and table.identity != "index"  # noqa: E731
    if table := pick(rng, world, fits):
        identity = "full" if table.identity == "default" else "default"
        yield from do(table, f"ALTER TABLE {table.sql} REPLICA IDENTITY {identity}")
        table.identity = identity


# Tables


def rename_table(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, lambda table: not table.label.endswith("filler")):
        name = world.fresh(f"{world.letter}t")
        yield from do(table, f"ALTER TABLE {table.sql} RENAME TO {name}")
        table.name = name


def set_schema(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, plain):
        schema = world.schema if table.schema == "public" else "public"
        yield from do(table, f"ALTER TABLE {table.sql} SET SCHEMA {schema}")
        table.schema = schema


def recreate(rng: random.Random, world: World) -> Steps:
    """Drop a table and create another one of its name, with other columns half of the time."""
    table = pick(rng, world, lambda table: plain(table) and table.identity != "index")
    if table is None:
        return
    yield from do(table, f"DROP TABLE {table.sql}")
    table.filter, table.published = "", True
    if rng.random() < 0.5 or any(column.type not in TYPES for column in table.columns):
        table.columns = [world.new_column(rng) for _ in range(rng.randint(2, 5))]
    yield from do(
        table, *creation(table), insert(table, "generate_series(1, 20)", rng.randint(1, 99))
    )


def create_table(rng: random.Random, world: World) -> Steps:
    if len(world.tables) > 14:
        return
    kind = rng.choice(["plain", "composite", "text", "full", "toast", "keyless"])
    label = world.fresh(f"{world.letter}n")
    table = world.new_table(rng, label, kind)
    yield from do(table, *creation(table))
    world.tables.append(table)
    if rng.random() < 0.7:
        yield from do(table, insert(table, "generate_series(1, 30)", rng.randint(1, 99)))


def drop_table(rng: random.Random, world: World) -> Steps:
    fits = lambda table: plain(table) and not table.label.endswith("filler")  # noqa: E731
    table = pick(rng, world, fits)
    if table is None or len(world.tables) < 4:
        return
    yield from do(table, f"DROP TABLE {table.sql}")
    world.tables.remove(table)


# Partitions


def partitioned(table: Table) -> bool:
    return bool(table.partitions)


def add_partition(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: partitioned(table) and len(table.leaves) < 7)
    if table is None:
        return
    slot = max([leaf.slot for leaf in table.leaves], default=0) + 1
    leaf = Leaf(world.fresh(f"{world.letter}p"), slot)
    yield from do(table, partition(table, leaf))
    table.leaves.append(leaf)
    if table.partitions == "leaf":
        yield from do(table, publish(f"{table.schema}.{leaf.name}"))


def attach_with_rows(rng: random.Random, world: World) -> Steps:
    """A table that is filled before it becomes a partition."""
    table = pick(rng, world, lambda table: partitioned(table) and len(table.leaves) < 7)
    if table is None:
        return
    slot = max([leaf.slot for leaf in table.leaves], default=0) + 1
    leaf = Leaf(world.fresh(f"{world.letter}p"), slot)
    name, first = f"{table.schema}.{leaf.name}", slot * LEAF_WIDTH
    filled = insert(
        table, f"generate_series({first}, {first + rng.randint(0, 20)})", rng.randint(1, 99)
    )
    yield from do(
        table,
        f"CREATE TABLE {name} (LIKE {table.sql} INCLUDING INDEXES)",
        filled.replace(f"INSERT INTO {table.sql}", f"INSERT INTO {name}"),
        f"ALTER TABLE {table.sql} ATTACH PARTITION {name} {bounds(leaf)}",
    )
    table.leaves.append(leaf)
    if table.partitions == "leaf":
        yield from do(table, publish(name))


def detach(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: partitioned(table) and len(table.attached) > 1)
    if table is None:
        return
    leaf = rng.choice(table.attached)
    yield from do(table, f"ALTER TABLE {table.sql} DETACH PARTITION {table.schema}.{leaf.name}")
    leaf.attached = False
    if rng.random() < 0.3:
        name = f"{table.schema}.{leaf.name}"
        yield from do(table, f"DELETE FROM {name} WHERE id % 2 = 0")
        yield from do(table, f"ALTER TABLE {table.sql} ATTACH PARTITION {name} {bounds(leaf)}")
        leaf.attached = True


def attach_again(rng: random.Random, world: World) -> Steps:
    fits = lambda table: any(not leaf.attached for leaf in table.leaves)  # noqa: E731
    table = pick(rng, world, fits)
    if table is None:
        return
    leaf = rng.choice([leaf for leaf in table.leaves if not leaf.attached])
    name = f"{table.schema}.{leaf.name}"
    yield from do(table, f"ALTER TABLE {table.sql} ATTACH PARTITION {name} {bounds(leaf)}")
    leaf.attached = True


def drop_partition(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: partitioned(table) and len(table.attached) > 2)
    if table is None:
        return
    leaf = rng.choice(table.leaves)
    yield from do(table, f"DROP TABLE {table.schema}.{leaf.name}")
    table.leaves.remove(leaf)


def truncate_leaf(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: bool(table.attached))
    if table is None:
        return
    leaf = rng.choice(table.attached)
    yield from do(table, f"TRUNCATE {table.schema}.{leaf.name}")


def move_between_leaves(rng: random.Random, world: World) -> Steps:
    table = pick(rng, world, lambda table: len(table.attached) > 1)
    if table is None:
        return
    one, two = rng.sample(table.attached, 2)
    low = one.slot * LEAF_WIDTH
    step = (two.slot - one.slot) * LEAF_WIDTH
    where = f"id >= {low} AND id < {low + LEAF_WIDTH} AND id % 3 = {rng.randrange(3)}"
    yield from do(table, f"UPDATE {table.sql} SET id = id + {step} WHERE {where}")


# Publication


def unpublish(rng: random.Random, world: World) -> Steps:
    fits = lambda table: table.published and plain(table) and not table.label.endswith("filler")  # noqa: E731
    if table := pick(rng, world, fits):
        yield from do(table, f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {table.sql}")
        table.published, table.filter = False, ""


def publish_again(rng: random.Random, world: World) -> Steps:
    if table := pick(rng, world, lambda table: not table.published):
        yield from do(table, publish(table.sql))
        table.published = True


def change_filter(rng: random.Random, world: World) -> Steps:
    """Another row filter, or none any more."""
    fits = lambda table: table.published and "id" in table.key and plain(table)  # noqa: E731
    table = pick(rng, world, fits)
    if table is None:
        return
    chosen = rng.choice(["", "id % 2 = 0", "id % 3 <> 1", "id < 1010"])
    yield from do(
        table,
        f"ALTER PUBLICATION {PUBLICATION} DROP TABLE {table.sql}",
        publish(table.sql, chosen),
    )
    table.filter = chosen


ACTIONS = (
    Action("insert_rows", 14, insert_rows),
    Action("update_rows", 14, update_rows),
    Action("update_beside_toast", 6, update_beside_toast),
    Action("move_beside_toast", 3, move_beside_toast),
    Action("delete_rows", 5, delete_rows),
    Action("delete_and_insert", 5, delete_and_insert),
    Action("truncate", 2, truncate),
    Action("shift_keys", 7, shift_keys),
    Action("swap_keys", 4, swap_keys),
    Action("churn_one_key", 5, churn_one_key),
    Action("add_column", 3, add_column),
    Action("add_constant", 3, add_constant, "defaults"),
    Action("add_volatile", 1.5, add_volatile, "volatile"),
    Action("drop_column", 3, drop_column),
    Action("rename_column", 3, rename_column),
    Action("swap_names", 1.5, swap_names),
    Action("change_type", 4, change_type, "rewrite"),
    Action("set_default", 1, set_default),
    Action("change_key", 1.5, change_key),
    Action("change_identity", 2, change_identity),
    Action("rename_table", 1, rename_table, "rename"),
    Action("set_schema", 1, set_schema, "rename"),
    Action("recreate", 1.5, recreate, "tables"),
    Action("create_table", 1, create_table, "tables"),
    Action("drop_table", 0.7, drop_table, "tables"),
    Action("add_partition", 1, add_partition, "partitions"),
    Action("attach_with_rows", 1, attach_with_rows, "partitions"),
    Action("detach", 1, detach, "partitions"),
    Action("attach_again", 1, attach_again, "partitions"),
    Action("drop_partition", 0.7, drop_partition, "partitions"),
    Action("truncate_leaf", 1, truncate_leaf, "partitions"),
    Action("move_between_leaves", 2, move_between_leaves),
    Action("unpublish", 0.7, unpublish, "publication"),
    Action("publish_again", 1.5, publish_again, "publication"),
    Action("change_filter", 0.7, change_filter, "publication"),
)

OUTSIDE_TRANSACTIONS = ("VACUUM FULL {t}", "CLUSTER {t} USING {i}")
"""They write every row to another place and change none."""
