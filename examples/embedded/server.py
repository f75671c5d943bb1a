"""One server as a child process: started until ready, stopped, killed, brought back on its port."""

from __future__ import annotations

import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.embedded.process import kill_family, spawn

HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

# Below the range clients get their own ports from: a client that keeps trying a stopped server
# could otherwise be given that very port, connect to itself, and block the server's return.
_PORTS = range(20_000, 32_000)


class ServerDied(RuntimeError):
    """A server ended by itself, or did not become ready; the message ends with its log's tail."""


class EmbeddedServer(ABC):
    """One child process on one port, with its log and its data in one folder."""

    name: str
    farewell: signal.Signals
    """What the server gets when its parent dies."""

    def __init__(self, folder: Path, *, port: int | None = None) -> None:
        self.folder = folder.resolve()
        self.log = self.folder / f"{self.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._port = port
        self._log_start = 0

    @property
    def port(self) -> int:
        if self._port is None:
            raise RuntimeError(f"{self.name} has not been started yet")
        return self._port

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> Self:
        """Start and wait until the server serves; a port taken by somebody else is no obstacle."""
        if self.running:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        self.prepare()
        keep_port = self._port is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if not keep_port:
                self._port = free_port()
            self._spawn()
            try:
                self._wait_until_ready(deadline)
            except ServerDied as died:
                self.kill()
                if "in use" not in str(died) or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            except BaseException:
                self.kill()
                raise
            else:
                return self

    def stop(self) -> None:
        """Ask the server to finish; insist if it does not."""
        self._end_with(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`, of the server and of its helpers, and wait until they are gone."""
        if self.process is not None:
            kill_family(self.process)
            self.process = None

    def restart(self) -> Self:
        """Stop and start again on the same port and data."""
        self.stop()
        return self.start()

    def log_tail(self, lines: int = 20) -> str:
        """Return what the server said last since it was started."""
        try:
            with self.log.open("rb") as log:
                log.seek(self._log_start)
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    @abstractmethod
    def prepare(self) -> None:
        """Write what must exist before the first start, and the settings of this start."""

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def serves(self) -> bool:
        """Say whether a client is served, by this server and not by another on its port."""

    def user(self) -> pwd.struct_passwd | None:
        """Whom the server runs as, where that is not ourselves."""
        return None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _end_with(self, request: signal.Signals) -> None:
        if self.process is None:
            return
        try:
            self.process.send_signal(request)
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def _spawn(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = spawn(
            self.command(), self.log, cwd=self.folder, farewell=self.farewell, user=self.user()
        )

    def _wait_until_ready(self, deadline: float) -> None:
        while not self.serves():
            if self.process is None or self.process.poll() is not None:
                code = self.process.returncode if self.process else None
                raise ServerDied(f"{self.name} ended with code {code}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerDied(f"{self.name} is not ready in time:\n{self.log_tail()}")
            time.sleep(0.02)


def free_port() -> int:
    """Find a port that nobody listens on just now."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 - a port is no secret
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port


@contextmanager
def temporary_folder(*, keep: bool = False) -> Iterator[Path]:
    """Make a folder that the servers' users may pass through, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="walbridge-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
