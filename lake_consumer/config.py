"""Configuration: one table of options, read once, handed down in the smallest piece needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lake_consumer.batches import BatchLimits
from lake_consumer.catalogs import CatalogUri
from lake_consumer.errors import BadOption
from lake_consumer.natsoptions import NATS_OPTIONS, NatsOptions, nats_options
from lake_consumer.options import Numbers, Option, read_values
from lake_consumer.tablestates import FirstSight

_MEBIBYTE = 1 << 20


OPTIONS = (
    *NATS_OPTIONS,
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
        name="first_sight",
        flag="--first-sight",
        env="LAKE_FIRST_SIGHT",
        default="snapshot",
        help="how a table begins that the lake has not seen: with a `snapshot` of what is in it, or"
        " with what the `stream` holds, where that is known to be its whole history",
    ),
    Option(
        name="patience",
        flag="--patience",
        env="LAKE_PATIENCE",
        default="300",
        help="seconds that `drain` waits for a snapshot nobody works on before it fails",
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

    nats: NatsOptions
    warehouse: str
    catalog: CatalogUri
    limits: BatchLimits
    interval_seconds: float
    side_by_side: int
    first_sight: FirstSight
    patience_seconds: float
    spark_master: str
    driver_memory: str
    spark_conf: Mapping[str, str]


def read_config(
    flags: Mapping[str, Any], environ: Mapping[str, str], spark_conf: Mapping[str, str]
) -> LakeConfig:
    values = read_values(OPTIONS, flags, environ)
    number = Numbers(OPTIONS, values)
    warehouse = _warehouse(values["warehouse"] or "")
    return LakeConfig(
        nats=nats_options(values, number("nats_port", int)),
        warehouse=warehouse,
        catalog=_catalog(values["catalog_uri"], warehouse),
        limits=BatchLimits(
            max_messages=number("max_messages", int),
            max_bytes=int(number("max_mib", float) * _MEBIBYTE),
        ),
        interval_seconds=number("interval", float),
        side_by_side=number("side_by_side", int),
        first_sight=_first_sight(values["first_sight"] or ""),
        patience_seconds=number("patience", float),
        spark_master=values["spark_master"] or "",
        driver_memory=values["driver_memory"] or "",
        spark_conf=spark_conf,
    )


def _first_sight(text: str) -> FirstSight:
    known: Mapping[str, FirstSight] = {"snapshot": "snapshot", "stream": "stream"}
    if text not in known:
        raise BadOption(
            f"{text!r} is no way to begin a table",
            advice="Write --first-sight snapshot or --first-sight stream.",
        )
    return known[text]


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
