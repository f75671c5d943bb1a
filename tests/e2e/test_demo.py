"""`make demo` as people run it: a process with an exit code, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from examples.demo.stack import PARTS
from examples.embedded.process import alive

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "examples.demo", "--rows", "300"]


def run_demo(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )


def folder_of(output: str) -> Path:
    """The demo's first line says where it works."""
    return Path(output.splitlines()[0].rpartition(" ")[2])


def processes_in(folder: Path) -> list[str]:
    commands = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and alive(process):
            commands.append(line)
    return commands


def assert_nothing_is_left(folder: Path) -> None:
    """No folder, and no process for longer than a JVM takes to notice that its parent is gone."""
    assert not folder.exists()
    deadline = time.monotonic() + 60
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_the_demo_proves_lake_and_database_equal_and_cleans_up() -> None:
    """The first promise a visitor tries."""
    done = run_demo()

    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL: " in done.stdout
    assert "DIFFERENT" not in done.stdout
    assert_nothing_is_left(folder_of(done.stdout))


@pytest.mark.parametrize("part", PARTS)
def test_the_demo_fails_when_a_part_dies(part: str) -> None:
    """A proof that succeeds without one of its parts proves nothing."""
    done = run_demo("--kill", part)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "EQUAL: " not in done.stdout
    assert "FAILED: " in done.stderr
    assert_nothing_is_left(folder_of(done.stdout))


def test_an_interrupted_demo_leaves_nothing_behind() -> None:
    """People press Ctrl-C in the middle; servers and folders must not pile up."""
    demo = subprocess.Popen(COMMAND, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    with demo.stdout:
        said = demo.stdout.readline()
        while "streaming" not in said:
            line = demo.stdout.readline()
            assert line, said
            said += line

        demo.send_signal(signal.SIGTERM)
        demo.stdout.read()

    assert demo.wait(120) == 130
    assert_nothing_is_left(folder_of(said))
