"""What the lake calls tables and columns of PostgreSQL."""

from __future__ import annotations

import pytest

from lake_consumer.columns import lake_column
from lake_consumer.iceberg.names import (
    CUTS,
    LakeName,
    log_of,
    mirror_of,
    table_of,
    table_of_log,
    table_of_mirror,
)
from schemas.names import TableName


@pytest.mark.parametrize(
    ("schema", "mirror", "log"),
    [
        ("public", "public", "public__changes"),
        ("_bridge", "_bridge_", "_bridge___changes"),
        ("_bridge_", "_bridge__", "_bridge____changes"),
        ("_bridges", "_bridges", "_bridges__changes"),
        ("public__changes", "public__changes_", "public__changes___changes"),
        ("public__changes_", "public__changes__", "public__changes____changes"),
        ("__changes", "__changes_", "__changes___changes"),
        ("my_changes", "my_changes", "my_changes__changes"),
    ],
)
def test_schemas_that_the_lake_needs_for_itself_have_another_name(
    schema: str, mirror: str, log: str
) -> None:
    table = TableName(schema, "cuts")

    assert mirror_of(table) == LakeName(mirror, "cuts")
    assert log_of(table) == LakeName(log, "cuts")
    assert table_of_mirror(mirror_of(table)) == table_of_log(log_of(table)) == table


def test_the_lakes_own_tables_are_no_table_of_postgresql() -> None:
    assert table_of(CUTS) is None
    assert table_of(LakeName("_bridge__changes", "cuts")) is None, "nothing is written there"


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("id", "id"),
        ("_bridge_text", "_bridge_text_"),
        ("_bridge_text_", "_bridge_text__"),
        ("_Bridge_Text", "_Bridge_Text_"),
        ("_bridge_text.key", "_bridge_text.key_"),
        ("_bridge_text.other", "_bridge_text.other"),
        ("tags.element", "tags.element_"),
        ("element", "element"),
        ("_deleted", "_deleted_"),
        ("deleted", "deleted"),
        ("a.b", "a.b"),
    ],
)
def test_columns_whose_path_the_lake_needs_have_another_name(name: str, held: str) -> None:
    assert lake_column(name) == held
