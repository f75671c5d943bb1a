"""Whoever reads standard output may close it at any time: `| head` has seen enough."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lake_consumer import cli, forget, logs, resync, status
from lake_consumer.errors import OutputClosed
from lake_consumer.query import command
from lake_consumer.verify import command as verifying
from lake_consumer.verify.report import terminal_printer

HEALED = cast("Any", SimpleNamespace(table="t", differences=()))


def run(*arguments: str) -> int:
    """Run a command whose standard output is a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out, pytest.MonkeyPatch.context() as patched:
        # Here and not in a fixture: pytest gives every phase of a test a standard output anew.
        patched.setattr(sys, "stdout", out)
        return cli.main(arguments, {})


def say(*_: object, **__: object) -> str:
    return "said"


def log(*_: object, **__: object) -> None:
    logs.info("said")


def verify(*_: object, **__: object) -> None:
    terminal_printer(20, as_json=True).healed(HEALED)


COMMANDS: dict[str, tuple[object, str, Callable[..., object], tuple[str, ...]]] = {
    "status": (status, "render_status", say, ()),
    "resync": (resync, "ask_resync", say, ("t",)),
    "forget": (forget, "ask_forget", say, ("t",)),
    "query": (command, "print_query", lambda *_, **__: command._print(["said"]), ("SELECT 1",)),
    "cuts": (command, "print_cuts", lambda *_, **__: command._print(["said"]), ()),
    "verify": (verifying, "verify", verify, ()),
}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_a_closed_pipe_ends_every_command_quietly(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a shell calls a program that SIGPIPE ended."""
    module, function, act, arguments = COMMANDS[name]
    monkeypatch.setattr(module, function, act)
    monkeypatch.setattr(status, "read_status", say)

    assert run(name, *arguments) == OutputClosed.exit_code == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("arguments", [("--help",), ("query", "--help")])
def test_a_closed_pipe_ends_help_quietly(
    arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 141
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["run", "drain", "maintain"])
def test_a_log_that_nobody_reads_ends_a_program_quietly(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_stop_on_signals", lambda _: None)
    monkeypatch.setattr(f"lake_consumer.app.{name}", log)

    assert run(name) == 141
    assert capfd.readouterr().err == ""


def test_an_error_that_nobody_reads_ends_a_program_quietly(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The log of `run` is standard output, also for what ended it."""

    def fail(*_: object) -> None:
        raise ValueError("unexpected")

    monkeypatch.setattr(cli, "_stop_on_signals", lambda _: None)
    monkeypatch.setattr("lake_consumer.app.run", fail)

    assert run("run") == 141
    assert capfd.readouterr().err == ""


def test_a_log_on_a_full_disk_does_not_end_the_program() -> None:
    """The disk that the lake waits for may be the one its log is on."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.MonkeyPatch.context() as patched:
        out = os.fdopen(descriptor, "w")
        patched.setattr(sys, "stdout", out)
        logs.info("the first")
        logs.info("the second")
    with pytest.raises(OSError, match="No space left"):
        out.close()
