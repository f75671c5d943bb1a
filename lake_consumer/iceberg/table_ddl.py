"""Tables that come, go and get other names, as the driver acts on it (`ddl_plan` decides).

A rename touches two Iceberg tables and the rows of the table of cuts, in as many commits. A journal
of the renames, by the tables' UUIDs, is first written to a property of the table of cuts. If a
consumer dies half-way, the next one finishes the journal, also a swap of two names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from lake_consumer.ddl_plan import (
    AWAITED_PROPERTY,
    SEEN_PROPERTY,
    Back,
    Ddl,
    DdlPlan,
    Former,
    Gone,
    Held,
    Move,
    Notice,
    Routes,
    former_property,
    is_same_database,
    plan_ddl,
    read_former,
    record_moves,
    routes_of,
)
from lake_consumer.iceberg.names import (
    CUTS,
    LakeName,
    log_of,
    mirror_of,
    table_of_log,
    table_of_mirror,
)
from lake_consumer.iceberg.states import StateBook
from lake_consumer.iceberg.tables import LakeTables, RenameImpossible, Table
from lake_consumer.iceberg.types import cuts_schema
from lake_consumer.iceberg.unstamped import STAMP, stamp_off, text
from lake_consumer.logs import info, warn
from lake_consumer.shapes import SHAPE_PROPERTY, held_revision
from lake_consumer.tablestates import LIVE, NO_SNAPSHOT, TableState, gone, loading
from schemas.names import TableName
from schemas.shapes import TableShape

JOURNAL_PROPERTY = "bridge.renaming"
RENAMED_UPTO_PROPERTY = "bridge.renamed-upto"


@dataclass(frozen=True, slots=True)
class Step:
    """An Iceberg table that is to be renamed, wherever it is by now."""

    uuid: str
    before: LakeName
    after: LakeName

    @property
    def detour(self) -> LakeName:
        """Where it waits while another table has the name that it is to get."""
        return LakeName(self.before.namespace, f"{self.before.name}__renaming_{self.uuid[:8]}")

    def to_json(self) -> list[str]:
        return [
            self.uuid, self.before.namespace, self.before.name, self.after.namespace,
            self.after.name,
        ]  # fmt: skip

    @classmethod
    def from_json(cls, fields: Sequence[str]) -> Step:
        uuid, before_space, before, after_space, after = fields
        return cls(uuid, LakeName(before_space, before), LakeName(after_space, after))


def next_rename(steps: Sequence[Step], at: Mapping[str, LakeName]) -> tuple[str, LakeName] | None:
    """Which table to rename next, by UUID, and to what; None if all are where they belong."""
    waiting = [step for step in steps if at.get(step.uuid, step.after) != step.after]
    taken = set(at.values())
    for step in waiting:
        if step.after not in taken:
            return step.uuid, step.after
    # All wait for each other: one steps aside.
    return (waiting[0].uuid, waiting[0].detour) if waiting else None


class TableDdl:
    """Follows DDL in the lake's catalog."""

    def __init__(self, spark: SparkSession, tables: LakeTables, states: StateBook) -> None:
        self._spark = spark
        self._tables = tables
        self._states = states
        self._can_rename = True
        self._former: list[Former] | None = None
        self._renamed_upto = 0
        self._relations: dict[TableName, int] = {}

    @property
    def routes(self) -> Routes:
        """Where changes go that carry a former name of a table."""
        return routes_of(self._names())

    def former_names(self, table: TableName) -> list[TableName]:
        return [one.name for one in self._names() if one.table == table]

    def elsewhere(self, shape: TableShape, source: str) -> Held | None:
        """This relation under another name that the lake has it by, if it has."""
        found = (
            held
            for held in self._held()
            if held.present_relation == shape.relation_id
            and held.name != shape.name
            and not held.gone
            and is_same_database(held.source, source)
        )
        return next(found, None)

    def plan(self, notices: Sequence[Notice]) -> DdlPlan:
        """Decide what a batch's messages mean; most batches have none, or say nothing new."""
        if not any(map(self._matters, notices)):
            return DdlPlan(routes=self.routes)
        held = self._held()
        self._relations = {one.name: one.present_relation for one in held}
        mirrored = set(filter(None, map(table_of_mirror, self._tables.names())))
        taken = mirrored - {one.name for one in held}
        for notice in notices:
            if not isinstance(notice, Ddl):
                # It may be another relation after this batch; names are swapped there and back.
                self._relations.pop(notice.name, None)
        return plan_ddl(
            notices,
            held,
            self._names(),
            renamed_upto=self._renamed_upto,
            taken=frozenset(taken),
            can_rename=self._can_rename,
        )

    def _matters(self, notice: Notice) -> bool:
        if isinstance(notice, Ddl):
            return True
        known = self._relations.get(notice.name)
        return known != notice.relation or self._states.get(notice.name).is_gone

    def move(self, plan: DdlPlan, until: int) -> bool:
        """Rename what the plan says; False if this catalog cannot, and the plan has to be another.

        `until` is the last stream sequence at which the tables had their old names.
        """
        if not plan.moves:
            self.note_aliases(plan.aliases)
            return True
        former = record_moves([*self._names(), *plan.aliases], plan.moves, until)
        steps = [step for move in plan.moves for step in self._steps(move)]
        journal = {
            "steps": [step.to_json() for step in steps],
            "tables": [[str(move.before), str(move.after)] for move in plan.moves],
            "upto": plan.upto,
        }
        before = self._names()
        self._write(former, {JOURNAL_PROPERTY: json.dumps(journal)})
        try:
            self.finish()
        except RenameImpossible as reason:
            warn("the catalog cannot rename tables", reason=reason, meaning="they are reloaded")
            self._can_rename = False
            self._write(before, {}, without=[JOURNAL_PROPERTY])
            return False
        self._relations = {}
        self._states.rename({move.before: move.after for move in plan.moves})
        for move in plan.moves:
            info("table renamed", table=move.after, before=move.before, relation=move.relation)
        return True

    def note_aliases(self, aliases: Sequence[Former]) -> None:
        """Remember names under which the stream carries changes of tables that the lake has."""
        noted = record_moves([*self._names(), *aliases], (), 0)
        is_known = all(one in self._names() for one in aliases)
        if not is_known or routes_of(noted) != self.routes:
            self._write(noted, {})

    def _steps(self, move: Move) -> Iterable[Step]:
        for place in (mirror_of, log_of):
            before, after = place(move.before), place(move.after)
            if self._tables.exists(before):
                yield Step(str(self._tables.load(before).uuid()), before, after)

    def finish(self) -> None:
        """Finish renames that were begun, by this consumer or by one that died."""
        self._finish()
        # Before any table is created: a name that another table had is a folder that it still has.
        self._names()

    def _finish(self) -> None:
        if not self._tables.exists(CUTS):
            return
        cuts = self._tables.load(CUTS)
        properties = self._tables.properties(cuts)
        if JOURNAL_PROPERTY not in properties:
            return
        journal = json.loads(properties[JOURNAL_PROPERTY])
        self._rename_tables([Step.from_json(fields) for fields in journal["steps"]])
        self._rename_in_cuts(cuts, dict(journal["tables"]), str(journal["upto"]))
        cuts.refresh()
        done = {RENAMED_UPTO_PROPERTY: str(journal["upto"])}
        self._tables.set_properties(cuts, done, without=[JOURNAL_PROPERTY])
        self._former = None

    def _rename_tables(self, steps: Sequence[Step]) -> None:
        uuids = {step.uuid for step in steps}
        places = {place for step in steps for place in (step.before, step.detour, step.after)}
        found = {
            str(self._tables.load(place).uuid()): place
            for place in sorted(places)
            if self._tables.exists(place)
        }
        at = {uuid: place for uuid, place in found.items() if uuid in uuids}
        while (move := next_rename(steps, at)) is not None:
            uuid, after = move
            self.rename(at[uuid], after)
            at[uuid] = after

    def rename(self, before: LakeName, after: LakeName) -> None:
        """One rename in the catalog; a seam for tests that die between two of them."""
        self._tables.rename(before, after)

    def _rename_in_cuts(self, cuts: Table, names: Mapping[str, str], mark: str) -> None:
        """Give rows of cuts the new names, once: the commit says that it has done so."""
        snapshots = self._tables.java.list(cuts.snapshots())
        summaries = [self._tables.java.map(found.summary()) for found in snapshots[-20:]]
        if not summaries or any(one.get(RENAMED_UPTO_PROPERTY) == mark for one in summaries):
            return
        cases = " ".join(f"WHEN {text(old)} THEN {text(new)}" for old, new in names.items())
        which = ", ".join(map(text, names))
        with stamp_off(self._spark):
            self._spark.conf.set(STAMP + RENAMED_UPTO_PROPERTY, mark)
            try:
                self._spark.sql(
                    f"UPDATE {CUTS.sql} SET table_name = CASE table_name {cases} END"  # noqa: S608
                    f" WHERE table_name IN ({which})"
                )
            finally:
                self._spark.conf.unset(STAMP + RENAMED_UPTO_PROPERTY)

    def settle(self, plan: DdlPlan) -> None:
        """Keep in their logs which tables are gone, and which came back."""
        for table, end in plan.ends.items():
            if self._tables.exists(log_of(table)):
                self._settle(table, end)
        for move in plan.moves:
            state = self._states.get(move.after)
            if state.kind == "parked" and state.reason.startswith(NO_SNAPSHOT):
                # It was refused under the old name.
                self._states.set(move.after, loading("the table was renamed", plan.upto))

    def _settle(self, table: TableName, end: Gone | Back) -> None:
        if isinstance(end, Gone):
            self._states.set(table, gone(end.reason, end.lsn))
            return
        shape = self._shape(self._tables.properties(self._tables.load(log_of(table))))
        keyed = shape is None or bool(shape.key) or shape.relation_id != end.relation
        since = max(end.sequence, self._states.get(table).since)
        state = loading(end.reason, since) if keyed else LIVE
        self._states.set(table, state, {AWAITED_PROPERTY: str(end.relation)})

    def forget_names(self, table: TableName) -> None:
        """Drop former names of a table that is not in the lake any more, and its cuts."""
        if not self._tables.exists(CUTS):
            return
        self._write([one for one in self._names() if one.table != table], {})
        with stamp_off(self._spark):
            self._spark.sql(
                f"UPDATE {CUTS.sql} SET table_name = NULL, snapshot_id = NULL,"  # noqa: S608
                f" changes_snapshot_id = NULL WHERE table_name = {text(str(table))}"
            )

    def _names(self) -> list[Former]:
        if self._former is None:
            properties = {}
            if self._tables.exists(CUTS):
                properties = self._tables.properties(self._tables.load(CUTS))
            self._former = read_former(properties)
            self._renamed_upto = int(properties.get(RENAMED_UPTO_PROPERTY, "0"))
            self._tables.moved_from = frozenset(
                place(one.name) for one in self._former for place in (mirror_of, log_of)
            )
        return self._former

    def _write(
        self, former: Iterable[Former], properties: Mapping[str, str], without: Sequence[str] = ()
    ) -> None:
        if not self._tables.exists(CUTS):
            self._tables.create(CUTS, cuts_schema())
        cuts = self._tables.load(CUTS)
        self._tables.set_properties(
            cuts, {**former_property(former), **properties}, without=without
        )
        self._former = None

    def _held(self) -> list[Held]:
        found = ((name, table_of_log(name)) for name in self._tables.names())
        return [self._read(table, name) for name, table in found if table is not None]

    def _read(self, table: TableName, name: LakeName) -> Held:
        log = self._tables.load(name)
        properties = self._tables.properties(log)
        shape, state = self._shape(properties), TableState.from_properties(properties)
        columns = self._tables.columns(log, "new")
        return Held(
            name=table,
            relation=0 if shape is None else shape.relation_id,
            source=json.loads(properties.get(SHAPE_PROPERTY, "{}")).get("source", ""),
            revision=held_revision(properties),
            gone=state.reason if state.is_gone else "",
            former_relations=frozenset(c.relation for c in columns if c.relation is not None),
            awaited=int(properties.get(AWAITED_PROPERTY, "0")),
            seen=int(properties.get(SEEN_PROPERTY, "0")),
        )

    def _shape(self, properties: Mapping[str, str]) -> TableShape | None:
        fields: dict[str, Any] = json.loads(properties.get(SHAPE_PROPERTY, "null"))
        return None if fields is None else TableShape.from_map(fields)
