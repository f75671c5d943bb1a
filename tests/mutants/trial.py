"""One mutant against the tests of its module, in a process of its own.

The process is forked from one that has the libraries imported and nothing of ours, so a trial costs
what its tests cost. A fault that hangs the tests is seen as well: the process is ended when it has
taken far more time of a processor, or of a clock, than the tests take without a fault.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

import pytest

from tests.mutants.mutations import Mutant

LIBRARIES = (
    "hypothesis", "jsonschema", "msgspec", "nats", "nats.js", "numpy", "psycopg", "pyarrow.compute",
    "pyarrow.parquet", "pyiceberg.table", "pyroaring", "pyspark.sql", "pytest_asyncio.plugin",
    "zstandard", "_hypothesis_pytestplugin",
)  # fmt: skip
OPTIONS = (
    "-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
"""Stop at the first failure, and do not prepare to explain it."""
MEMORY_BYTES = 8 << 30


class _Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from code that is not its file's."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - the loader's signature
        return self._code


class _Finder(importlib.abc.MetaPathFinder):
    """Gives one module with its fault, and leaves all others alone."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Changed(fullname, spec.origin, self._mutant.compile(spec.origin))
        return spec


def import_libraries() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    # Nothing of this is garbage, and no process has to look through it.
    gc.freeze()


def source_of(module: str) -> str:
    return Path(*module.split(".")).with_suffix(".py").read_text()


def start(tests: Sequence[str], mutant: Mutant | None, cpu_seconds: int = 600) -> int:
    """Fork a process that runs the tests with a fault, or without any; gives its id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        os.setsid()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        # A fault may allocate without end.
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        os.environ["FEW_EXAMPLES"] = "1"
        if mutant is not None:
            sys.meta_path.insert(0, _Finder(mutant))
        code = int(pytest.main([*OPTIONS, *tests]))
    finally:
        os._exit(code)


def end(child: int) -> None:
    os.killpg(child, signal.SIGKILL)


def measure(tests: Sequence[str]) -> float:
    """Run tests without a fault; gives the seconds of a processor they take."""
    _, status, used = os.wait4(start(tests, None), 0)
    if status:
        raise SystemExit(f"fails without any fault: pytest {' '.join(tests)}")
    return used.ru_utime + used.ru_stime
