"""Compressed bodies, as any reader meets them."""

from __future__ import annotations

import contextlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from schemas.codecs import BadPayload
from schemas.compression import Dictionary, Expander, dictionary_key, is_compressed, needed_key
from schemas.names import TableName

ZSTD = {"Content-Encoding": "zstd"}
CONTENT = zstandard.train_dictionary(
    1024, [f'{{"id":{n},"city":"Oslo","state":"new"}}'.encode() for n in range(400)]
).as_bytes()
DICTIONARY = Dictionary(CONTENT)
NAMED = {**ZSTD, "Zstd-Dictionary": DICTIONARY.id}
SUBJECT = "cdc.sales/orders.insert"
KEY = f"sales/orders.{DICTIONARY.id}"


def compress(body: bytes, content: bytes | None = None) -> bytes:
    known = zstandard.ZstdCompressionDict(content) if content else None
    return zstandard.ZstdCompressor(dict_data=known).compress(body)


def test_an_id_is_its_content() -> None:
    """So no id can ever come to mean another dictionary."""
    assert DICTIONARY.id == Dictionary(bytes(bytearray(CONTENT))).id
    assert DICTIONARY.id != Dictionary(CONTENT[:-1] + b"!").id


@pytest.mark.parametrize(
    "subject", ["cdc.sales/orders.update", "init.snap.sales/orders.20260101T000000-ab.7"]
)
def test_the_key_is_the_table_of_the_subject_and_the_id_of_the_header(subject: str) -> None:
    assert needed_key(subject, NAMED) == KEY
    assert needed_key(subject, ZSTD) is None
    assert dictionary_key(TableName("sales", "orders"), DICTIONARY.id) == KEY


def test_a_dictionary_for_no_table_is_refused() -> None:
    with pytest.raises(BadPayload, match="no table"):
        needed_key("init.meta", NAMED)


def test_only_the_header_says_what_is_compressed() -> None:
    assert is_compressed(ZSTD)
    assert not is_compressed(None)
    assert not is_compressed({"Content-Type": "application/json"})


@given(st.binary(max_size=2_000))
def test_every_body_comes_back(body: bytes) -> None:
    expander = Expander()
    assert expander.lacks(SUBJECT, NAMED) == KEY
    expander.learn(KEY, CONTENT)
    assert expander.lacks(SUBJECT, NAMED) is None

    assert expander.expand(compress(body, CONTENT), SUBJECT, NAMED) == body
    assert expander.expand(compress(body), SUBJECT, ZSTD) == body


@given(st.binary(max_size=200))
def test_any_bytes_expand_or_raise_the_one_error(body: bytes) -> None:
    with contextlib.suppress(BadPayload):
        Expander(max_bytes=1_000).expand(body, SUBJECT, ZSTD)


def test_a_dictionary_that_is_not_what_its_id_says_is_refused() -> None:
    with pytest.raises(BadPayload, match="not the one"):
        Expander().learn(KEY, CONTENT + b"!")


def test_a_small_message_cannot_fill_the_memory() -> None:
    """The frame states its size, which is looked at before anything is expanded."""
    with pytest.raises(BadPayload, match="2000000 bytes, and 1000000 are the most"):
        Expander(max_bytes=1_000_000).expand(compress(bytes(2_000_000)), SUBJECT, ZSTD)
    unstated = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(BadPayload, match="does not state its size"):
        Expander().expand(unstated, SUBJECT, ZSTD)


def test_another_encoding_is_refused() -> None:
    with pytest.raises(BadPayload, match="gzip"):
        Expander().expand(b"", SUBJECT, {"Content-Encoding": "gzip"})
