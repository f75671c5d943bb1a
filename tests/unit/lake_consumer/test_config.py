from __future__ import annotations

from pathlib import Path

import pytest

from lake_consumer.catalogs import CatalogUri
from lake_consumer.cli import main
from lake_consumer.config import OPTIONS, parse_spark_conf, read_config
from lake_consumer.errors import BadOption


def test_defaults_are_enough_for_a_laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is needed to begin."""
    monkeypatch.chdir(tmp_path)

    config = read_config({}, {}, {})

    assert config.nats_url == "nats://127.0.0.1:4222"
    assert config.warehouse == f"file://{tmp_path}/lake"
    assert config.catalog.sqlite_file == tmp_path / "lake" / "catalog.db"
    assert config.spark_master == "local[*]"


def test_flags_win_over_the_environment() -> None:
    """What was typed last is what was meant."""
    environ = {"LAKE_WAREHOUSE": "/a", "NATS_URL": "nats://a:1"}

    config = read_config({"warehouse": "/b", "nats_url": None}, environ, {})

    assert config.warehouse == "file:///b"
    assert config.nats_url == "nats://a:1"


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    """Containers mount secrets as files; a trailing newline is not part of them."""
    (tmp_path / "secret").write_text("s3cret\n")

    config = read_config({}, {"NATS_LAKE_PASSWORD_FILE": str(tmp_path / "secret")}, {})

    assert config.nats_password == "s3cret"
    assert "s3cret" not in repr(config)


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
    assert catalog.pyiceberg() == {"type": "sql", "uri": "sqlite:////data/lake/catalog.db"}
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
