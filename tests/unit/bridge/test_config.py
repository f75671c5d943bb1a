"""Options: where they come from, which source wins, and that a bad one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.cli import build_parser, configure
from bridge.config import OPTIONS, BridgeConfig, read_config
from bridge.errors import BadConfiguration

NEEDED = ["--slot", "s", "--pub", "p"]


def config(*flags: str, **environ: str) -> BridgeConfig:
    return configure([*NEEDED, *flags], environ)


def test_defaults_are_safe() -> None:
    settled = config()
    assert settled.http.host == "127.0.0.1"
    assert settled.durability == "auto"
    assert settled.format == "msgpack"


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text("http_port = 1\nnats_port = 2\npg_port = 3\n")
    settled = config("--config", str(file), "--port", "10", BRIDGE_HTTP_PORT="20", NATS_PORT="21")
    assert (settled.http.port, settled.nats.port, settled.postgres.port) == (10, 21, 3)


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    assert config(POSTGRES_BRIDGE_PASSWORD_FILE=str(secret)).postgres.password == "s3cret"


def test_no_secret_shows_in_a_representation() -> None:
    settled = config(
        POSTGRES_BRIDGE_PASSWORD="s3cret", NATS_BRIDGE_PASSWORD="s3cret", NATS_TOKEN="s3cret",
        BRIDGE_HTTP_TOKEN="s3cret", PG_DSN="postgresql://u:s3cret@h/d",
    )  # fmt: skip
    assert "s3cret" not in repr(settled)


def test_secrets_have_no_flag() -> None:
    """A flag would show them in the process list."""
    assert [option.name for option in OPTIONS if option.secret and option.flag] == []


def test_a_nats_url_says_everything_about_the_server() -> None:
    nats = config(NATS_URL="tls://u:p@example.test:4333").nats
    assert (nats.host, nats.port, nats.tls, nats.user, nats.password) == (
        "example.test", 4333, True, "u", "p",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "environ", "named"),
    [
        (["--port", "99999"], {}, "--port"),
        ([], {"NATS_PORT": "x"}, "NATS_PORT"),
        (["--durability", "maybe"], {}, "--durability"),
        (["--max-in-flight-bytes", "0"], {}, "--max-in-flight-bytes"),
        (["--slot", "Not-A-Slot"], {}, "Not-A-Slot"),
        ([], {"NATS_URL": "http://x"}, "NATS_URL"),
        ([], {"PG_HOST_FILE": "nowhere"}, "PG_HOST_FILE"),
        (["--config", "nowhere.toml"], {}, "nowhere.toml"),
    ],
)
def test_a_bad_value_is_refused_by_name(
    flags: list[str], environ: dict[str, str], named: str
) -> None:
    with pytest.raises(BadConfiguration, match=named):
        configure([*NEEDED, *flags], environ)


def test_a_missing_slot_says_how_to_give_one() -> None:
    with pytest.raises(BadConfiguration, match="--slot") as raised:
        read_config({"publication": "p"}, {})
    assert "BRIDGE_SLOT" in raised.value.advice


@pytest.mark.parametrize("text", ["slott = 's'", "= broken"])
def test_a_configuration_file_with_a_mistake_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "bridge.toml"
    file.write_text(text)
    with pytest.raises(BadConfiguration, match=r"bridge\.toml"):
        config("--config", str(file))


def test_help_explains_every_option_and_variable() -> None:
    text = build_parser().format_help()
    assert [o.name for o in OPTIONS if (o.flag or o.env or "") not in text] == []
