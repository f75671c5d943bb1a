"""Many runs of `lake-consumer` without paying for its imports each time.

    python -m tests.support.forkedqueries ROUNDS SECONDS OUT_FOLDER ARGUMENT...

Each round is a fork of an interpreter that has imported everything and started no thread. It runs
the command and ends as any Python program does, which is what the tests that use this look at.
Prints one exit code per round; a negative one is a signal, and `hung` a round that did not end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import lake_consumer.query.command  # noqa: F401 - what every round needs
from lake_consumer.cli import main


def run(rounds: int, seconds: float, folder: Path, arguments: list[str]) -> None:
    for number in range(rounds):
        pid = os.fork()
        if pid == 0:
            _write_into(folder / f"{number}.out", 1)
            _write_into(folder / f"{number}.err", 2)
            raise SystemExit(main(arguments, {}))
        sys.stdout.write(f"{_outcome(pid, seconds)}\n")
        sys.stdout.flush()


def _write_into(path: Path, descriptor: int) -> None:
    with path.open("wb") as file:
        os.dup2(file.fileno(), descriptor)


def _outcome(pid: int, seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return str(os.waitstatus_to_exitcode(status))
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


if __name__ == "__main__":
    run(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
