from __future__ import annotations

import subprocess
from pathlib import Path

from lake_consumer.java import find_java_home, make_shim


def _java(folder: Path) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    return java


def test_java_home_is_taken_first(tmp_path: Path) -> None:
    """Who sets it means it."""
    _java(tmp_path / "home")
    on_path = _java(tmp_path / "other").parent
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path)}

    assert find_java_home(environ, lambda _: 17) == tmp_path / "home"


def test_an_old_java_home_gives_way_to_the_path(tmp_path: Path) -> None:
    """Spark needs 17; a forgotten variable should not stop it."""
    old = _java(tmp_path / "old")
    new = _java(tmp_path / "new")
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)}

    found = find_java_home(environ, lambda java: 11 if java == old else 21)

    assert found == tmp_path / "new"


def test_a_java_that_does_not_run_is_no_java(tmp_path: Path) -> None:
    """A broken link, a missing file or another system's binary."""
    assert find_java_home({"JAVA_HOME": str(tmp_path), "PATH": ""}) is None


def test_the_shim_drops_the_one_option_and_keeps_the_rest_as_they_are(tmp_path: Path) -> None:
    """Options hold spaces, quotes and nothing at all."""
    home = make_shim(_java(tmp_path / "runtime"), tmp_path / "cache")
    options = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "it's", '"x"', "$HOME"]

    shown = subprocess.run(
        [home / "bin" / "java", *options], capture_output=True, text=True, check=True
    ).stdout

    assert shown.splitlines() == ["-Da=b c", "", "it's", '"x"', "$HOME"]


def test_making_the_shim_twice_is_harmless(tmp_path: Path) -> None:
    """Every start makes sure of it; another start may be using it."""
    java = _java(tmp_path / "runtime")

    first = make_shim(java, tmp_path / "cache")
    made = (first / "bin" / "java").stat().st_mtime_ns

    assert make_shim(java, tmp_path / "cache") == first
    assert (first / "bin" / "java").stat().st_mtime_ns == made
