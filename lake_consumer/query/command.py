"""`lake-consumer query` and `lake-consumer cuts`: the lake from a terminal, without Spark.

Without `--at` every table is read as it is now. With it, all of them at one cut: the newest at or
before what was asked for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from difflib import get_close_matches

from lake_consumer.config import LakeConfig
from lake_consumer.cuts import Cut, When
from lake_consumer.errors import UnknownTable
from lake_consumer.iceberg.moments import LakeAt, LakeNow
from lake_consumer.iceberg.names import CATALOG, LakeName, table_of_mirror
from lake_consumer.iceberg.reading import LakeReader
from lake_consumer.query.engine import Parts, Place, answer
from lake_consumer.query.printing import FORMATS, aligned, hidden_columns
from lake_consumer.reading.relations import Relation
from lake_consumer.terminal import flush, write
from schemas.names import DEFAULT_SCHEMA


def print_query(
    config: LakeConfig,
    sql: str,
    when: When,
    *,
    at_cut: bool,
    format: str,
    wait_seconds: float = 0,
) -> None:
    """Run SQL over the lake and print its rows."""
    with LakeReader(config.catalog, config.warehouse) as lake:
        tables = LakeAt.choose(lake, when, wait_seconds) if at_cut else LakeNow(lake)
        names = tables.names()
        called = called_in_postgres(names)
        known = [*names, *(name for name in called if name not in names)]

        def open_table(place: Place) -> Relation:
            name = LakeName(*place)
            if name not in names:
                return tables.open(called[name])
            if name in called:
                sys.stderr.write(
                    f"{name} is the lake's own; PostgreSQL's table of that name is {called[name]}\n"
                )
            return tables.open(name)

        with answer(sql, lambda parts: find(parts, known), open_table) as rows:
            _print(FORMATS[format](rows, hidden_columns(sql)))


def print_cuts(config: LakeConfig, limit: int, *, as_json: bool) -> None:
    """List the newest cuts, newest first."""
    with LakeReader(config.catalog, config.warehouse) as lake:
        cuts = lake.cuts().cuts()[::-1][:limit]
    if as_json:
        _print(json.dumps(_document(cut), ensure_ascii=False) for cut in cuts)
        return
    head = ("commit LSN", "commit time", "stream sequence", "tables")
    rows = [
        (str(c.commit_lsn), c.commit_ts.isoformat(), str(c.stream_seq), ", ".join(c.tables))
        for c in cuts
    ]
    _print(aligned(head, rows) if rows else ["The lake has no cut yet."])


def _document(cut: Cut) -> dict[str, object]:
    return {
        "commit_lsn": int(cut.commit_lsn),
        "lsn": str(cut.commit_lsn),
        "commit_ts": cut.commit_ts.isoformat(),
        "stream_seq": cut.stream_seq,
        "tables": list(cut.tables),
    }


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        write(line + "\n")
    flush()


def called_in_postgres(names: Iterable[LakeName]) -> dict[LakeName, LakeName]:
    """The mirrors that PostgreSQL calls by a name which the lake keeps for itself, by that name."""
    tables = {name: table for name in names if (table := table_of_mirror(name)) is not None}
    called = {LakeName(table.schema, table.table): name for name, table in tables.items()}
    return {there: here for there, here in called.items() if there != here}


def find(parts: Parts, names: list[LakeName]) -> Place:
    """The lake's table that SQL means; unquoted names do not mind upper and lower case."""
    wanted = parts[1:] if len(parts) == 3 and parts[0].lower() == CATALOG else parts
    if len(wanted) == 1:
        wanted = (DEFAULT_SCHEMA, *wanted)
    known = [(name.namespace, name.name) for name in names]
    # As PostgreSQL does it: as it is written, else in lower case; then however it is spelled.
    lower = tuple(map(str.lower, wanted))
    folded = [place for place in known if tuple(map(str.lower, place)) == lower]
    for place in (wanted, lower):
        if place in known:
            return place[0], place[1]
    if len(folded) > 1:
        spelled = ", ".join(map(".".join, folded))
        raise UnknownTable(
            f"{'.'.join(parts)} may be any of {spelled}",
            advice="Write the name in double quotes, in upper and lower case as it is.",
        )
    for place in folded:
        return place
    raise UnknownTable(f"the lake has no table {'.'.join(parts)}{_near(wanted, known)}")


def _near(wanted: Parts, known: list[Place]) -> str:
    """A table of that name in another schema, or what is spelled nearly so."""
    alike = set(get_close_matches(wanted[-1], [name for _, name in known], n=3))
    same = [place for place in known if place[1] == wanted[-1]]
    near = same or [place for place in known if place[1] in alike]
    return f"; it has {', '.join(map('.'.join, near[:4]))}" if near else ""
