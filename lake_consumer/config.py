"""Configuration: one table of options, read once from flags and environment.

Flags win over the environment. A secret has no flag, because a process list shows flags; it may
stand in a file instead, named by the variable with `_FILE` behind it, as every variable may.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lake_consumer.batches import BatchLimits
from lake_consumer.catalogs import CatalogUri
from lake_consumer.errors import BadOption

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One thing a user may set."""

    name: str
    env: str
    help: str
    default: str | None = None
    flag: str | None = None
    secret: bool = False


OPTIONS = (
    Option(
        name="nats_url",
        flag="--nats-url",
        env="NATS_URL",
        help="NATS server; wins over NATS_HOST and NATS_PORT",
    ),
    Option(name="nats_host", env="NATS_HOST", default="127.0.0.1", help="NATS host"),
    Option(name="nats_port", env="NATS_PORT", default="4222", help="NATS port"),
    Option(name="nats_user", env="NATS_LAKE_USER", help="NATS user"),
    Option(name="nats_password", env="NATS_LAKE_PASSWORD", secret=True, help="NATS password"),
    Option(
        name="warehouse",
        flag="--warehouse",
        env="LAKE_WAREHOUSE",
        default="./lake",
        help="folder or object-store URI of the tables",
    ),
    Option(
        name="catalog_uri",
        flag="--catalog-uri",
        env="LAKE_CATALOG_URI",
        help="sqlite:///FILE, jdbc:... or a REST catalog's address; "
        "if not set, catalog.db in the warehouse folder",
    ),
    Option(
        name="max_messages",
        flag="--max-messages",
        env="LAKE_MAX_MESSAGES",
        default="200000",
        help="messages per lake commit, at most; a larger transaction is taken whole",
    ),
    Option(
        name="max_mib",
        flag="--max-mib",
        env="LAKE_MAX_MIB",
        default="256",
        help="MiB of messages per lake commit, about",
    ),
    Option(
        name="interval",
        flag="--interval",
        env="LAKE_INTERVAL",
        default="5",
        help="seconds from one lake commit to the next, at least, for `run`",
    ),
    Option(
        name="side_by_side",
        flag="--side-by-side",
        env="LAKE_SIDE_BY_SIDE",
        default="4",
        help="tables written at the same time",
    ),
    Option(
        name="spark_master",
        flag="--spark-master",
        env="SPARK_MASTER",
        default="local[*]",
        help="Spark master",
    ),
    Option(
        name="driver_memory",
        flag="--driver-memory",
        env="SPARK_DRIVER_MEMORY",
        default="2g",
        help="memory of Spark's driver",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """All settings, checked."""

    nats_url: str
    nats_user: str | None
    nats_password: str | None
    warehouse: str
    catalog: CatalogUri
    limits: BatchLimits
    interval_seconds: float
    side_by_side: int
    spark_master: str
    driver_memory: str
    spark_conf: Mapping[str, str]

    def __repr__(self) -> str:
        # The password must not reach a log through a traceback or a debugger's print.
        return f"LakeConfig(warehouse={self.warehouse!r})"


def read_config(
    flags: Mapping[str, Any], environ: Mapping[str, str], spark_conf: Mapping[str, str]
) -> LakeConfig:
    values = {option.name: _value(option, flags, environ) for option in OPTIONS}
    number = _Numbers(values)
    warehouse = _warehouse(values["warehouse"] or "")
    return LakeConfig(
        nats_url=values["nats_url"] or f"nats://{values['nats_host']}:{number('nats_port', int)}",
        nats_user=values["nats_user"],
        nats_password=values["nats_password"],
        warehouse=warehouse,
        catalog=_catalog(values["catalog_uri"], warehouse),
        limits=BatchLimits(
            max_messages=number("max_messages", int),
            max_bytes=int(number("max_mib", float) * _MEBIBYTE),
        ),
        interval_seconds=number("interval", float),
        side_by_side=number("side_by_side", int),
        spark_master=values["spark_master"] or "",
        driver_memory=values["driver_memory"] or "",
        spark_conf=spark_conf,
    )


def _value(option: Option, flags: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    if (given := flags.get(option.name)) is not None:
        return str(given)
    if named := environ.get(f"{option.env}_FILE"):
        try:
            return Path(named).read_text().strip()
        except OSError as error:
            raise BadOption(
                f"{option.env}_FILE names {named}, which cannot be read: {error.strerror}",
                advice=f"Correct the path, or set {option.env} itself.",
            ) from error
    return environ.get(option.env) or option.default


N = TypeVar("N", int, float)


class _Numbers:
    """Reads numbers above zero, and names the option where there is none."""

    def __init__(self, values: Mapping[str, str | None]) -> None:
        self._values = values

    def __call__(self, name: str, kind: Callable[[str], N]) -> N:
        text = self._values[name] or ""
        try:
            number = kind(text)
        except ValueError:
            number = kind("0")
        if number <= 0:
            option = next(option for option in OPTIONS if option.name == name)
            raise BadOption(
                f"{text!r} is not a number above zero",
                advice=f"Correct {option.flag or option.env} (environment: {option.env}).",
            )
        return number


def _warehouse(text: str) -> str:
    """A plain path becomes a file URI: the form that Spark and pyiceberg both read."""
    # Not as_uri(): it writes a space as %20, which Spark takes for the folder's very name.
    return text if "://" in text else f"file://{os.path.abspath(text)}"


def _catalog(uri: str | None, warehouse: str) -> CatalogUri:
    if uri:
        return CatalogUri(uri)
    if not warehouse.startswith("file://"):
        raise BadOption(
            f"warehouse {warehouse} is not a folder, so there is no place for a catalog file in it",
            advice="Set LAKE_CATALOG_URI or --catalog-uri.",
        )
    return CatalogUri(f"sqlite:///{warehouse.removeprefix('file://')}/catalog.db")


def parse_spark_conf(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise BadOption(
                f"{pair!r} is not a Spark setting",
                advice="Write --spark-conf spark.some.key=value.",
            )
        settings[key] = value
    return settings
