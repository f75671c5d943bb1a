"""Options: where they come from, which source wins, and that a bad one is named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from bridge.cli import COMMANDS, build_parser, configure, main
from bridge.config import BridgeConfig, StreamOverrides, read_config
from bridge.errors import BadConfiguration
from bridge.options import OPTIONS, read_values

NEEDED = ["--slot", "s", "--pub", "p"]
CREDS = """\
-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

************************* IMPORTANT *************************
-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


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


@pytest.mark.parametrize(
    ("flags", "environ", "zstd"),
    [
        ([], {}, "off"),
        (["--zstd"], {}, "chunks"),
        (["--zstd", "--json"], {}, "chunks"),
        (["--zstd=all"], {}, "all"),
        ([], {"BRIDGE_ZSTD": "all"}, "all"),
        (["--zstd=off"], {"BRIDGE_ZSTD": "all"}, "off"),
    ],
)
def test_a_flag_that_stands_alone_has_a_meaning(
    flags: list[str], environ: dict[str, str], zstd: str
) -> None:
    assert config(*flags, **environ).zstd == zstd
    with pytest.raises(BadConfiguration, match="off, chunks or all"):
        config("--zstd=everything")


def test_a_secret_may_come_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    assert config(POSTGRES_BRIDGE_PASSWORD_FILE=str(secret)).postgres.password == "s3cret"


def test_no_secret_shows_in_a_representation() -> None:
    settled = config(
        POSTGRES_BRIDGE_PASSWORD="s3cret", NATS_BRIDGE_PASSWORD="s3cret", NATS_TOKEN="s3cret",
        BRIDGE_HTTP_TOKEN="s3cret", PG_DSN="postgresql://u:s3cret@h/d",
        NATS_CREDS=CREDS.format(jwt="s3cret", seed="s3cret"),
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


def test_what_is_encoded_in_a_url_is_decoded() -> None:
    nats = config(NATS_URL="nats://u%40x:p%2Fq@example.test").nats
    assert (nats.user, nats.password, nats.port, nats.tls) == ("u@x", "p/q", 4222, False)
    assert config(NATS_URL="nats://t%2F@example.test").nats.token == "t/"


def test_a_ca_for_nats_demands_tls() -> None:
    assert config(NATS_TLS_CA="ca.pem").nats.tls
    assert config(NATS_URL="nats://h", NATS_TLS_CERT="me.pem").nats.tls
    assert not config().nats.tls


def test_a_ca_for_postgresql_checks_the_servers_name_as_well() -> None:
    assert config(PG_SSLROOTCERT="ca.pem").postgres.sslmode == "verify-full"
    assert config(PG_SSLROOTCERT="ca.pem", PG_SSLMODE="verify-ca").postgres.sslmode == "verify-ca"
    assert config().postgres.sslmode is None


def test_credentials_come_by_path_and_as_text(tmp_path: Path) -> None:
    file = tmp_path / "bridge.creds"
    file.write_text(CREDS.format(jwt="j.w.t", seed="SUSEED"))
    by_path = config(NATS_CREDS=str(file)).nats.creds
    as_text = config(NATS_CREDS_FILE=str(file)).nats.creds
    assert by_path == as_text
    assert by_path
    assert (by_path.jwt, by_path.seed) == ("j.w.t", "SUSEED")


def test_a_seed_in_the_wrong_place_is_not_shown() -> None:
    with pytest.raises(BadConfiguration, match="NATS_CREDS") as raised:
        config(NATS_CREDS="SUS3CRET")
    assert "SUS3CRET" not in str(raised.value)


def test_an_empty_variable_is_not_set() -> None:
    settled = config(NATS_TOKEN="", PG_SSLMODE="", NATS_PORT="", NATS_CREDS="")
    assert (settled.nats.token, settled.nats.port, settled.nats.creds) == (None, 4222, None)


@pytest.mark.parametrize(
    ("flags", "wishes"),
    [
        ([], StreamOverrides()),
        (["--stream-max-age", "7d"], StreamOverrides(max_age=timedelta(days=7))),
        (["--stream-max-age", "90"], StreamOverrides(max_age=timedelta(seconds=90))),
        (["--stream-max-age", "0"], StreamOverrides(max_age=timedelta(0))),
        (["--stream-max-bytes", "512MiB"], StreamOverrides(max_bytes=512 << 20)),
        (["--stream-max-bytes", "10G"], StreamOverrides(max_bytes=10 << 30)),
        (["--stream-replicas", "3"], StreamOverrides(replicas=3)),
    ],
)
def test_streams_can_be_made_otherwise(flags: list[str], wishes: StreamOverrides) -> None:
    assert config(*flags).streams == wishes


@pytest.mark.parametrize(
    ("flags", "environ", "named"),
    [
        (["--port", "99999"], {}, "--port"),
        ([], {"NATS_PORT": "x"}, "NATS_PORT"),
        (["--durability", "maybe"], {}, "--durability"),
        (["--max-in-flight-bytes", "0"], {}, "--max-in-flight-bytes"),
        (["--slot", "Not-A-Slot"], {}, "Not-A-Slot"),
        ([], {"NATS_URL": "http://x"}, "NATS_URL"),
        ([], {"NATS_CREDS": "/nowhere.creds"}, "/nowhere.creds"),
        ([], {"NATS_CREDS": "-----BEGIN nothing"}, "NATS_CREDS"),
        ([], {"PG_SSLMODE": "perhaps"}, "PG_SSLMODE"),
        (["--stream-max-age", "soon"], {}, "--stream-max-age"),
        (["--stream-max-bytes", "0"], {}, "--stream-max-bytes"),
        (["--stream-replicas", "0"], {}, "--stream-replicas"),
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


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_each_command_reads_only_what_it_needs(command: str) -> None:
    """`bridge status` must not ask for a slot."""
    needed = ["users"] if command == "snapshot" else []
    parsed = vars(build_parser(command).parse_args(needed))
    values = read_values(parsed, {})
    assert values["http_port"] == 9090


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["chekc"])
    assert "chekc" in capsys.readouterr().err
