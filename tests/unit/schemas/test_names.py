"""Tokens: every PostgreSQL name has exactly one, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from schemas.names import BadToken, TableName, escape, unescape

# Every code point but NUL, which PostgreSQL refuses, and surrogates, which are no characters.
characters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])


def _fits_a_name(text: str) -> bool:
    return len(text.encode()) <= 63


identifiers = st.text(characters, min_size=1, max_size=63).filter(_fits_a_name)
# Names that tokens could confuse are rare among random ones, so they get their own drawer.
tricky = st.text(st.sampled_from("=/.-_*> 5F2public"), min_size=1, max_size=12)
names = st.builds(TableName, tricky | identifiers, tricky | identifiers)

KEY = re.compile(r"[-/_=a-zA-Z0-9]+")


@given(names)
@example(TableName("public", "_message"))
@example(TableName("_message", "_message"))
@example(TableName("public", "public/users"))
@example(TableName("a/b", "c"))
@example(TableName("a", "b/c"))
@example(TableName("public", "=5Fmessage"))
@example(TableName("PUBLIC", "Users"))
@example(TableName("public", "é" * 31 + "e"))
@example(TableName("public", "🐘" * 15))
def test_every_name_has_one_token_and_back(name: TableName) -> None:
    """A consumer finds table and schema again from the subject alone."""
    assert TableName.from_token(name.token) == name


@given(names)
def test_a_token_is_one_subject_token_and_one_kv_key(name: TableName) -> None:
    """A dot would split the subject; a character outside the key alphabet would be refused."""
    assert KEY.fullmatch(name.token)


@given(names, names)
def test_two_names_never_share_a_token(one: TableName, other: TableName) -> None:
    """Two tables on one subject could not be told apart."""
    assume(one != other)

    assert one.token != other.token


@pytest.mark.parametrize(
    ("name", "token"),
    [
        (TableName("public", "users"), "users"),
        (TableName("sales", "orders"), "sales/orders"),
        (TableName("public", "Order Items"), "Order=20Items"),
        (TableName("public", "a.b"), "a=2Eb"),
        (TableName("public", "a/b"), "a=2Fb"),
        (TableName("public", "a=b"), "a=3Db"),
        (TableName("public", "größe"), "gr=C3=B6=C3=9Fe"),
        (TableName("public", "_message"), "=5Fmessage"),
        (TableName("sales", "_message"), "sales/_message"),
        (TableName("public", "🐘" * 15), "=F0=9F=90=98" * 15),
    ],
)
def test_tokens_are_the_ones_the_contract_writes(name: TableName, token: str) -> None:
    """Consumers in other languages build them from the same words."""
    assert name.token == token


@pytest.mark.parametrize(
    "token",
    [
        "",
        "/",
        "/users",
        "users/",
        "public/users",
        "a/b/c",
        "us=65rs",
        "a=2eb",
        "a=2",
        "a=",
        "a=GG",
        "=FF",
        "=C3",
        "a.b",
        "a b",
        "größe",
        "_message",
        "public/_message",
        "sales/=5Fmessage",
        "=5Fmessage/x",
    ],
)
def test_a_token_the_contract_would_not_write_is_refused(token: str) -> None:
    """With two spellings for one table, half of its messages would miss a filter."""
    with pytest.raises(BadToken):
        TableName.from_token(token)


@given(st.text(max_size=30) | st.text(st.sampled_from("=/ABC012._-"), max_size=12))
def test_any_text_is_the_token_of_one_name_or_is_refused(token: str) -> None:
    """Tokens come back from subjects that anybody may publish on."""
    try:
        name = TableName.from_token(token)
    except BadToken:
        return

    assert name.token == token


@given(st.text(characters, max_size=80))
@example("")
@example("_message")
def test_any_prefix_of_a_logical_message_escapes_to_one_token_and_back(prefix: str) -> None:
    """A prefix may be empty and may hold anything; a subject token may not."""
    assert KEY.fullmatch(escape(prefix))
    assert unescape(escape(prefix)) == prefix


@pytest.mark.parametrize("token", ["", "=5Fmessage", "=41", "=4", "a=2e"])
def test_an_escape_that_was_not_needed_is_refused(token: str) -> None:
    """`unescape` reads what `escape` wrote and nothing else."""
    with pytest.raises(BadToken):
        unescape(token)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("users", TableName("public", "users")),
        ("sales.orders", TableName("sales", "orders")),
        ("sales.orders.2024", TableName("sales", "orders.2024")),
        ("Odd", TableName("public", "Odd")),
        ('"Odd"', TableName("public", "Odd")),
        ('"a.b"', TableName("public", "a.b")),
        ('"a.b".c', TableName("a.b", "c")),
        ('a."b.c"', TableName("a", "b.c")),
        ('"my ""schema""".t', TableName('my "schema"', "t")),
        ('in"side.t', TableName('in"side', "t")),
    ],
)
def test_a_person_may_type_the_schema_or_leave_it_out(typed: str, name: TableName) -> None:
    """The command line takes what psql takes for plain names."""
    assert TableName.parse(typed) == name


def test_a_name_prints_as_people_write_it() -> None:
    """Logs and /status show it; the token is for machines."""
    assert str(TableName("sales", "orders")) == "sales.orders"
