"""Java's collections, read as a whole and never in a loop.

A loop over a Java collection ends with an exception of Java's, for which Spark looks for a Python
class: more than fifty look-ups by name, many of them through every jar there is. A table met some
fourteen such loops in a batch, and with twenty tables two thirds of the JVM's samples were in them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl


class JavaReader:
    """Reads maps and lists that Iceberg gives."""

    def __init__(self, iceberg: Any) -> None:
        # Iceberg's own way to put a map into one text; found once, as that is a look-up as well.
        self._to_text = iceberg.rest.RESTUtil.encodeFormData
        self._to_list = iceberg.relocated.com.google.common.collect.Lists.newArrayList

    def map(self, found: Any) -> dict[str, str]:
        """A map as texts."""
        return dict(parse_qsl(self._to_text(found), keep_blank_values=True))

    def list(self, found: Any) -> list[Any]:
        """Anything that Java could loop over."""
        items = self._to_list(found)
        return [items.get(at) for at in range(items.size())]
