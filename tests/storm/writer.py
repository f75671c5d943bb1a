"""One writer: transactions of random actions on its own tables, and what they left behind."""

from __future__ import annotations

import copy
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psycopg

from tests.storm.actions import ACTIONS, OUTSIDE_TRANSACTIONS, Action, big_transaction
from tests.storm.truth import Connection, History, TableVersion, connect, read_tables
from tests.storm.world import World, creation, insert

KEPT = 4_000


@dataclass(frozen=True, slots=True)
class Executed:
    """A statement that was sent; `number` is that of the transaction it belongs to."""

    number: int
    label: str
    sql: str
    outcome: str


class Writer:
    """Runs a fixed number of transactions, the same ones for the same seed."""

    def __init__(
        self,
        dsn: str,
        letter: str,
        seed: int,
        kinds: Collection[str],
        capabilities: Collection[str],
    ) -> None:
        self.dsn = dsn
        self.rng = random.Random(f"{seed}-{letter}")
        self.world = World(letter, f"s_{letter}")
        self.history = History(letter)
        self.log: deque[Executed] = deque(maxlen=KEPT)
        self.outcomes: Counter[tuple[str, bool]] = Counter()
        self.number = 0
        self.steps = 0
        self.limit = 0
        """How many steps may be taken by now."""

        self.failure: BaseException | None = None
        self._touched: set[str] = set()
        self._actions = [a for a in ACTIONS if not a.needs or a.needs in capabilities]
        self._kinds = kinds

    @property
    def letter(self) -> str:
        return self.world.letter

    def set_up(self, connection: Connection) -> None:
        """Create the first tables, with rows that only a snapshot brings."""
        connection.execute(f"CREATE SCHEMA {self.world.schema}".encode())
        labels = [(kind, f"{self.letter}_{kind}") for kind in self._kinds]
        for kind, label in [*labels, ("plain", f"{self.letter}_filler")]:
            table = self.world.new_table(self.rng, label, kind)
            self.world.tables.append(table)
            rows = insert(table, "generate_series(1, 40)", self.rng.randint(1, 99))
            for statement in [*creation(table), rows]:
                connection.execute(statement.encode())
        connection.execute("INSERT INTO moment VALUES (%s, 0)", [self.letter])
        self._observe(connection)

    def run(self, steps: int, pause_seconds: float, big_at: Collection[int]) -> None:
        """Take so many steps; what fails unexpectedly is kept for the one who waits."""
        try:
            with connect(self.dsn) as connection:
                for at in range(steps):
                    while at >= self.limit:
                        time.sleep(0.02)
                    if at in big_at:
                        self.big(connection)
                    else:
                        self.step(connection)
                    self.steps += 1
                    time.sleep(self.rng.expovariate(1 / pause_seconds))
        except BaseException as failure:
            self.failure = failure

    def step(self, connection: Connection) -> None:
        """One transaction, or one statement that PostgreSQL allows only outside of one."""
        shape = self.rng.choices(list(_SHAPES), [weight for _, weight in _SHAPES.values()])[0]
        _SHAPES[shape][0](self, connection)

    def big(self, connection: Connection) -> None:
        """A transaction beyond the lake's thresholds."""
        self._transact(connection, [Action("big_transaction", 0, big_transaction)])

    # Shapes of transactions

    def single(self, connection: Connection) -> None:
        self._transact(connection, self._choose(1))

    def several(self, connection: Connection) -> None:
        self._transact(connection, self._choose(self.rng.randint(2, 6)))

    def rolled_back(self, connection: Connection) -> None:
        self._transact(connection, self._choose(self.rng.randint(1, 4)), commit=False)

    def half_rolled_back(self, connection: Connection) -> None:
        """Some of it is undone to a savepoint, and the rest is committed."""
        count = self.rng.randint(2, 5)
        undone = {at for at in range(count) if self.rng.random() < 0.5}
        self._transact(connection, self._choose(count), undone=undone)

    def outside(self, connection: Connection) -> None:
        table = self.rng.choice([table for table in self.world.tables if not table.partitions])
        template = self.rng.choice(OUTSIDE_TRANSACTIONS)
        key = f"{table.label}_key" if table.identity == "index" else f"{table.label}_pkey"
        self._send(connection, table.label, template.format(t=table.sql, i=key), "outside")

    def _choose(self, count: int) -> list[Action]:
        return self.rng.choices(self._actions, [action.weight for action in self._actions], k=count)

    def _transact(
        self,
        connection: Connection,
        actions: list[Action],
        *,
        commit: bool = True,
        undone: Collection[int] = (),
    ) -> None:
        start = copy.deepcopy(self.world)
        marked_first = self.rng.random() < 0.5
        self._plain(connection, "BEGIN")
        if marked_first:
            self._mark(connection)
        for at, action in enumerate(actions):
            self._perform(connection, action, undo=at in undone)
        if not marked_first:
            self._mark(connection)
        self._plain(connection, "COMMIT" if commit else "ROLLBACK")
        if commit:
            self.number += 1
            self._observe(connection)
        else:
            self._restore(start)

    def _perform(self, connection: Connection, action: Action, *, undo: bool) -> None:
        saved = copy.deepcopy(self.world)
        self._plain(connection, "SAVEPOINT action")
        # A generator goes on only when its last statement succeeded, so the model stays true.
        done = all(
            self._send(connection, statement.label, statement.sql, action.name)
            for statement in action.act(self.rng, self.world)
        )
        if done:
            self.history.note_columns(connection)
        if undo or not done:
            self._plain(connection, "ROLLBACK TO SAVEPOINT action")
            self._restore(saved)
        elif self.rng.random() < 0.5:
            self._plain(connection, "RELEASE SAVEPOINT action")

    def _restore(self, saved: World) -> None:
        """Forget what was undone, but use no name or id twice by accident."""
        saved.numbers, saved.ids = self.world.numbers, self.world.ids
        self.world = saved

    def _send(self, connection: Connection, label: str, statement: str, action: str) -> bool:
        self._touched.add(label)
        try:
            connection.execute(statement.encode())
        except psycopg.errors.LockNotAvailable:
            raise
        except psycopg.Error as error:
            self.log.append(Executed(self.number + 1, label, statement, str(error).splitlines()[0]))
            self.outcomes[action, False] += 1
            return False
        self.log.append(Executed(self.number + 1, label, statement, "ok"))
        self.outcomes[action, True] += 1
        return True

    def _plain(self, connection: Connection, statement: str) -> None:
        connection.execute(statement.encode())
        self.log.append(Executed(self.number + 1, "", statement, "ok"))

    def _mark(self, connection: Connection) -> None:
        connection.execute("UPDATE moment SET n = n + 1 WHERE w = %s", [self.letter])

    def _observe(self, connection: Connection) -> None:
        self.history.note_columns(connection)
        before = self.history.versions.get(self.number - 1, {})

        def known(oid: int, name: str) -> TableVersion | None:
            return None if self.label_of(name) in self._touched else before.get(oid)

        self.history.record(self.number, read_tables(connection, self.letter, known))
        self._touched.clear()

    def told_of(self, label: str, last: int = 60) -> list[str]:
        """The newest statements that touched a table, and the frames of their transactions."""
        numbers = {done.number for done in self.log if done.label == label}
        mine = [d for d in self.log if d.label == label or (not d.label and d.number in numbers)]
        return [f"{done.number}: {done.sql[:400]}  -- {done.outcome}" for done in mine[-last:]]

    def label_of(self, name: str) -> str:
        """The label of the table that has this name now, or whose leaf has it."""
        for table in self.world.tables:
            if name in (table.name, *(leaf.name for leaf in table.leaves)):
                return table.label
        return name


_SHAPES: dict[str, tuple[Callable[[Writer, Connection], None], float]] = {
    "single": (Writer.single, 46),
    "several": (Writer.several, 32),
    "rolled back": (Writer.rolled_back, 7),
    "half rolled back": (Writer.half_rolled_back, 9),
    "outside": (Writer.outside, 6),
}
