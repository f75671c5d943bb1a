"""The whole pipeline on this machine: two servers and the two commands, as real processes.

It runs what a deployment runs: `init.sh` prepares the database, NATS reads
`nats-server.conf.template`, the commands get nothing but flags and environment.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal
from urllib.error import URLError
from urllib.request import urlopen

from examples.demo.screen import Step
from examples.embedded import EmbeddedNats, EmbeddedPostgres, free_port
from examples.embedded.process import kill_family, spawn

ROOT = Path(__file__).parents[2]
DATABASE = "shop"
SLOT = "demo_slot"
PUBLICATION = "cdc_pub"
SYNC_SECONDS = 1
PATIENCE_S = 120.0

Part = Literal["postgres", "nats", "bridge", "lake"]
PARTS: tuple[Part, ...] = ("postgres", "nats", "bridge", "lake")


class DemoFailed(RuntimeError):
    """The demo cannot go on; the message says why."""


class Program:
    """One of the two commands, running."""

    def __init__(self, name: str, command: list[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.process = spawn(
            [str(Path(sys.executable).parent / command[0]), *command[1:]],
            self.log,
            cwd=folder,
            env={**os.environ, **env},
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def last_lines(self, count: int = 1) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-count:]

    def close(self) -> None:
        """End the command as an operator would, or for good if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill_family(self.process)


class Stack:
    """All parts of the pipeline in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "lake"
        self._passwords = {name: secrets.token_hex(12) for name in ("pg", "bridge", "lake", "x")}
        self._parts = ExitStack()
        self.postgres = EmbeddedPostgres(folder / "postgres")
        self.nats = EmbeddedNats(folder / "nats", config=self._nats_config())
        self.bridge: Program | None = None
        self.lake: Program | None = None
        self.http_port = free_port()

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def start_servers(self) -> None:
        self._parts.enter_context(self.postgres)
        self._parts.enter_context(self.nats)
        self.postgres.create_database(DATABASE)

    def run_init_sh(self) -> str:
        """Run init.sh as a superuser, and return what it says."""
        bridge = self._bridge_env()
        done = subprocess.run(
            [str(ROOT / "init.sh")],
            env={
                "PATH": os.environ.get("PATH", ""),
                **self.postgres.psql_env(DATABASE),
                "POSTGRES_BRIDGE_USER": bridge["POSTGRES_BRIDGE_USER"],
                "POSTGRES_BRIDGE_PASSWORD": bridge["POSTGRES_BRIDGE_PASSWORD"],
                "BRIDGE_PUBLICATION": PUBLICATION,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(f"init.sh: {done.stderr}")
        return done.stdout.strip()

    def start_bridge(self, step: Step) -> None:
        """Start the bridge and wait until it streams."""
        self.bridge = Program(
            "bridge",
            [
                *("bridge", "--slot", SLOT, "--pub", PUBLICATION, "--port", str(self.http_port)),
                *("--sync-interval", str(SYNC_SECONDS)),
            ],
            self.folder,
            self._bridge_env(),
        )
        self._parts.callback(self.bridge.close)
        for _ in self.watch("the bridge to be ready", self._bridge_ready):
            step.show("starting the bridge")

    def start_lake(self) -> Program:
        """Start `lake-consumer drain`."""
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        env = {
            **self.nats.env(),
            "NATS_LAKE_USER": "lake",
            "NATS_LAKE_PASSWORD": self._passwords["lake"],
            "LAKE_WAREHOUSE": str(self.warehouse),
            "TMPDIR": str(scratch),
        }
        self.lake = Program("lake", ["lake-consumer", "drain"], self.folder, env)
        self._parts.callback(self.lake.close)
        return self.lake

    def watch(self, what: str, reached: Callable[[], bool]) -> Iterator[None]:
        """Wait for something, giving the caller a turn now and then; a dead part ends it."""
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            self.check()
            if time.monotonic() > deadline:
                raise DemoFailed(f"waited {PATIENCE_S:.0f} s for {what}")
            yield
            time.sleep(0.05)

    def check(self) -> None:
        """Fail if a part that should run does not."""
        for server in (self.postgres, self.nats):
            if not server.running:
                raise DemoFailed(f"{server.name} died:\n{server.log_tail()}")
        if self.bridge is not None and not self.bridge.running:
            lines = "\n".join(self.bridge.last_lines(15))
            code = self.bridge.process.returncode
            raise DemoFailed(f"bridge ended with code {code}:\n{lines}")

    def kill(self, part: Part) -> None:
        """`kill -9`, to see that the demo notices."""
        owner = {
            "postgres": self.postgres,
            "nats": self.nats,
            "bridge": self.bridge,
            "lake": self.lake,
        }[part]
        if owner is not None and owner.process is not None:
            kill_family(owner.process)

    def _bridge_env(self) -> dict[str, str]:
        return {
            **self.nats_env(),
            **self.postgres.env(DATABASE, user="bridge", password=self._passwords["pg"]),
        }

    def nats_env(self) -> dict[str, str]:
        return {
            **self.nats.env(),
            "NATS_BRIDGE_USER": "bridge",
            "NATS_BRIDGE_PASSWORD": self._passwords["bridge"],
        }

    def _bridge_ready(self) -> bool:
        try:
            with urlopen(f"{self.http_url}/ready", timeout=5) as answer:  # noqa: S310 - ours
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def _nats_config(self) -> str:
        """Fill in the deployment's own template."""
        lines = (ROOT / ".env.example").read_text().splitlines()
        values = dict(line.split("=", 1) for line in lines if re.match(r"NATS_\w+=", line))
        values |= {
            "NATS_STORE_DIR": str(self.folder / "nats" / "jetstream"),
            "NATS_MONITOR_PORT": "-1",
            "NATS_SYNC_SECONDS": str(SYNC_SECONDS),
            "NATS_BRIDGE_PASSWORD": self._passwords["bridge"],
            "NATS_LAKE_PASSWORD": self._passwords["lake"],
            "NATS_CONSUMER_PASSWORD": self._passwords["x"],
        }
        template = (ROOT / "nats-server.conf.template").read_text()
        return re.sub(r"\$\{(NATS_[A-Z_]+)\}", lambda found: values[found[1]], template)
