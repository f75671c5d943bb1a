"""The Dockerfile's own steps, run without Docker as far as that goes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import pytest

from lake_consumer import session
from lake_consumer.session import SessionOptions
from tests.packaging import ROOT
from tests.support.native import needs_native

TEXT = (ROOT / "Dockerfile").read_text()
STEPS = [
    tuple(line.split(maxsplit=1))
    for line in TEXT.replace("\\\n", "").splitlines()
    if line and not line.startswith("#")
]
STAGES = [number for number, (verb, _) in enumerate(STEPS) if verb == "FROM"]
BUILD, FINAL = STEPS[: STAGES[-1]], STEPS[STAGES[-1] :]
MADE = ("compiled.c", "*.so")
"""What compiling leaves in the tree."""

NO_INDEX = r"(?i)No matching distribution found for (setuptools|cython)|Max retries exceeded"


def arguments(steps: list[tuple[str, ...]], verb: str) -> list[str]:
    return [rest for found, rest in steps if found == verb]


def copied(steps: list[tuple[str, ...]]) -> Iterator[str]:
    for rest in arguments(steps, "COPY"):
        if not rest.startswith("--from"):
            yield from shlex.split(rest)[:-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from what the build stage copies and nothing else of this tree."""
    source, wheels = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    for name in copied(BUILD):
        if (ROOT / name).is_dir():
            hidden = shutil.ignore_patterns("__pycache__", *MADE)
            shutil.copytree(ROOT / name, source / name, ignore=hidden)
        else:
            shutil.copy(ROOT / name, source / name)
    step = next(rest for rest in arguments(BUILD, "RUN") if rest.startswith("pip wheel"))
    command = shlex.split(step.replace("/wheels", str(wheels)))

    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=source, capture_output=True, text=True, check=False
    )

    if re.search(NO_INDEX, done.stderr):
        pytest.skip("no package index in reach")
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(wheels.glob("walbridge-*.whl")))


def test_the_wheel_has_both_commands(wheel: zipfile.ZipFile) -> None:
    """One image runs either."""
    entry_points = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))

    commands = re.findall(r"^([\w-]+) = ", wheel.read(entry_points).decode(), re.MULTILINE)

    assert sorted(commands) == ["bridge", "lake-consumer"]


@pytest.mark.parametrize("package", ["bridge", "lake_consumer", "schemas"])
def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile, package: str) -> None:
    """JSON Schemas and pages are no Python files and easily stay behind."""
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not any(path.match(made) for made in MADE)
    }

    assert files - set(wheel.namelist()) == set()


@needs_native
def test_the_wheel_has_the_compiled_loops(wheel: zipfile.ZipFile) -> None:
    """Where this tree could be compiled, the wheel can; without them it is slower and says so."""
    assert any(re.fullmatch(r"bridge/compiled\..*\.(so|pyd)", name) for name in wheel.namelist())


def test_the_build_stage_has_what_compiles_the_loops() -> None:
    assert any("gcc" in rest and "libc6-dev" in rest for rest in arguments(BUILD, "RUN"))


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Tests and examples at the top level of site-packages would shadow other people's."""
    top = {name.split("/")[0] for name in wheel.namelist()}

    assert {name for name in top if not name.endswith(".dist-info")} == {
        "bridge",
        "lake_consumer",
        "schemas",
    }


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    """.dockerignore lets nothing in but what the Dockerfile copies."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    sources = {*copied(BUILD), *copied(FINAL)}

    assert sources == allowed
    assert all((ROOT / name).exists() for name in sources)


def test_the_image_installs_pinned_versions_of_the_lake_too() -> None:
    """The versions tested here are the versions shipped."""
    install = next(rest for rest in arguments(FINAL, "RUN") if "pip install" in rest)

    assert "--constraint" in install
    assert "[lake]" in install


def test_the_step_that_fetches_sparks_jars_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls the program's own start of Spark, which may change without this file in mind."""
    sessions: list[SessionOptions] = []

    class Session:
        def __init__(self, options: SessionOptions) -> None:
            sessions.append(options)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(session, "open_session", Session)
    command = shlex.split(next(rest for rest in arguments(FINAL, "RUN") if "open_session" in rest))
    assert command[:2] == ["python", "-c"]

    exec(command[2], {})

    assert [options.master for options in sessions] == ["local[1]"]


def test_the_image_does_not_run_as_root() -> None:
    """A hole in the program is not a hole in the machine."""
    assert arguments(FINAL, "USER") == ["walbridge"]


def test_both_stages_use_one_python_that_the_project_supports() -> None:
    images = {rest.split()[0] for rest in arguments(STEPS, "FROM")}

    assert images == {"python:3.13-slim"}
