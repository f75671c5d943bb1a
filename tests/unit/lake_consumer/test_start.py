"""The command's first second."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED_AT = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from importlib.metadata import entry_points
sys.argv = ["lake-consumer", "--help"]
(command,) = entry_points(group="console_scripts", name="lake-consumer")
sys.exit(command.load()())
"""


@pytest.mark.parametrize("module", ["lake_consumer.cli", "lake_consumer.config"])
def test_ctrl_c_while_it_loads_ends_it_without_a_traceback(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT.format(module=module)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "lake-consumer: interrupted\n"
