"""What a cluster is given: this package as a zip, its dependencies as another, and a file to start.

Executors run a Python of their own. The code always travels with the job. The dependencies may be
installed there, or travel too; they hold compiled parts, so they want the same Python version and
the same kind of machine as here.
"""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from lake_consumer import jars
from lake_consumer.config import LakeConfig

CODE, DEPENDENCIES, START = "walbridge.zip", "dependencies.zip", "submit.py"
PACKAGES = ("lake_consumer", "schemas")
EXECUTOR_ROOTS = (
    "nats-py",
    "nkeys",
    "msgpack",
    "msgspec",
    "pyroaring",
    "zstandard",
    "pyarrow",
    "pandas",
)
"""What executors import; pandas is Spark's own wish where Arrow is used."""

_START = '''"""Starts the lake consumer under spark-submit; made by `lake-consumer package`."""

import sys

from lake_consumer.cli import main

sys.exit(main())
'''
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)[^;]*(?P<marker>;.*)?")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_package(folder: Path, *, dependencies: bool) -> list[Path]:
    """Write everything that spark-submit needs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    start = folder / START
    start.write_text(_START)
    written = [write_code(folder / CODE), start]
    if dependencies:
        written.append(write_dependencies(folder / DEPENDENCIES))
    return written


def submit_command(config: LakeConfig, folder: Path, *, dependencies: bool) -> str:
    """The spark-submit that runs the package; what it does not name comes from the environment."""
    coordinates = jars.packages(config.catalog, config.warehouse)
    words = ["spark-submit", "--master", config.spark_master, "--packages", ",".join(coordinates)]
    words += ["--py-files", str(folder / CODE)]
    if dependencies:
        words += ["--archives", f"{folder / DEPENDENCIES}#dependencies"]
        words += ["--conf", "spark.executorEnv.PYTHONPATH=dependencies"]
    return shlex.join([*words, str(folder / START), "run"])


def write_code(path: Path) -> Path:
    """Zip this package and the contract, the same bytes for the same code."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            for name, content in _walk(files(package), package):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), content)
    return path


def write_dependencies(path: Path) -> Path:
    """Zip what executors import, as it is installed here."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in sorted(closure(EXECUTOR_ROOTS)):
            for file in distribution(name).files or ():
                # Scripts lie outside of the folder that is imported from.
                if file.parts[0] != ".." and file.suffix != ".pyc":
                    archive.write(str(file.locate()), str(file))
    return path


def closure(roots: tuple[str, ...]) -> set[str]:
    """These distributions and all they require, extras aside."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            required = distribution(name).requires or []
        except PackageNotFoundError:
            # A requirement of another platform or of an older Python.
            continue
        found.add(name)
        parts = [match for text in required if (match := _REQUIREMENT.match(text))]
        waiting += [part["name"] for part in parts if "extra" not in (part["marker"] or "")]
    return found


def _walk(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _walk(entry, f"{name}/{entry.name}")
        elif entry.is_file() and not entry.name.endswith(".pyc"):
            yield f"{name}/{entry.name}", entry.read_bytes()
