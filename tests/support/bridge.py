"""The `bridge` command as a real process, for tests that start, stop and kill it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import nats.errors

PATIENCE_SECONDS = 300.0
"""How long a test waits for something that must happen; never a statement about speed."""

COMMAND = Path(sys.executable).with_name("bridge")


T = TypeVar("T")


def wait_for(produce: Callable[[], T | None], what: str) -> T:
    """Wait until `produce` gives something true, and fail by name if it never does.

    A server that does not answer in time, or not yet at all, has not given anything.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    trouble: Exception | None = None
    while True:
        try:
            if found := produce():
                return found
        except (OSError, nats.errors.Error) as error:
            trouble = error
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}") from trouble
        time.sleep(0.05)


class BridgeProcess:
    """One run of the command, logging into a file."""

    def __init__(self, environ: Mapping[str, str], *flags: str, log: Path) -> None:
        self.log = log
        # A flag given twice counts as given last, so a test may still ask for less patience.
        patience = ("--start-timeout", "60", "--ack-timeout", "60")
        self.flags = ("--port", "0", *patience, *flags)
        self.environ = {**os.environ, **environ}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __enter__(self) -> BridgeProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process and self._process.poll() is None:
            self.kill()

    def start(self) -> None:
        """Start the process without waiting for anything."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [COMMAND, *self.flags], env=self.environ, stdout=out, stderr=out
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the bridge was not started")
        return self._process

    def said(self) -> str:
        """Everything this run has logged."""
        return self.log.read_bytes()[self._log_start :].decode()

    def get(self, path: str) -> tuple[int, bytes]:
        """Ask one of the HTTP endpoints."""
        found = wait_for(lambda: re.search(r"http on (\S+?)\"", self.said()), "HTTP to listen")
        return fetch(f"http://{found[1]}{path}")

    def post(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        found = wait_for(lambda: re.search(r"http on (\S+?)\"", self.said()), "HTTP to listen")
        return fetch(f"http://{found[1]}{path}", method="POST", headers=headers)

    def status(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.get("/status")[1])
        return fields

    def is_streaming(self) -> bool:
        """Whether this run has begun to stream; fails where it has ended."""
        return self._alive() and 'msg="streaming from' in self.said()

    def wait_streaming(self) -> None:
        wait_for(self.is_streaming, "streaming")

    def wait_serving(self) -> None:
        """Wait until snapshots can be asked for, too."""
        self.wait_streaming()
        wait_for(lambda: self._alive() and 'msg="serving snapshots"' in self.said(), "snapshots")

    def _alive(self) -> bool:
        code = self.process.poll()
        if code is not None:
            raise AssertionError(f"the bridge ended with {code}:\n{self.said()[-3000:]}")
        return True

    def kill(self) -> None:
        """Kill it with no chance to say good-bye."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Ask it to end and give its exit code."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)


def fetch(
    url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
