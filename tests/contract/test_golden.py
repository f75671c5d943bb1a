"""The wire format, byte for byte: an accidental change fails here."""

from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from schemas.codecs import CODECS
from schemas.events import Change, Event, LogicalMessage, ShapeChange
from schemas.jsonschemas import PAYLOADS
from schemas.types import TYPES
from schemas.values import Format
from tests.contract.golden import (
    ENDINGS,
    FOLDER,
    TEXTS,
    as_file,
    body,
    events,
    path_of,
    read_golden,
)

MEANT = (
    "the body of {name} differs from its golden file: consumers would see another contract."
    " If that is meant, it needs a new golden file (python -m tests.contract.golden), a line in the"
    " changelog, and a new CONTRACT_VERSION if a reader of the old form would break"
)

PAYLOAD_OF: dict[type[Event], str] = {
    Change: "change",
    ShapeChange: "schema",
    LogicalMessage: "message",
}

every_body = pytest.mark.parametrize(
    ("name", "format"), [(name, form) for form in ENDINGS for name in events(form)]
)


@every_body
def test_the_body_is_the_golden_one(name: str, format: Format) -> None:
    """Readers that nobody here knows of depend on these bytes."""
    encoded = as_file(body(events(format)[name], format), format)

    assert encoded == path_of(name, format).read_bytes(), MEANT.format(name=name)


@every_body
def test_a_golden_body_still_reads_as_the_event_it_was(name: str, format: Format) -> None:
    """The stream holds a day of messages: a new reader meets old bodies."""
    event = events(format)[name]

    fields = CODECS[format].decode(read_golden(name, format))

    assert fields == event.to_map()
    assert type(event).from_map(fields).to_map() == fields


@every_body
def test_a_golden_body_meets_its_json_schema(name: str, format: Format) -> None:
    """The schema files state what is really sent."""
    payload = PAYLOAD_OF[type(events(format)[name])]

    Draft202012Validator(PAYLOADS[payload].document(payload)).validate(
        CODECS[format].decode(read_golden(name, format))
    )


def test_every_golden_file_has_an_event() -> None:
    """A file that nothing is compared with guards nothing."""
    expected = {path_of(name, form).name for form in ENDINGS for name in events(form)}

    assert {path.name for path in FOLDER.iterdir()} == expected


def test_the_golden_row_has_every_type_of_the_table() -> None:
    """A type added to the table gets its place in the golden row."""
    assert set(TEXTS) == {row.name for row in TYPES}
