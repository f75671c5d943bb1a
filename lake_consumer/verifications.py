"""What `verify` found last, kept in the lake so that `run` and `status` can show it.

`verify` is a process of its own. It leaves its verdict on each table as a property of the table
`_bridge.verifications`, by the table's token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from schemas.names import BadToken, TableName

VERIFIED_PREFIX = "bridge.verified."


@dataclass(frozen=True, slots=True)
class Verification:
    """When a table was compared with PostgreSQL, and whether both were equal."""

    at: datetime
    verdict: str
    lsn: str

    @property
    def is_equal(self) -> bool:
        return self.verdict != "differs"

    def __str__(self) -> str:
        return f"{self.verdict} at {self.at.isoformat(timespec='seconds')}"


def verification_properties(
    found: Iterable[tuple[TableName, Verification]],
) -> dict[str, str]:
    return {
        VERIFIED_PREFIX + table.token: json.dumps(
            {"at": one.at.isoformat(), "verdict": one.verdict, "lsn": one.lsn}
        )
        for table, one in found
    }


def read_verifications(properties: Mapping[str, str]) -> dict[TableName, Verification]:
    """Read what is there; what is not ours is left out."""
    found: dict[TableName, Verification] = {}
    for key, value in properties.items():
        if not key.startswith(VERIFIED_PREFIX):
            continue
        try:
            table = TableName.from_token(key.removeprefix(VERIFIED_PREFIX))
            fields = json.loads(value)
            at = datetime.fromisoformat(fields["at"])
            found[table] = Verification(at, str(fields["verdict"]), str(fields["lsn"]))
        except (BadToken, ValueError, KeyError, TypeError):
            continue
    return found
