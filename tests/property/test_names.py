"""Whatever PostgreSQL calls its tables and columns, the lake's names never meet."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lake_consumer.columns import TEXT_COLUMN, lake_column
from lake_consumer.iceberg.names import (
    CUTS,
    RESYNCS,
    VERIFICATIONS,
    log_of,
    mirror_of,
    table_of,
    table_of_log,
    table_of_mirror,
)
from schemas.names import TableName

OWN = {CUTS, RESYNCS, VERIFICATIONS}


def names(*parts: str) -> st.SearchStrategy[str]:
    """Names put together from what is reserved, what is like it, and anything else."""
    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=3)
    joined = st.lists(st.one_of(st.sampled_from(parts), text), min_size=1, max_size=4)
    return joined.map("".join).filter(bool)


schemas = names("public", "_bridge", "__changes", "_", "__", "_changes", ".")
tables = st.builds(TableName, schemas, st.sampled_from(["cuts", "resyncs", "t"]))
columns = names(TEXT_COLUMN, ".key", ".value", ".element", ".ELEMENT", "a", "_", ".")


@settings(max_examples=1_000)
@given(st.sets(tables, min_size=1, max_size=6))
def test_every_table_has_places_of_its_own_and_every_place_one_table(made: set[TableName]) -> None:
    mirrors, logs = [mirror_of(table) for table in made], [log_of(table) for table in made]

    assert len({*mirrors, *logs}) == 2 * len(made)
    assert not {*mirrors, *logs} & OWN
    assert list(map(table_of_mirror, mirrors)) == list(map(table_of_log, logs)) == list(made)
    assert list(map(table_of, [*mirrors, *logs])) == [*made, *made]
    assert not any(map(table_of_log, mirrors))
    assert not any(map(table_of_mirror, logs))


@settings(max_examples=1_000)
@given(st.sets(columns, min_size=1, max_size=6))
def test_no_two_columns_of_a_row_have_one_path(made: set[str]) -> None:
    """Let all of them be arrays of arrays: Iceberg indexes their elements by paths, too."""
    held = sorted(map(lake_column, made))
    paths = [path for name in held for path in (name, f"{name}.element", f"{name}.element.element")]
    paths += [TEXT_COLUMN, f"{TEXT_COLUMN}.key", f"{TEXT_COLUMN}.value"]

    assert len(set(paths)) == len(paths)
    assert TEXT_COLUMN not in {name.lower() for name in held}
