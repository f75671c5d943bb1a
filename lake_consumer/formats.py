"""Table formats: how the tables that the lake makes are written, for the readers one has.

The session carries the choice, as it carries the catalog, so that whoever makes a table on it makes
it alike. A table that is there already keeps the format it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping

FORMAT_SETTING = "spark.walbridge.lake.format"
DEFAULT_FORMAT = "v3-mor"


def _modes(mode: str) -> dict[str, str]:
    return {f"write.{change}.mode": mode for change in ("delete", "update", "merge")}


FORMATS: Mapping[str, Mapping[str, str]] = {
    # Deletion vectors: a change costs what it changes, and readers of v3 are needed.
    "v3-mor": {"format-version": "3", **_modes("merge-on-read")},
    # Files are rewritten: a change costs its files, and any reader of Iceberg will do.
    "v2-cow": {"format-version": "2", **_modes("copy-on-write")},
}


def format_of(version: int, properties: Mapping[str, str]) -> str:
    """Name the format of a table that is there, for people."""
    mode = properties.get("write.merge.mode", "copy-on-write")
    return f"v{version}-{'mor' if mode == 'merge-on-read' else 'cow'}"
