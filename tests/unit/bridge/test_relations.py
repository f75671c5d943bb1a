"""A table's shape and its rows, from what the WAL and the catalog say."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from bridge.errors import MalformedWal
from bridge.protocol.decoder import decode_message
from bridge.protocol.messages import Relation
from bridge.relations import ColumnFacts, Encoder, TableFacts, shape_of
from bridge.transactions import EmptiedTable, Placed, TransactionPart
from schemas.events import Change, Place
from schemas.values import Format
from tests.support import wal

INT4, TEXT, DATE, BYTEA, FLOAT8 = 23, 25, 1082, 17, 701
COLUMNS = [("id", INT4, True), ("name", TEXT, False), ("born", DATE, False)]
PLACE = Place(lsn=16, commit_lsn=32, commit_ts="t", xid=1, seq=0, last=True)


def relation(*, identity: str = "d", columns: list[tuple[str, int, bool]] = COLUMNS) -> Relation:
    return cast("Relation", decode_message(wal.relation(9, "users", columns, identity=identity)))


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


def test_an_update_that_changed_the_key_carries_the_old_one() -> None:
    change = encode(wal.update(9, ["2", "Ann", None], ["1", None, None]))
    assert change.key == {"id": 1}


def test_under_full_the_key_is_the_primary_key_of_the_catalog() -> None:
    """Every column is flagged then; taking them all would make each update a new key."""
    flagged = [(name, oid, True) for name, oid, _ in COLUMNS]
    facts = TableFacts(key=("id",))
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
    facts = TableFacts(
        columns={"id": ColumnFacts(4, "integer", False, "nextval('s')")}, key=("id",)
    )
    column = shape_of(relation(), facts).columns[0]
    assert (column.position, column.is_nullable, column.column_default) == (
        4,
        False,
        "nextval('s')",
    )
    assert column.key == 0


def test_the_wal_is_right_where_the_catalog_has_moved_on() -> None:
    """The catalog is read later than the change was written: the key may be another by now."""
    facts = TableFacts(key=("name",))
    assert [column.name for column in shape_of(relation(), facts).key] == ["id"]


def test_a_shape_from_the_catalog_equals_the_one_from_the_wal() -> None:
    """Else every start would announce a change of shape that never happened."""
    facts = TableFacts(key=("id",))
    from_wal = relation()
    unflagged = tuple(dataclasses.replace(c, part_of_key=False) for c in from_wal.columns)
    from_catalog = dataclasses.replace(from_wal, columns=unflagged)
    assert shape_of(from_wal, facts).fingerprint == shape_of(from_catalog, facts).fingerprint
