from __future__ import annotations

import duckdb
import pytest

from lake_consumer.errors import NotReadable, QueryFailed
from lake_consumer.query.failures import explain, explain_opening

REFUSED = 'Permission Error: Cannot access file "/lake/a.parquet" - file system operations are off'


@pytest.mark.parametrize(
    "words",
    [
        'IO Error: No files found that match the pattern "/lake/a.parquet"\n\nLINE 1: CREATE VIEW',
        'IO Error: Cannot open file "/lake/a.parquet": No such file or directory',
        "Failed to open local file '/lake/a.parquet'. Detail: [errno 2] No such file or directory",
        "Path does not exist '/lake/a.parquet'",
        "Cannot open file, does not exist: /lake/a.parquet",
        REFUSED,
        REFUSED.replace(".parquet", ".parquet/**/*.parquet"),
    ],
)
def test_a_missing_data_file_is_named(words: str) -> None:
    """Whoever reads the files says it in other words."""
    found = explain(duckdb.Error(words), {"/lake/a.parquet"})

    assert isinstance(found, NotReadable)
    assert str(found) == "a data file is missing: /lake/a.parquet"


def test_a_file_that_no_table_has_is_refused() -> None:
    """It is not missing: the SQL may not read it."""
    assert isinstance(explain(duckdb.Error(REFUSED), {"/lake/b.parquet"}), QueryFailed)


def test_neither_tracebacks_nor_our_own_statements_are_shown() -> None:
    """They say nothing to whoever wrote the SQL."""
    error = duckdb.Error("reading failed. Detail: Python exception: Traceback (most\n  File x")
    assert str(explain(error)) == "reading failed"
    error = duckdb.Error("no magic bytes\n\nLINE 1: CREATE VIEW a\n   ^")
    assert str(explain_opening("public.t", error)) == "public.t cannot be read: no magic bytes"
