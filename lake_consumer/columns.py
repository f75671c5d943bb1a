"""Columns of a lake table, known by the catalog's attnum and not by their name.

The attnum survives a rename, so it is what connects a change, a shape and an Iceberg column. It is
kept in the Iceberg column's doc, together with the contract's type: the table describes itself, and
a change of shape is one atomic Iceberg commit.

A name is PostgreSQL's own, unless the lake has that path already (`lake_column`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.shapes import Column, TableShape
from schemas.types import ContractType, parse_type

TEXT_COLUMN = "_bridge_text"
"""Map from column to PostgreSQL's own text, for values their column's type cannot hold."""

ESCAPE = "_"
"""What a name that the lake keeps for itself has behind it where PostgreSQL uses it too."""

_METADATA = (
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
)
"""What Iceberg adds to the rows that Spark reads; it refuses a table's column of that name."""

_RESERVED = frozenset({TEXT_COLUMN, f"{TEXT_COLUMN}.key", f"{TEXT_COLUMN}.value", *_METADATA})
_ELEMENT = ".element"


def lake_column(name: str) -> str:
    """What a column of PostgreSQL is called in the lake.

    Iceberg knows a field by its path, which has to be the only one: `a.element` is that of the
    elements of an array `a`, and the texts of a row have three. SQL may not mind upper and lower
    case. A name like a reserved one, with `_` behind it, has one more too, so that no two
    columns become one.
    """
    like = name.rstrip(ESCAPE).lower()
    return name + ESCAPE if like in _RESERVED or like.endswith(_ELEMENT) else name


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """One column of a mirror or of a change log's row.

    In a change log a column may have stepped `aside`, for one of the same attnum whose type it
    cannot be; one that names a `relation` is of a table that was dropped and created anew since.
    """

    position: int
    name: str
    type: ContractType
    aside: bool = False
    relation: int | None = None

    @classmethod
    def of(cls, column: Column) -> LakeColumn:
        return cls(column.position, lake_column(column.name), column.type)

    @property
    def doc(self) -> str:
        aside = " aside" if self.aside else ""
        relation = "" if self.relation is None else f" relation={self.relation}"
        return f"attnum={self.position} type={self.type}{aside}{relation}"

    @property
    def is_current(self) -> bool:
        """Whether the table has this column, or had it until it was dropped."""
        return not self.aside and self.relation is None


Columns = tuple[LakeColumn, ...]

_DOC = re.compile(
    r"attnum=(?P<position>\d+) type=(?P<type>\S+)(?P<aside> aside)?(?: relation=(?P<relation>\d+))?"
)


def columns_of(shape: TableShape) -> Columns:
    return tuple(LakeColumn.of(column) for column in shape.columns)


def are_named(held: Columns, wanted: Columns) -> bool:
    """Whether columns have the names they are to have; earlier versions reserved fewer."""
    names = {column.position: column.name for column in held if column.is_current}
    return all(names.get(column.position, column.name) == column.name for column in wanted)


def read_doc(name: str, doc: str | None) -> LakeColumn | None:
    """Read back a column that we made; None for any other."""
    found = _DOC.match(doc or "")
    if found is None:
        return None
    return LakeColumn(
        int(found["position"]),
        name,
        parse_type(found["type"]),
        aside=found["aside"] is not None,
        relation=None if found["relation"] is None else int(found["relation"]),
    )
