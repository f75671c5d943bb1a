"""A table's shape and its rows, from what the WAL and the catalog say."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from bridge.errors import MalformedWal
from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Relation
from bridge.relations import ColumnFacts, Encoder, TableFacts, is_settled, shape_of
from bridge.transactions import EmptiedTable, Placed, TransactionPart
from schemas.events import Change, Place
from schemas.types import CatalogType
from schemas.values import Format
from tests.support import wal

INT4, TEXT, DATE, BYTEA, FLOAT8, JSONB = 23, 25, 1082, 17, 701, 3802
COLUMNS = [("id", INT4, True), ("name", TEXT, False), ("born", DATE, False)]
PLACE = Place(lsn=16, commit_lsn=32, commit_ts="t", xid=1, seq=0, last=True)


def relation(*, identity: str = "d", columns: list[tuple[str, int, bool]] = COLUMNS) -> Relation:
    return cast("Relation", decode_message(wal.relation(9, "users", columns, identity=identity)))


def fact(
    position: int,
    type_oid: int = INT4,
    *,
    is_nullable: bool = True,
    default: str | None = None,
    written_by: int | None = None,
) -> ColumnFacts:
    return ColumnFacts(position, is_nullable, default, type_oid, -1, written_by)


def encode(
    payload: bytes | EmptiedTable,
    *,
    facts: TableFacts | None = None,
    identity: str = "d",
    columns: list[tuple[str, int, bool]] = COLUMNS,
    format: Format = "msgpack",
) -> Change:
    shape = shape_of(relation(identity=identity, columns=columns), facts or TableFacts())
    message = payload if isinstance(payload, EmptiedTable) else decode_message(payload)
    placed = Placed(cast("TransactionPart", message), PLACE, 0)
    return Encoder(shape, 3, format).encode(placed)


def test_an_insert_carries_every_column() -> None:
    change = encode(wal.insert(9, ["1", "Ann", None]))
    assert change.operation == "INSERT"
    assert change.data == {"id": 1, "name": "Ann", "born": None}
    assert (change.subject, change.msg_id) == ("cdc.users.insert", "10-users-insert")
    assert (change.key, change.old, change.unchanged, change.text) == (None, None, (), ())


def test_an_unchanged_toasted_value_is_named_and_is_not_null() -> None:
    change = encode(wal.update(9, ["1", b"u", None]))
    assert change.unchanged == ("name",)
    assert change.data == {"id": 1, "born": None}


def test_under_replica_identity_full_the_old_row_fills_unchanged_values() -> None:
    change = encode(wal.update(9, ["1", b"u", None], ["1", "Ann", None], "O"), identity="f")
    assert change.unchanged == ()
    assert change.data["name"] == "Ann"
    assert change.old == {"id": 1, "name": "Ann", "born": None}


def test_a_toasted_key_is_filled_from_the_old_one() -> None:
    """PostgreSQL sends it as the old key at every update, and not once more as the new one."""
    columns = [("k", TEXT, True), ("n", INT4, True), ("a", TEXT, False)]

    same = encode(wal.update(9, [b"u", "1", b"u"], ["big", "1", None]), columns=columns)
    other = encode(wal.update(9, [b"u", "2", "x"], ["big", "1", None]), columns=columns)

    assert (same.data, same.key, same.unchanged) == ({"k": "big", "n": 1}, None, ("a",))
    assert (other.data, other.key) == ({"k": "big", "n": 2, "a": "x"}, {"k": "big", "n": 1})


def test_an_update_that_changed_the_key_carries_the_old_one() -> None:
    change = encode(wal.update(9, ["2", "Ann", None], ["1", None, None]))
    assert change.key == {"id": 1}


@pytest.mark.parametrize(
    ("oid", "texts", "is_new"),
    [
        (JSONB, ("1", "true"), True),
        (JSONB, ("1", "1.0"), True),
        (JSONB, ("[0, false]", "[false, 0]"), True),
        (JSONB, ("2.5", "2.50"), True),
        (FLOAT8, ("-0", "0"), True),
        (FLOAT8, ("NaN", "NaN"), False),
        (JSONB, ('{"a": 1}', '{"a": 1}'), False),
    ],
)
@pytest.mark.parametrize(("identity", "kind"), [("d", "K"), ("f", "O")])
def test_a_key_has_changed_if_its_text_has(
    oid: int, texts: tuple[str, str], is_new: bool, identity: str, kind: str
) -> None:
    """Python finds true, 1 and 1.0 equal; a consumer would then keep the row of the old key."""
    facts = TableFacts(columns={"k": fact(1, oid)}, key=(1,))
    before, after = texts
    update = wal.update(9, [after], [before], kind)
    change = encode(update, facts=facts, identity=identity, columns=[("k", oid, True)])

    assert (change.key is not None) == is_new
    if change.key is not None:
        assert repr(change.key["k"]) != repr(change.data["k"])


def test_under_full_the_key_is_the_primary_key_of_the_catalog() -> None:
    """Every column is flagged then; taking them all would make each update a new key."""
    flagged = [(name, oid, True) for name, oid, _ in COLUMNS]
    facts = TableFacts(columns={"id": fact(1)}, key=(1,))
    same = wal.update(9, ["1", "Bob", None], ["1", "Ann", None], "O")
    other = wal.update(9, ["2", "Ann", None], ["1", "Ann", None], "O")

    assert encode(same, facts=facts, identity="f", columns=flagged).key is None
    assert encode(other, facts=facts, identity="f", columns=flagged).key == {"id": 1}


def test_a_delete_carries_the_key_and_nulls() -> None:
    change = encode(wal.delete(9, ["1", None, None]))
    assert change.data == {"id": 1, "name": None, "born": None}
    assert change.old is None


def test_a_delete_under_full_carries_the_whole_row() -> None:
    change = encode(wal.delete(9, ["1", "Ann", None], "O"), identity="f")
    assert change.data == change.old == {"id": 1, "name": "Ann", "born": None}


def test_a_truncate_carries_no_row() -> None:
    change = encode(EmptiedTable(9))
    assert (change.operation, change.data) == ("TRUNCATE", {})


def test_a_value_without_native_form_is_sent_as_text_and_named() -> None:
    change = encode(wal.insert(9, ["1", "Ann", "infinity"]))
    assert change.data["born"] == "infinity"
    assert change.text == ("born",)


def test_a_column_that_is_text_in_one_image_is_text_in_all() -> None:
    """A consumer reads `text` once for the message; two meanings in it could not be told apart."""
    columns = [("id", INT4, True), ("at", 1114, False)]
    change = encode(
        wal.update(9, ["1", "2020-01-01 00:00:00"], ["1", "infinity"], "O"),
        identity="f",
        columns=columns,
    )
    assert change.text == ("at",)
    assert change.old == {"id": 1, "at": "infinity"}
    assert change.data == {"id": 1, "at": "2020-01-01 00:00:00"}


def test_json_names_what_only_messagepack_holds() -> None:
    columns = [("b", BYTEA, False), ("f", FLOAT8, False)]
    change = encode(wal.insert(9, ["\\x00ff", "NaN"]), columns=columns, format="json")
    assert change.data == {"b": "\\x00ff", "f": "NaN"}
    assert change.text == ("b", "f")


def test_a_row_that_does_not_fit_its_relation_stops() -> None:
    with pytest.raises(MalformedWal, match="2 columns"):
        encode(wal.insert(9, ["1", "Ann"]))


def test_a_value_its_type_does_not_explain_stops() -> None:
    """Never skipped, never guessed: the LSN stays unconfirmed."""
    with pytest.raises(MalformedWal, match=r"users\.id"):
        encode(wal.insert(9, ["one", "Ann", None]))


def test_the_catalog_adds_what_the_wal_leaves_out() -> None:
    known = fact(4, is_nullable=False, default="nextval('s')")
    facts = TableFacts(columns={"id": known}, key=(4,), type_names={(INT4, -1): "integer"})
    column = shape_of(relation(), facts).columns[0]
    assert column.data_type == "integer"
    assert (column.position, column.is_nullable, column.column_default) == (
        4,
        False,
        "nextval('s')",
    )
    assert column.key == 0


def test_the_wal_is_right_where_the_catalog_has_moved_on() -> None:
    """The catalog is read later than the change was written: the key may be another by now."""
    facts = TableFacts(key=(2,))
    assert [column.name for column in shape_of(relation(), facts).key] == ["id"]


def test_a_shape_from_the_catalog_equals_the_one_from_the_wal() -> None:
    """Else every start would announce a change of shape that never happened."""
    facts = TableFacts(key=(1,))
    from_wal = relation()
    unflagged = tuple(dataclasses.replace(c, part_of_key=False) for c in from_wal.columns)
    from_catalog = dataclasses.replace(from_wal, columns=unflagged)
    assert shape_of(from_wal, facts).fingerprint == shape_of(from_catalog, facts).fingerprint


XID = 100
NOW = TableFacts(
    columns={"id": fact(1), "name": fact(3, TEXT), "born": fact(4, DATE)}, key=(1,), highest=4
)
BEFORE = shape_of(relation(), NOW)


def altered(name: str, **changes: Any) -> TableFacts:
    """The catalog after a later transaction wrote a column's row."""
    known = dataclasses.replace(NOW.columns[name], written_by=XID + 1, **changes)
    return dataclasses.replace(NOW, columns={**NOW.columns, name: known})


def test_a_catalog_that_has_not_moved_on_settles_a_shape() -> None:
    """Then nobody needs to be asked what was before."""
    assert is_settled(relation(), NOW, XID)


@pytest.mark.parametrize(
    "facts",
    [
        TableFacts(),
        altered("name"),
        dataclasses.replace(NOW, key_written_by=XID + 1),
        dataclasses.replace(NOW, columns={**NOW.columns, "name": fact(3, INT4)}),
        dataclasses.replace(NOW, columns={"id": fact(1), "title": fact(3), "born": fact(4)}),
    ],
    ids=["gone", "altered", "other key", "other type", "renamed"],
)
def test_a_catalog_that_has_moved_on_settles_nothing(facts: TableFacts) -> None:
    assert not is_settled(relation(), facts, XID)


@pytest.mark.parametrize("identity", ["d", "f"])
def test_a_table_that_is_gone_has_the_shape_it_had(identity: str) -> None:
    """Also its key, which REPLICA IDENTITY FULL does not tell."""
    before = shape_of(relation(identity=identity), NOW)
    assert shape_of(relation(identity=identity), TableFacts(), XID, before) == before


def test_a_renamed_key_is_still_the_key() -> None:
    columns = {"uid": fact(1, written_by=XID + 1), "name": fact(3, TEXT), "born": fact(4, DATE)}
    facts = dataclasses.replace(NOW, columns=columns)
    shape = shape_of(relation(identity="f"), facts, XID, BEFORE)
    assert [(column.name, column.position) for column in shape.key] == [("id", 1)]


def test_a_key_made_later_is_not_the_key_yet() -> None:
    facts = dataclasses.replace(NOW, key=(3,), key_written_by=XID + 1)
    shape = shape_of(relation(identity="f"), facts, XID, BEFORE)
    assert [column.name for column in shape.key] == ["id"]


def test_nullability_is_that_of_the_change_and_not_of_today() -> None:
    """SET NOT NULL came later: the change may well hold a null."""
    facts = altered("name", is_nullable=False)
    assert shape_of(relation(), facts, XID, BEFORE).columns[1].is_nullable
    assert shape_of(relation(), facts, XID).columns[1].is_nullable
    assert not shape_of(relation(), facts, XID + 1).columns[1].is_nullable


def test_a_type_that_was_dropped_since_is_remembered() -> None:
    """The catalog would know its values as text only, and a consumer would see another type."""
    domain = 70_000
    columns = [("id", INT4, True), ("name", domain, False), ("born", DATE, False)]
    facts = dataclasses.replace(NOW, types={domain: CatalogType(domain, "whole", INT4)})
    before = shape_of(relation(columns=columns), facts)

    shape = shape_of(relation(columns=columns), TableFacts(), XID, before)

    assert str(shape.columns[1].type) == "int32"
    assert str(shape_of(relation(columns=columns), TableFacts(), XID).columns[1].type) == "text"
