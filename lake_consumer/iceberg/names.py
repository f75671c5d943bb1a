"""Names in the lake: where a table's mirror and change log are, and how SQL spells them.

The lake keeps namespaces for itself: `_bridge`, and those of change logs, which end in `__changes`.
A schema of PostgreSQL that is called so has a `_` more in the lake. So has one that is called like
a reserved name with `_` behind it: every table has places of its own, and every place one table.
"""

from __future__ import annotations

from dataclasses import dataclass

from lake_consumer.columns import ESCAPE
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
    return LakeName(_namespace(table.schema), table.table)


def log_of(table: TableName) -> LakeName:
    return LakeName(_namespace(table.schema) + CHANGES_SUFFIX, table.table)


def is_log(name: LakeName) -> bool:
    return name.namespace.endswith(CHANGES_SUFFIX)


def table_of_log(name: LakeName) -> TableName | None:
    """The table whose change log this is; None where it is none."""
    if not is_log(name):
        return None
    return _table(name.namespace.removesuffix(CHANGES_SUFFIX), name)


def table_of_mirror(name: LakeName) -> TableName | None:
    """The table whose mirror this is; None of a change log and of the lake's own tables."""
    return None if _is_reserved(name.namespace) else _table(name.namespace, name)


def table_of(name: LakeName) -> TableName | None:
    """The table whose mirror or change log this is; None of the lake's own tables."""
    return table_of_log(name) or table_of_mirror(name)


def _is_reserved(namespace: str) -> bool:
    return namespace == BRIDGE_NAMESPACE or namespace.endswith(CHANGES_SUFFIX)


def _is_like_reserved(namespace: str) -> bool:
    """Whether it is a reserved name, or one with `_` behind it."""
    return _is_reserved(namespace.rstrip(ESCAPE))


def _namespace(schema: str) -> str:
    return schema + ESCAPE if _is_like_reserved(schema) else schema


def _table(namespace: str, name: LakeName) -> TableName | None:
    schema = namespace.removesuffix(ESCAPE) if _is_like_reserved(namespace) else namespace
    # What no table's schema becomes is none of ours.
    return TableName(schema, name.name) if _namespace(schema) == namespace else None


CUTS = LakeName(BRIDGE_NAMESPACE, "cuts")
RESYNCS = LakeName(BRIDGE_NAMESPACE, "resyncs")
"""A table without rows, whose properties name the mirrors that are to be built anew."""


VERIFICATIONS = LakeName(BRIDGE_NAMESPACE, "verifications")
"""A table without rows, whose properties say what `verify` found last."""


def quote(identifier: str) -> str:
    return "`" + identifier.replace("`", "``") + "`"
