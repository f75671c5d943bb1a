"""Tables and columns that PostgreSQL calls like the lake's own are followed, too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lake_consumer.cli import main
from lake_consumer.iceberg.reading import read_statuses
from schemas.positions import Lsn
from tests.support.lake import HandMadeStream, LakeRig, announce, change, make_shape

# Spark leaves the sockets it fetches results through to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)

COLUMNS = {"id": "int64", "v": "text"}
TABLES = ("t", "public__changes.t", "public__changes_.t", "_bridge.cuts", "_bridge.mine")


def shown(rows: list[dict[str, Any]]) -> list[tuple[Any, Any]]:
    return [(row["id"], row["v"]) for row in rows]


def test_schemas_of_reserved_names_are_followed_beside_all_others(
    stream: HandMadeStream, rig: LakeRig, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in TABLES:
        stream.commit(
            announce(make_shape(name, COLUMNS), 1),
            change(name, "INSERT", {"id": 1, "v": name}),
        )
    stream.send()
    rig.drain()
    before = 0
    for name in TABLES:
        before = stream.commit(
            change(name, "UPDATE", {"id": 1, "v": f"{name} again"}),
            change(name, "INSERT", {"id": 2, "v": "more"}),
        )
    stream.send()
    rig.drain()
    stream.commit(change("_bridge.cuts", "DELETE", {"id": 2}))
    stream.send()
    rig.drain()

    for name in TABLES:
        later = [] if name == "_bridge.cuts" else [(2, "more")]
        assert shown(rig.mirror(name)) == [(1, f"{name} again"), *later]
        operations = [row["operation"] for row in rig.log(name)]
        assert operations[:3] == ["INSERT", "UPDATE", "INSERT"]
    assert {row["table_name"] for row in rig.cuts()} >= {f"public.{TABLES[0]}", *TABLES[1:]}
    states = {status.table for status in read_statuses(rig.catalog, rig.warehouse)}
    assert states == {"", "public.t", *TABLES[1:]}

    def ask(sql: str, *more: str) -> tuple[list[dict[str, Any]], str]:
        folder = rig.warehouse.removeprefix("file://")
        capsys.readouterr()
        assert main(["query", "--json", sql, *more, "--warehouse", folder], {}) == 0
        out, err = capsys.readouterr()
        return [json.loads(line) for line in out.splitlines()], err

    found, said = ask("SELECT * FROM _bridge.mine ORDER BY id")
    assert (shown(found), said) == ([(1, "_bridge.mine again"), (2, "more")], "")
    assert shown(ask("SELECT * FROM public__changes_.t ORDER BY id")[0])[0][1].startswith(
        "public__changes.t"
    )
    found, said = ask("SELECT DISTINCT table_name FROM _bridge.cuts")
    assert {"table_name": "public.t"} in found
    assert said == (
        "_bridge.cuts is the lake's own; PostgreSQL's table of that name is _bridge_.cuts\n"
    )
    at = ("--at", str(Lsn(before)))
    assert shown(ask("SELECT * FROM _bridge_.cuts ORDER BY id", *at)[0])[1] == (2, "more")
    assert shown(ask("SELECT * FROM _bridge.mine ORDER BY id", *at)[0])[1] == (2, "more")
    assert ask("SELECT count(*) AS n FROM _bridge.cuts", *at)[0][0]["n"] > len(TABLES)


def test_columns_of_reserved_names_are_followed_beside_all_others(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    columns = {
        "id": "int64",
        "_bridge_text": "text",
        "_bridge_text_": "decimal(10,2)",
        "_bridge_text.key": "text",
        "tags": "list<int64>",
        "tags.element": "text",
    }
    first = {
        "id": 1,
        "_bridge_text": "kept",
        "_bridge_text_": "NaN",
        "_bridge_text.key": "k",
        "tags": [1, 2],
        "tags.element": "e",
    }
    stream.commit(
        announce(make_shape("odd", columns), 1),
        change("odd", "INSERT", first, text=("_bridge_text_",)),
        announce(make_shape("t", COLUMNS), 1),
        change("t", "INSERT", {"id": 1, "v": "x"}),
    )
    stream.send()
    rig.drain()
    second = {**first, "tags": [3], "_bridge_text_": "1.50"}
    del second["_bridge_text"]
    stream.commit(change("odd", "UPDATE", second, unchanged=("_bridge_text",)))
    third = {"id": 2, "_bridge_text_": "NaN", "new": "n", "tags": None, "tags.element": "f"}
    positions = {"id": 1, "_bridge_text_": 3, "new": 2, "tags": 5, "tags.element": 6}
    renamed = {name: columns.get(name, "text") for name in third}
    stream.commit(
        announce(make_shape("odd", renamed, positions=positions), 2),
        change("odd", "INSERT", third, 2, text=("_bridge_text_",)),
        change("t", "UPDATE", {"id": 1, "v": "y"}),
    )
    stream.send()
    rig.drain()

    assert shown(rig.mirror("t")) == [(1, "y")]
    one, two = rig.mirror("odd")
    assert (one["new"], str(one["_bridge_text__"]), one["_bridge_text"]) == ("kept", "1.50", None)
    assert (one["tags"], one["tags.element_"]) == ([3], "e")
    assert (two["new"], two["_bridge_text__"]) == ("n", None)
    assert dict(two["_bridge_text"]) == {"_bridge_text__": "NaN"}
    assert [row["new"]["_bridge_text.key_"] for row in rig.log("odd")] == ["k", "k", None]


def test_columns_called_like_what_iceberg_or_a_batch_adds_to_a_row(
    stream: HandMadeStream, rig: LakeRig
) -> None:
    reserved = ["_file", "_pos", "_spec_id", "_partition", "_row_id"]
    reserved += ["_deleted", "_last_updated_sequence_number"]
    names = ["_change_type", "file_path", "pos", "row", "live", "new", "old", "kept"]
    names += ["base", "operation", "stream_seq", "held", "rows", "token", "block", "unchanged"]
    columns = {"id": "int64", **dict.fromkeys([*reserved, *names], "text")}
    row = {name: f"of {name}" for name in columns} | {"id": 1}
    stream.commit(
        announce(make_shape("meta", columns), 1),
        change("meta", "INSERT", row),
        change("meta", "INSERT", {**row, "id": 2}),
    )
    stream.send()
    rig.drain()
    part = {name: value for name, value in row.items() if name != "_file"}
    stream.commit(
        change("meta", "UPDATE", {**part, "pos": "other"}, unchanged=("_file",)),
        change("meta", "DELETE", {"id": 2}),
    )
    stream.send()
    rig.drain()

    (found,) = rig.mirror("meta")
    held = {f"{name}_" if name in reserved else name: value for name, value in row.items()}
    assert found == {**held, "pos": "other", "_bridge_text": None}


def test_a_lake_of_an_earlier_version_takes_the_names_of_this_one(
    stream: HandMadeStream, rig: LakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = make_shape("t", {"id": "int64", "v.element": "text", "v.element_": "text"})
    row = {"id": 1, "v.element": "a", "v.element_": "b"}
    stream.commit(announce(shape, 1), change("t", "INSERT", row))
    stream.send()
    with monkeypatch.context() as earlier:
        earlier.setattr("lake_consumer.columns.lake_column", lambda name: name)
        rig.drain()
    assert rig.mirror("t") == [{**row, "_bridge_text": None}]
    stream.commit(change("t", "INSERT", {**row, "id": 2}))
    stream.send()
    rig.drain()

    renamed = {"v.element_": "a", "v.element__": "b", "_bridge_text": None}
    assert rig.mirror("t") == [{"id": 1, **renamed}, {"id": 2, **renamed}]
    assert [change["new"] for change in rig.log("t")] == rig.mirror("t")
