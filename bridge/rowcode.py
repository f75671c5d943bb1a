"""Row code: a function per table and operation, from a change's bytes to its message.

It is compiled where this installation has the compiled loops, else written in Python for the
table's columns: the same messages for eight times the CPU.
"""

from __future__ import annotations

from bridge.native import native
from bridge.rowparts import (
    DATA_KEY,
    LSN_KEY,
    NOT_LAST,
    TEXT_KEY,
    UNCHANGED_KEY,
    Encode,
    RowParts,
    row_parts,
)
from bridge.rowsource import generated
from schemas.shapes import TableShape


def compiled(parts: RowParts) -> Encode:
    """Give the compiled function; only where `native` has it."""
    encode: Encode = native("RowCode")(
        subject=parts.subject,
        heads=parts.heads,
        id_suffix=parts.id_suffix,
        lsn_key=LSN_KEY,
        data_key=DATA_KEY,
        unchanged_key=UNCHANGED_KEY,
        text_key=TEXT_KEY,
        not_last=NOT_LAST,
        columns=parts.columns,
    )
    return encode


def row_code(shape: TableShape, schema_revision: int, letter: bytes) -> tuple[bytes, Encode]:
    """Make a table's function for an operation, and say what its frames have at byte 25."""
    parts = row_parts(shape, schema_revision, letter)
    return parts.key, compiled(parts) if native.is_there else generated(parts)
