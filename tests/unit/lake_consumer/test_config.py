from __future__ import annotations

from pathlib import Path

import pytest

from lake_consumer.catalogs import CatalogUri
from lake_consumer.cli import main
from lake_consumer.config import OPTIONS, parse_spark_conf, read_config
from lake_consumer.errors import BadOption
from lake_consumer.options import Option, read_values


def test_defaults_are_enough_for_a_laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is needed to begin."""
    monkeypatch.chdir(tmp_path)

    config = read_config({}, {}, {})

    assert config.nats.url == "nats://127.0.0.1:4222"
    assert config.warehouse == f"file://{tmp_path}/lake"
    assert config.catalog.sqlite_file == tmp_path / "lake" / "catalog.db"
    assert config.spark_master == "local[*]"


def test_flags_win_over_the_environment() -> None:
    """What was typed last is what was meant."""
    environ = {"LAKE_WAREHOUSE": "/a", "NATS_URL": "nats://a:1"}

    config = read_config({"warehouse": "/b", "nats_url": None}, environ, {})

    assert config.warehouse == "file:///b"
    assert config.nats.url == "nats://a:1"


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    """Containers mount secrets as files; a trailing newline is not part of them."""
    (tmp_path / "secret").write_text("s3cret\n")

    config = read_config({}, {"NATS_LAKE_PASSWORD_FILE": str(tmp_path / "secret")}, {})

    assert config.nats.password == "s3cret"
    assert "s3cret" not in repr(config)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.env)
def test_every_variable_may_name_a_file(option: Option, tmp_path: Path) -> None:
    """Without exception: an operator should not have to look up which ones do."""
    (tmp_path / "value").write_text("from the file\n")
    named = {f"{option.env}_FILE": str(tmp_path / "value")}

    assert read_values(OPTIONS, {}, named)[option.name] == "from the file"
    assert read_values(OPTIONS, {}, {**named, option.env: "itself"})[option.name] == "itself"


def test_a_url_with_credentials_is_taken_apart() -> None:
    """What is in the address is shown to people; what proves who we are is not."""
    tls = read_config({}, {"NATS_URL": "tls://me:s3cr%3At@nats.example:4333"}, {}).nats
    token = read_config({}, {"NATS_URL": "nats://t0ken@[::1]"}, {}).nats

    assert (tls.url, tls.user, tls.password) == ("tls://nats.example:4333", "me", "s3cr:t")
    assert tls.tls
    assert (token.url, token.token, token.tls) == ("nats://[::1]:4222", "t0ken", False)


def test_files_are_read_on_the_driver(tmp_path: Path) -> None:
    """Executors have other disks: they are sent what is in the files, not where they are."""
    creds, ca = tmp_path / "lake.creds", tmp_path / "ca.pem"
    creds.write_text(
        "-----BEGIN NATS USER JWT-----\nj.w.t\n------END NATS USER JWT------\n\n"
        "-----BEGIN USER NKEY SEED-----\nSUSEED\n------END USER NKEY SEED------\n"
    )
    ca.write_text("-----BEGIN CERTIFICATE-----\n")

    given = read_config({}, {"NATS_CREDS": str(creds), "NATS_TLS_CA": str(ca)}, {}).nats
    pasted = read_config({}, {"NATS_CREDS": creds.read_text()}, {}).nats

    assert (given.jwt, given.seed) == (pasted.jwt, pasted.seed) == ("j.w.t", "SUSEED")
    assert given.tls_ca == ca.read_text()
    assert given.tls
    assert "SUSEED" not in repr(given)


def test_no_secret_has_a_flag() -> None:
    """A process list shows flags to everybody on the machine."""
    assert [option.env for option in OPTIONS if option.secret and option.flag] == []


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({"NATS_PORT": "http"}, "NATS_PORT"),
        ({"LAKE_MAX_MESSAGES": "0"}, "--max-messages"),
        ({"LAKE_INTERVAL": "-1"}, "--interval"),
        ({"LAKE_CATALOG_URI": "mysql://x"}, "sqlite:///PATH"),
        ({"LAKE_WAREHOUSE": "s3://bucket/lake"}, "LAKE_CATALOG_URI"),
        ({"NATS_LAKE_USER_FILE": "/nowhere"}, "NATS_LAKE_USER"),
        ({"NATS_CREDS": "/nowhere"}, "NATS_CREDS"),
        ({"NATS_CREDS": "-----BEGIN NOTHING-----"}, "nsc generate creds"),
        ({"NATS_URL": "http://nats.example"}, "NATS_URL"),
    ],
)
def test_a_bad_value_is_answered_with_what_to_correct(environ: dict[str, str], names: str) -> None:
    """The advice names the very option."""
    with pytest.raises(BadOption) as caught:
        read_config({}, environ, {})

    assert names in caught.value.advice


def test_spark_settings_are_checked() -> None:
    """A typo would otherwise be ignored without a word."""
    assert parse_spark_conf(["spark.a=b=c"]) == {"spark.a": "b=c"}
    with pytest.raises(BadOption):
        parse_spark_conf(["executor.memory=1g"])


def test_one_address_serves_spark_and_pyiceberg() -> None:
    """Two clients on two catalogs would be two lakes."""
    catalog = CatalogUri("sqlite:////data/lake/catalog.db")

    assert catalog.spark()["uri"].startswith("jdbc:sqlite:/data/lake/catalog.db")
    assert catalog.pyiceberg()["uri"].startswith("sqlite:////data/lake/catalog.db")
    assert CatalogUri("https://catalog.example").spark()["type"] == "rest"


def test_bad_input_ends_with_a_sentence_and_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Never a traceback."""
    code = main(["drain", "--max-messages", "many"], {})

    assert code == 2
    shown = capsys.readouterr().out
    assert "'many' is not a number above zero" in shown
    assert "--max-messages" in shown


def test_an_unreachable_server_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The password in the address must not be."""
    code = main(["drain", "--nats-url", "nats://me:s3cret@127.0.0.1:1"], {})

    assert code == 3
    shown = capsys.readouterr().out
    assert "nats://127.0.0.1:1 cannot be reached" in shown
    assert "s3cret" not in shown
