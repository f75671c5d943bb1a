"""The MERGE of one outcome per key into a mirror, as SQL."""

from __future__ import annotations

from collections.abc import Sequence

from lake_consumer.columns import TEXT_COLUMN
from lake_consumer.iceberg.names import quote
from lake_consumer.iceberg.outcomes import KeyedRows
from lake_consumer.values import may_be_text


def merge_sql(
    target: str,
    source: str,
    names: Sequence[str],
    rows: KeyedRows,
    edges: tuple[int, int] | None,
) -> str:
    sets = ", ".join(f"t.{quote(name)} = s.{quote(name)}" for name in names)
    into = ", ".join(quote(name) for name in names)
    values = ", ".join(f"s.{quote(name)}" for name in names)
    # Target, source and names are quoted identifiers; values come from the source, never from text.
    return (
        f"MERGE INTO {target} t USING {quote(source)} s ON {_condition(rows, edges)} "  # noqa: S608
        f"WHEN MATCHED AND s.operation = 'DELETE' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED AND s.operation <> 'DELETE' THEN INSERT ({into}) VALUES ({values})"
    )


def _condition(rows: KeyedRows, edges: tuple[int, int] | None) -> str:
    terms = []
    for column in rows.key:
        name = quote(column.name)
        if may_be_text(column.type):
            text = f"{quote(TEXT_COLUMN)}['{_literal(column.name)}']"
            terms += [f"t.{name} <=> s.{name}", f"t.{text} <=> s.{text}"]
        else:
            terms.append(f"t.{name} = s.{name}")
    if edges is not None:
        # Iceberg leaves out files whose keys are all outside the batch's.
        first = quote(rows.key[0].name)
        terms.append(f"t.{first} BETWEEN {edges[0]} AND {edges[1]}")
    return " AND ".join(terms)


def _literal(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
