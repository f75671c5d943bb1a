"""Catalog addresses: one URI, told to Spark and to pyiceberg in the words of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lake_consumer.errors import BadOption

_SQLITE = "sqlite:///"
_BUSY = "busy_timeout=60000"


@dataclass(frozen=True, slots=True)
class CatalogUri:
    """`sqlite:///path`, `jdbc:...` or `http(s)://...` of a REST catalog."""

    uri: str

    def __post_init__(self) -> None:
        if not self.uri.startswith((_SQLITE, "jdbc:", "http://", "https://")):
            raise BadOption(
                f"catalog {self.uri!r} is not supported",
                advice="Use sqlite:///PATH, jdbc:... or the http(s) address of a REST catalog.",
            )

    @property
    def sqlite_file(self) -> Path | None:
        return Path(self.uri.removeprefix(_SQLITE)) if self.uri.startswith(_SQLITE) else None

    @property
    def shown(self) -> str:
        """The address without a password that may stand in it."""
        return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", self.uri)

    def spark(self) -> dict[str, str]:
        """Properties of Iceberg's Spark catalog."""
        if self.uri.startswith("http"):
            return {"type": "rest", "uri": self.uri}
        uri, file = self.uri, self.sqlite_file
        if file is not None:
            uri = f"jdbc:sqlite:{file}?{_BUSY}"
        return {
            "type": "jdbc",
            "uri": uri,
            "jdbc.schema-version": "V1",
            # SQLite has no users, and Iceberg insists on one.
            "jdbc.user": "lake",
            "jdbc.password": "lake",
        }

    def pyiceberg(self) -> dict[str, str]:
        """Properties of pyiceberg's catalog."""
        if self.uri.startswith("http"):
            return {"type": "rest", "uri": self.uri}
        uri = self.uri.removeprefix("jdbc:")
        return {"type": "sql", "uri": uri.replace("sqlite:/", "sqlite:////", 1)
                if self.uri.startswith("jdbc:sqlite:/") else uri}  # fmt: skip
