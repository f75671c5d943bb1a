"""Names in the lake: where a table's mirror and change log are, and how SQL spells them."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.names import TableName

CATALOG = "lake"
CHANGES_SUFFIX = "__changes"
BRIDGE_NAMESPACE = "_bridge"


@dataclass(frozen=True, slots=True, order=True)
class LakeName:
    """A table of the lake's catalog."""

    namespace: str
    name: str

    @property
    def sql(self) -> str:
        return ".".join(quote(part) for part in (CATALOG, self.namespace, self.name))

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


def mirror_of(table: TableName) -> LakeName:
    return LakeName(table.schema, table.table)


def log_of(table: TableName) -> LakeName:
    return LakeName(table.schema + CHANGES_SUFFIX, table.table)


def table_of_log(name: LakeName) -> TableName | None:
    """The table whose change log this is; None where it is none."""
    if not name.namespace.endswith(CHANGES_SUFFIX):
        return None
    return TableName(name.namespace.removesuffix(CHANGES_SUFFIX), name.name)


CUTS = LakeName(BRIDGE_NAMESPACE, "cuts")
RESYNCS = LakeName(BRIDGE_NAMESPACE, "resyncs")
"""A table without rows, whose properties name the mirrors that are to be built anew."""


VERIFICATIONS = LakeName(BRIDGE_NAMESPACE, "verifications")
"""A table without rows, whose properties say what `verify` found last."""


def quote(identifier: str) -> str:
    return "`" + identifier.replace("`", "``") + "`"
