"""What DuckDB says of a query that failed, in words for the person who wrote it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection

from lake_consumer.errors import LakeError, NotReadable, QueryFailed, reason_of

_MISSING = re.compile(
    r"""No\ files\ found\ that\ match\ the\ pattern\ "(?P<native>[^"]+)"
    |Cannot\ open\ file\ "(?P<opened>[^"]+)":\ No\ such\ file
    |Failed\ to\ open\ local\ file\ '(?P<local>[^']+)'.*No\ such\ file
    |Cannot\ open\ file,\ does\ not\ exist:\ (?P<metadata>\S.*)
    |Path\ does\ not\ exist\ '(?P<stored>[^']+)'
    """,
    re.VERBOSE,
)
_REFUSED = re.compile(r'Permission Error: Cannot access file "(?P<path>[^"*]+?)(?:/\*\*/[^"]*)?"')
"""DuckDB tries a path that is not there as a folder, with a pattern behind it."""

_TRACEBACK = re.compile(r"\.? Detail: Python exception: Traceback.*", re.DOTALL)
_STATEMENT = re.compile(r"\n\nLINE 1: .*", re.DOTALL)


def explain(error: Exception, allowed: Collection[str] = ()) -> LakeError:
    """A failure of the SQL itself: DuckDB quotes the line and points at the place.

    Of a file that it was `allowed` to read and that is gone, DuckDB says that it may not.
    """
    found = _REFUSED.search(reason_of(error))
    if found is not None and found["path"] in allowed:
        return _missing(found["path"])
    return _missing_file(error) or QueryFailed(_TRACEBACK.sub("", reason_of(error)))


def explain_opening(table: str, error: Exception) -> LakeError:
    """A failure before the user's SQL ran; the statement that DuckDB quotes is ours."""
    found = _STATEMENT.sub("", reason_of(error))
    return _missing_file(error) or NotReadable(
        f"{table} cannot be read: {found}",
        advice="`lake-consumer verify` compares it with PostgreSQL; `resync` builds it anew.",
    )


def _missing_file(error: Exception) -> NotReadable | None:
    found = _MISSING.search(reason_of(error))
    if found is None:
        return None
    return _missing(next(path for path in found.groups() if path is not None))


def _missing(path: str) -> NotReadable:
    return NotReadable(
        f"a data file is missing: {path}",
        advice="If maintenance expired its snapshot during the query, run the query again, or keep "
        "snapshots longer (--keep-days). If it stays missing, run `lake-consumer resync TABLE`.",
    )
