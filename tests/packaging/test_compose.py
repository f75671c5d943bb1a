"""docker-compose.yml, .env.example and the template agree with each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bridge.options import OPTIONS
from tests.packaging import ROOT, compose

SERVICES: dict[str, Any] = compose.load(compose.example_env())["services"]
TEMPLATE = (ROOT / "nats-server.conf.template").read_text()


def test_every_variable_is_in_the_example() -> None:
    """Who copies .env.example has seen every knob."""
    used = compose.variables(compose.compose_text())
    used |= set(re.findall(r"\$\{(NATS_[A-Z_]+)\}", TEMPLATE))
    used |= {secret["environment"] for secret in compose.load({})["secrets"].values()}

    assert used == compose.example_env().keys()


def test_defaults_are_those_of_the_example() -> None:
    """Two defaults for one setting would be a riddle; passwords have none."""
    example = compose.example_env()
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", compose.compose_text()))

    assert defaults == {name: example[name] for name in defaults}
    assert not [name for name in defaults if name.endswith(("PASSWORD", "TOKEN"))]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_when_it_is_healthy(name: str) -> None:
    """The next service waits for that, and operators look at it."""
    assert SERVICES[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_health_not_for_a_process(name: str) -> None:
    """A started PostgreSQL may still be running its init scripts."""
    awaited = SERVICES[name].get("depends_on", {})

    assert all(wait["condition"] == "service_healthy" for wait in awaited.values())


@pytest.mark.parametrize("name", SERVICES)
def test_no_port_is_open_beyond_this_machine(name: str) -> None:
    """A trial on a laptop is no public database."""
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_no_password_is_an_environment_variable(name: str) -> None:
    """`docker inspect` shows variables; secrets are files, and the programs read *_FILE."""
    env = SERVICES[name].get("environment", {})
    secret = {key: value for key, value in env.items() if re.search("PASSWORD|TOKEN", key)}

    assert all(key.endswith("_FILE") for key in secret)
    mounted = {f"/run/secrets/{secret}" for secret in SERVICES[name].get("secrets", [])}
    assert set(secret.values()) <= mounted


def test_images_are_pinned_to_a_version() -> None:
    """`latest` is another pipeline every month; our own image is built from this tree."""
    images = {name: service["image"] for name, service in SERVICES.items()}

    assert images["postgres"] == "postgres:18"
    assert re.fullmatch(r"nats:2\.\d+-alpine", images["nats"])
    assert {images["bridge"], images["lake"]} == {"walbridge"}
    assert SERVICES["bridge"]["build"] == "."


def test_the_bridge_service_sets_only_what_the_bridge_reads() -> None:
    """A misspelt variable is silently a default."""
    known = {option.env for option in OPTIONS}
    given = {name.removesuffix("_FILE") for name in SERVICES["bridge"]["environment"]}

    assert given <= known


def test_data_of_postgres_18_is_kept() -> None:
    """From version 18 on the image keeps its data one folder higher than before."""
    volumes = SERVICES["postgres"]["volumes"]

    assert "postgres:/var/lib/postgresql" in volumes
    assert any(mount.startswith("./init.sh:/docker-entrypoint-initdb.d/") for mount in volumes)


def test_compose_accepts_the_file(tmp_path: Path) -> None:
    """Our reading of the file is not Compose's."""
    docker = shutil.which("docker") or "false"
    if subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("Docker Compose is not installed")
    env_file = tmp_path / ".env"
    env_file.write_text((ROOT / ".env.example").read_text())

    done = subprocess.run(
        [docker, "compose", "--env-file", str(env_file), "config", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
