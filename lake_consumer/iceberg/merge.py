"""The delete of a batch's keys from a mirror, as SQL.

A MERGE that only deletes is an inner join of the mirror's key columns with the batch's keys, which
are sent to every reader of the mirror: nothing of the mirror is shuffled. One that inserts as well
would have to keep every key of both sides, and shuffle the whole mirror's.
"""

from __future__ import annotations

from lake_consumer.columns import TEXT_COLUMN
from lake_consumer.iceberg.keys import KeyedRows
from lake_consumer.iceberg.names import quote
from lake_consumer.values import may_be_text


def delete_sql(target: str, source: str, rows: KeyedRows, edges: tuple[int, int] | None) -> str:
    # Target and source are quoted identifiers; values come from the source, never from text.
    return (
        f"MERGE INTO {target} t USING {quote(source)} s ON {_condition(rows, edges)} "
        f"WHEN MATCHED THEN DELETE"
    )


def _condition(rows: KeyedRows, edges: tuple[int, int] | None) -> str:
    aliases = iter(rows.aliases)
    terms = []
    for column in rows.key:
        name = quote(column.name)
        if may_be_text(column.type):
            text = f"{quote(TEXT_COLUMN)}['{_literal(column.name)}']"
            terms += [f"t.{name} <=> s.{next(aliases)}", f"t.{text} <=> s.{next(aliases)}"]
        else:
            terms.append(f"t.{name} = s.{next(aliases)}")
    if edges is not None:
        # Iceberg leaves out files whose keys are all outside the batch's.
        first = quote(rows.key[0].name)
        terms.append(f"t.{first} BETWEEN {edges[0]} AND {edges[1]}")
    return " AND ".join(terms)


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
