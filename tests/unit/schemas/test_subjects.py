"""Subjects both ways, and the ids that recognise a resend."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.names import BadToken, TableName
from schemas.subjects import (
    OPERATIONS,
    ChangeSubject,
    MessageSubject,
    Operation,
    SchemaSubject,
    change_subject,
    chunk_id,
    message_id,
    message_subject,
    parse_cdc_subject,
    schema_subject,
    snapshot_chunk_subject,
    snapshot_error_subject,
    snapshot_meta_subject,
    snapshot_request_subject,
    snapshot_start_subject,
    source_token,
    sql_prefix,
    table_filter,
)
from tests.unit.schemas.test_names import identifiers, names, tricky

USERS = TableName("public", "users")
ORDERS = TableName("sales", "orders")

operations = st.sampled_from(OPERATIONS)


def test_subjects_are_the_ones_the_contract_lists() -> None:
    """Consumers subscribe by these words."""
    assert change_subject(USERS, "INSERT") == "cdc.users.insert"
    assert change_subject(ORDERS, "TRUNCATE") == "cdc.sales/orders.truncate"
    assert schema_subject(USERS) == "cdc.users.schema"
    assert message_subject("audit") == "cdc._message.audit"
    assert message_subject("") == "cdc._message.="
    assert snapshot_request_subject(ORDERS) == "snapshot.request.sales/orders"
    assert snapshot_start_subject(USERS) == "init.start.users"
    assert snapshot_chunk_subject(USERS, "s1", 0) == "init.snap.users.s1.0"
    assert snapshot_meta_subject(USERS) == "init.meta.users"
    assert snapshot_error_subject(USERS) == "init.error.users"


def test_only_prefixes_that_consumers_take_for_the_bridges_word_are_marked() -> None:
    """Any role can write any prefix; one that nobody acts on stays as it was written."""
    assert sql_prefix("bridge-ddl") == "sql-bridge-ddl"
    assert sql_prefix("audit") == "audit"


def test_an_id_names_its_slot_in_the_same_way_in_every_version() -> None:
    """A message that is sent again after an upgrade must be known by its id."""
    assert source_token("7/5/shop") == "758247d6"


@given(names, operations)
def test_a_change_subject_reads_back(table: TableName, operation: Operation) -> None:
    """The lake sorts messages by subject before it opens them."""
    subject = change_subject(table, operation)

    assert parse_cdc_subject(subject) == ChangeSubject(table, operation)
    assert parse_cdc_subject(schema_subject(table)) == SchemaSubject(table)


@given(st.text(max_size=20) | identifiers | tricky)
def test_a_logical_message_subject_reads_back(prefix: str) -> None:
    """No table, whatever its name, is mistaken for a message, nor the other way round."""
    assert parse_cdc_subject(message_subject(prefix)) == MessageSubject(prefix)


@given(names, names, operations)
def test_a_table_filter_takes_one_table_and_no_other(
    table: TableName, other: TableName, operation: Operation
) -> None:
    """`*` stands for one token: the filter must leave other tables and messages out."""
    start = table_filter(table).removesuffix("*")

    assert change_subject(table, operation).startswith(start)
    assert not message_subject("x").startswith(start)
    assert change_subject(other, operation).startswith(start) == (other == table)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "cdc",
        "cdc.users",
        "cdc.users.upsert",
        "cdc.users.INSERT",
        "cdc.users.insert.more",
        "cdc.public/users.insert",
        "cdc._message",
        "cdc._message.=41",
        "cdc._message.=5Fmessage",
        "cdc._message.a.b",
        "init.meta.users",
    ],
)
def test_a_subject_that_is_none_of_ours_is_refused(subject: str) -> None:
    """Anybody may publish below `cdc.`; what the bridge did not write is not a change."""
    with pytest.raises(BadToken):
        parse_cdc_subject(subject)


def test_message_ids_are_lsn_in_hex_table_and_operation() -> None:
    """The contract's own form: a resend after any restart has the same id."""
    assert message_id(0x191BFD0, "users", "insert") == "191bfd0-users-insert"
    assert message_id(0x16B374D848, "sales/orders", "delete") == "16b374d848-sales/orders-delete"


def test_rows_of_one_copy_get_ids_of_their_own() -> None:
    """They share an LSN, and JetStream would drop all but the first as duplicates."""
    ids = [message_id(0x191BFD0, "users", "insert", repeat) for repeat in range(3)]

    assert ids == ["191bfd0-users-insert", "191bfd0-users-insert-1", "191bfd0-users-insert-2"]


def test_chunk_ids_are_snapshot_table_and_chunk() -> None:
    """A chunk sent twice is stored once."""
    assert chunk_id("s1", ORDERS, 7) == "s1-sales/orders-7"


table_names_like_ids = st.builds(
    TableName,
    st.just("public"),
    st.lists(st.sampled_from(["t", "insert", "update", "1", "2"]), min_size=1, max_size=5).map(
        "-".join
    ),
)


@given(
    st.lists(
        st.tuples(table_names_like_ids, operations, st.integers(0, 3)),
        min_size=2,
        max_size=8,
        unique=True,
    )
)
def test_changes_at_one_lsn_never_share_an_id(
    changes: list[tuple[TableName, Operation, int]],
) -> None:
    """A table may be called `t-insert-1`; its rows must not pass for copies of `t`'s."""
    ids = {message_id(1, table.token, op.lower(), repeat) for table, op, repeat in changes}

    assert len(ids) == len(changes)
