"""Codecs: a map to bytes and back, and one error for everything that is no map."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.codecs import CODECS, CONTENT_TYPE, JSON, MSGPACK, BadPayload, Codec, codec_for

both = pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
maps = st.dictionaries(texts, values, max_size=4)


@both
@given(maps)
def test_a_map_comes_back_as_it_went(codec: Codec, fields: dict[str, Any]) -> None:
    """The codec is not where a value may change."""
    assert codec.decode(codec.encode(fields)) == fields


@given(st.binary())
def test_bytes_travel_as_bytes_in_messagepack(body: bytes) -> None:
    """`bytea` is binary there, not text that looks like it."""
    assert MSGPACK.decode(MSGPACK.encode({"data": body})) == {"data": body}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes"])
def test_what_json_cannot_hold_is_refused_and_not_bent(value: object) -> None:
    """Such values go as text; reaching the codec natively is a bug that must show."""
    with pytest.raises((ValueError, TypeError)):
        JSON.encode({"value": value})


def test_minus_zero_keeps_its_sign() -> None:
    """`-0` is a float8 of its own, and both formats can say it."""
    for codec in CODECS.values():
        assert str(codec.decode(codec.encode({"value": -0.0}))["value"]) == "-0.0"


@both
@given(st.binary(max_size=200))
@example(b"")
@example(b"null")
@example(b"[1]")
@example(b'{"a": NaN}')
@example(b'{"a": ' + b"9" * 5_000 + b"}")
@example(b"[" * 100_000)
@example(b"\x91" * 100_000)
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\x81\x80\x80")
@example(b"\x80\x80")
@example('{"a": 1}'.encode("utf-16"))
def test_any_bytes_decode_to_a_map_or_raise_bad_payload(codec: Codec, body: bytes) -> None:
    """Bodies come from a socket; whoever reads them catches one error."""
    try:
        fields = codec.decode(body)
    except BadPayload:
        return

    assert isinstance(fields, dict)


@both
@given(maps, st.data())
def test_a_damaged_body_decodes_to_a_map_or_raises_bad_payload(
    codec: Codec, fields: dict[str, Any], data: st.DataObject
) -> None:
    """Bytes that are almost right reach further into a decoder than random ones."""
    body = bytearray(codec.encode(fields))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))

    for damaged in (bytes(body), bytes(body[:cut])):
        try:
            decoded = codec.decode(damaged)
        except BadPayload:
            continue
        assert isinstance(decoded, dict)


@pytest.mark.parametrize("body", [b"NaN", b'{"a": NaN}', b'{"a": -Infinity}'])
def test_json_that_only_python_reads_is_refused(body: bytes) -> None:
    """A reader in another language would fail on it; so do we."""
    with pytest.raises(BadPayload):
        JSON.decode(body)


def test_the_codec_is_chosen_by_content_type() -> None:
    """One stream may hold both, after a change of `--json`."""
    assert codec_for({CONTENT_TYPE: "application/json"}) is JSON
    assert codec_for({CONTENT_TYPE: "application/msgpack"}) is MSGPACK


def test_a_message_without_content_type_is_messagepack() -> None:
    """It is the default, and headers may be missing altogether."""
    assert codec_for(None) is MSGPACK
    assert codec_for({}) is MSGPACK


def test_an_unknown_content_type_is_a_bad_payload() -> None:
    """Guessing the format of bytes is how values get altered."""
    with pytest.raises(BadPayload, match="text/plain"):
        codec_for({CONTENT_TYPE: "text/plain"})


def test_messagepack_is_what_any_reader_understands() -> None:
    """No extension types: consumers exist in languages that have none."""
    body = MSGPACK.encode({"a": [1, "x", b"y", None, True, 1.5]})

    assert msgpack.unpackb(body, strict_map_key=True) == {"a": [1, "x", b"y", None, True, 1.5]}
