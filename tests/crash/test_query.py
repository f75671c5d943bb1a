"""`lake-consumer query` ends as it should, a hundred times: no abort, no hang, no traceback.

The lake is written by pyiceberg alone. In a folder with plain characters DuckDB reads the files
itself; brackets in the path make it read them through Python, as it reads those of object stores.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

ROUNDS = int(os.environ.get("QUERY_ROUNDS", "5"))
"""Runs per case, and five times that for the one that used to die: a hundred in all."""

ROWS, FILES = 200_000, 4
PATIENCE_SECONDS = 120
"""How long one run may take before it counts as hung; never a statement about speed."""

FOLDERS = {"native": "lake", "arrow": "lake [1]"}

MIDDLE = ROWS // 2
WHOLE = "SELECT count(*) AS n, sum(id) AS s, count(DISTINCT v) AS d FROM t"
BAD_CAST = f"SELECT CAST(CASE WHEN id = {MIDDLE} THEN v ELSE '1' END AS INTEGER) FROM t"
OUT_OF_RANGE = f"SELECT sum(CAST(id * {2**31 // MIDDLE} AS INTEGER)) FROM t"
ENDLESS_ROWS = "SELECT a.id FROM t a, t b, t c"
ENDLESS_WORK = "SELECT count(*) FROM t a, t b, t c WHERE hash(a.id + b.id * c.id) = 3"


def write_lake(folder: Path) -> None:
    folder.mkdir()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    try:
        catalog.create_namespace("public")
        rows = pa.table(
            {"id": pa.array(range(ROWS), pa.int64()), "v": [f"row {n}" for n in range(ROWS)]}
        )
        table = catalog.create_table("public.t", rows.schema)
        for at in range(FILES):
            table.append(rows.slice(at * ROWS // FILES, ROWS // FILES))
    finally:
        catalog.engine.dispose()


@pytest.fixture(scope="module", params=list(FOLDERS))
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("query") / FOLDERS[request.param]
    write_lake(folder)
    return folder


def run_many(lake: Path, out: Path, *arguments: str, rounds: int = ROUNDS) -> list[str]:
    """Run one query again and again; gives the outcome of each run."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.support.forkedqueries", str(rounds), str(PATIENCE_SECONDS),
         str(out), "query", *arguments, "--warehouse", str(lake)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout.split()


def texts(out: Path, ending: str) -> set[str]:
    return {path.read_text() for path in out.glob(f"*.{ending}")}


def test_a_limit_ends_well(lake: Path, tmp_path: Path) -> None:
    """It leaves most of the table unread, and what reads the table must end all the same."""
    rounds = 5 * ROUNDS
    found = run_many(lake, tmp_path, "SELECT * FROM t LIMIT 3", "--csv", rounds=rounds)

    assert found == ["0"] * rounds
    assert texts(tmp_path, "err") == {""}
    assert {len(text.splitlines()) for text in texts(tmp_path, "out")} == {4}


def test_a_whole_table_is_read(lake: Path, tmp_path: Path) -> None:
    """Every row once, by several threads."""
    assert run_many(lake, tmp_path, WHOLE, "--csv") == ["0"] * ROUNDS
    assert texts(tmp_path, "err") == {""}
    total = ROWS * (ROWS - 1) // 2
    assert texts(tmp_path, "out") == {f"n,s,d\n{ROWS},{total},{ROWS}\n"}


@pytest.mark.parametrize(
    ("sql", "words"),
    [(BAD_CAST, f"Could not convert string 'row {MIDDLE}'"), (OUT_OF_RANGE, "out of range")],
    ids=["bad cast", "out of range"],
)
def test_an_error_in_the_middle_is_told(lake: Path, tmp_path: Path, sql: str, words: str) -> None:
    """After rows that were fine, in DuckDB's words alone."""
    assert run_many(lake, tmp_path, sql, "--csv") == ["1"] * ROUNDS
    for text in texts(tmp_path, "err"):
        assert words in text
        assert "Traceback" not in text


@pytest.mark.parametrize("folder", FOLDERS.values(), ids=list(FOLDERS))
def test_a_missing_data_file_is_named(tmp_path: Path, folder: str) -> None:
    """Maintenance may have removed it, or a person."""
    lake, out = tmp_path / folder, tmp_path / "out"
    out.mkdir()
    write_lake(lake)
    lost = sorted(lake.glob("public/t/data/*.parquet"))[-1]
    lost.unlink()

    assert run_many(lake, out, "SELECT max(v) FROM t") == ["1"] * ROUNDS
    for text in texts(out, "err"):
        assert f"a data file is missing: {lost}" in text
        assert "Traceback" not in text


@contextmanager
def start(lake: Path, sql: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a query that does not end by itself."""
    running = subprocess.Popen(
        [sys.executable, "-m", "lake_consumer.cli", "query", sql, "--csv",
         "--warehouse", str(lake)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with running:
        try:
            yield running
        finally:
            running.kill()


def wait_for_rows(running: subprocess.Popen[bytes]) -> None:
    assert running.stdout is not None
    assert running.stdout.readline() == b"id\n"


def wait_for_work(running: subprocess.Popen[bytes]) -> None:
    """Until a thread beside the main one, which can only be DuckDB's, has worked for a while."""
    process, end = psutil.Process(running.pid), time.monotonic() + PATIENCE_SECONDS
    while not any(t.user_time > 0.5 for t in process.threads() if t.id != running.pid):
        assert time.monotonic() < end, "DuckDB never worked"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("sql", "wait"),
    [(ENDLESS_ROWS, wait_for_rows), (ENDLESS_WORK, wait_for_work)],
    ids=["rows", "work"],
)
def test_ctrl_c_ends_a_query_at_once(
    lake: Path, sql: str, wait: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    """While it prints, and while DuckDB computes and Python would not hear of it."""
    for _ in range(ROUNDS // 5):
        with start(lake, sql) as running:
            wait(running)
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=PATIENCE_SECONDS)

        assert running.returncode == 130
        assert err.startswith(b"lake-consumer: interrupted\n")
        assert b"Traceback" not in err


@pytest.mark.parametrize("sql", [ENDLESS_ROWS, "SELECT * FROM t"], ids=["endless", "table"])
def test_a_closed_pipe_ends_a_query_quietly(lake: Path, sql: str) -> None:
    """`| head -1` has seen enough; a shell calls that 141, of every program."""
    for _ in range(ROUNDS // 5):
        with start(lake, sql) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == b"id\n" or sql != ENDLESS_ROWS
            running.stdout.close()
            assert running.stderr is not None
            err = running.stderr.read()
            running.wait(timeout=PATIENCE_SECONDS)

        assert (running.returncode, err) == (141, b"")


def test_a_full_disk_is_told(lake: Path) -> None:
    """Whoever redirects a query into a file must learn that the file is incomplete."""
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "lake_consumer.cli", "query", WHOLE, "--warehouse", str(lake)],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    assert found.returncode == 1
    assert "standard output cannot be written: No space left on device" in found.stderr


def test_a_lake_without_files_has_no_rows(lake: Path, tmp_path: Path) -> None:
    """A table that is empty is a table, with its columns."""
    folder = tmp_path / lake.name
    shutil.copytree(lake, folder)
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    catalog.create_table("public.nothing", pa.schema([("id", pa.int64()), ("v", pa.string())]))
    catalog.engine.dispose()

    assert run_many(folder, tmp_path, "SELECT * FROM nothing", "--csv") == ["0"] * ROUNDS
    assert texts(tmp_path, "out") == {"id,v\n"}
