"""Batches as files alone: deletion vectors of our own, and one commit for all of a table's batch.

Spark and pyiceberg read what was written; neither shares code with what wrote it.
"""

from __future__ import annotations

from typing import Any

import pytest

from lake_consumer.iceberg.mirror import MirrorWriter
from lake_consumer.iceberg.reading import open_catalog
from tests.support.lake import HandMadeStream, LakeRig, announce, change, make_shape

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

UUIDS = [f"f47ac10b-58cc-4372-a567-0e02b2c3d4{number:02}" for number in range(9)]
KEYS: dict[str, tuple[dict[str, str], list[dict[str, Any]]]] = {
    "integer": ({"id": "int32"}, [{"id": n} for n in range(9)]),
    "text": ({"code": "text"}, [{"code": f"c{n}"} for n in range(9)]),
    "uuid": ({"id": "uuid"}, [{"id": name} for name in UUIDS]),
    "several": (
        {"a": "int64", "b": "text"},
        [{"a": n // 3, "b": f"b{n % 3}"} for n in range(9)],
    ),
}


@pytest.fixture
def without_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody delete by a MERGE."""

    def refuse(*_: object) -> None:
        pytest.fail("rows were deleted by a MERGE")

    monkeypatch.setattr(MirrorWriter, "_delete", refuse)


@pytest.mark.usefixtures("without_merge")
@pytest.mark.parametrize("kind", KEYS)
def test_rows_go_by_any_key_batch_after_batch(
    stream: HandMadeStream, rig: LakeRig, kind: str
) -> None:
    """The second batch deletes from files that have a deletion vector already."""
    columns, keys = KEYS[kind]
    shape = make_shape("t", {**columns, "v": "text"}, key=tuple(columns))
    stream.commit(announce(shape, 1), *[change("t", "INSERT", {**k, "v": "0"}) for k in keys])
    stream.send()
    rig.drain()
    expected = {tuple(key.values()): "0" for key in keys}
    for version, (updated, deleted) in enumerate([(0, 1), (2, 3), (0, 8)], start=1):
        new = {**keys[updated], "v": str(version)}
        stream.commit(change("t", "UPDATE", new))
        stream.commit(change("t", "DELETE", {**keys[deleted], "v": None}))
        stream.send()
        rig.drain()
        expected[tuple(keys[updated].values())] = str(version)
        del expected[tuple(keys[deleted].values())]

    for rows in (rig.unordered("t"), rig.pyiceberg("public.t")):
        found = {tuple(str(row[name]) for name in columns): row["v"] for row in rows}
        assert found == {tuple(map(str, key)): v for key, v in expected.items()}
        assert len(rows) == len(expected)


@pytest.mark.usefixtures("without_merge")
def test_rows_go_by_a_key_that_was_renamed(stream: HandMadeStream, rig: LakeRig) -> None:
    """Files that are there still call it by its old name, and the new name may be another's."""
    before = make_shape("t", {"id": "int32", "v": "int32"})
    after = make_shape(
        "t", {"number": "int64", "id": "int32"}, key=("number",), positions={"number": 1, "id": 2}
    )
    rows = [{"id": n, "v": 10 - n} for n in range(1, 10)]
    stream.commit(announce(before, 1), *[change("t", "INSERT", row) for row in rows])
    stream.send()
    rig.drain()
    stream.commit(announce(after, 2), change("t", "DELETE", {"number": 2, "id": None}, revision=2))
    stream.send()
    rig.drain()

    left = {row["number"]: row["id"] for row in rig.unordered("t")}
    assert left == {n: 10 - n for n in range(1, 10) if n != 2}


def test_a_batch_is_one_commit_of_a_tables_log_and_one_of_its_mirror(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    """A commit costs the same however little is in it, and readers list them all."""
    shape = make_shape("t", {"id": "int64", "v": "text"})
    stream.commit(announce(shape, 1), change("t", "INSERT", {"id": 1, "v": "a"}))
    stream.send()
    rig.drain()
    names = ("public.t", "public__changes.t")

    def commits() -> list[int]:
        catalog = open_catalog(rig.catalog, rig.warehouse)
        return [len(catalog.load_table(name).metadata.metadata_log) for name in names]

    before = commits()
    stream.commit(
        change("t", "UPDATE", {"id": 1, "v": "b"}), change("t", "INSERT", {"id": 2, "v": "c"})
    )
    stream.send()
    rig.drain()

    assert [now - then for now, then in zip(commits(), before, strict=True)] == [1, 1]
    assert sorted((row["id"], row["v"]) for row in rig.unordered("t")) == [(1, "b"), (2, "c")]
