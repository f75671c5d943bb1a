"""Configuration: one table of options, read once, handed down in the smallest piece needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lake_consumer.batches import BatchLimits
from lake_consumer.care import CareOptions
from lake_consumer.careoptions import CARE_OPTIONS, care_options
from lake_consumer.catalogs import CATALOG_OPTIONS, CatalogUri
from lake_consumer.errors import BadOption
from lake_consumer.formats import DEFAULT_FORMAT, FORMATS
from lake_consumer.metricsoptions import MetricsOptions
from lake_consumer.natsoptions import NATS_OPTIONS, NatsOptions, nats_options
from lake_consumer.options import Numbers, Option, Values, read_switch, read_values
from lake_consumer.pgoptions import PG_OPTIONS, PostgresOptions, postgres_options
from lake_consumer.stores import STORE_OPTIONS, ObjectStore, is_s3
from lake_consumer.tablestates import FirstSight

_MEBIBYTE = 1 << 20
WAREHOUSE = "./lake"


OPTIONS = (
    *NATS_OPTIONS,
    Option(
        name="warehouse",
        flag="--warehouse",
        env="LAKE_WAREHOUSE",
        default=WAREHOUSE,
        help="folder or object-store URI (s3://BUCKET/PATH) of the tables; "
        "or the name of a warehouse that a REST catalog has",
    ),
    *CATALOG_OPTIONS,
    *STORE_OPTIONS,
    Option(
        name="table_format",
        flag="--format",
        env="LAKE_FORMAT",
        default=DEFAULT_FORMAT,
        help="format of tables that are made: v3-mor (deletion vectors; readers of Iceberg v3) or "
        "v2-cow (files are rewritten; any reader); a table that is there keeps its own",
    ),
    Option(
        name="max_messages",
        flag="--max-messages",
        env="LAKE_MAX_MESSAGES",
        default="1000000",
        help="messages per lake commit, at most, which a long backlog grows to; a larger "
        "transaction is taken whole",
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
        name="dead_letter",
        flag="--dead-letter",
        env="LAKE_DEAD_LETTER",
        default="false",
        switch=True,
        help="store messages that cannot be applied in stream DEAD, on dead.{subject}, and go on "
        "without them, instead of stopping",
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
        help="seconds that `drain` waits for a snapshot nobody works on, and `verify` for the lake "
        "to come to PostgreSQL's state, before they fail",
    ),
    Option(
        name="spark_master",
        flag="--spark-master",
        env="SPARK_MASTER",
        default="local[*]",
        help="Spark master: local[*], spark://HOST:PORT, yarn, k8s://...; spark-submit's own wins",
    ),
    Option(
        name="driver_memory",
        flag="--driver-memory",
        env="SPARK_DRIVER_MEMORY",
        default="2g",
        help="memory of Spark's driver",
    ),
    *CARE_OPTIONS,
    Option(
        name="metrics_port",
        flag="--metrics-port",
        env="LAKE_METRICS_PORT",
        help="port for /metrics, /health and /status of `run`; off if not set, 0 takes a free one",
    ),
    Option(
        name="metrics_host",
        flag="--metrics-host",
        env="LAKE_METRICS_HOST",
        default="127.0.0.1",
        help="address that port is opened on",
    ),
    *PG_OPTIONS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """All settings, checked."""

    nats: NatsOptions
    postgres: PostgresOptions
    care: CareOptions
    metrics: MetricsOptions
    warehouse: str
    catalog: CatalogUri
    table_format: str
    limits: BatchLimits
    interval_seconds: float
    side_by_side: int
    dead_letters: bool
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
    warehouse = _warehouse(values["warehouse"] or "", values["catalog_uri"] or "")
    return LakeConfig(
        nats=nats_options(values, number("nats_port", int), number("nats_timeout", float)),
        postgres=postgres_options(values, number("pg_port", int)),
        care=care_options(values, number),
        metrics=MetricsOptions(values["metrics_host"] or "", _port(values["metrics_port"])),
        warehouse=warehouse,
        catalog=_catalog(values, warehouse),
        table_format=_table_format(values["table_format"] or ""),
        limits=BatchLimits(
            max_messages=number("max_messages", int),
            max_bytes=int(number("max_mib", float) * _MEBIBYTE),
        ),
        interval_seconds=number("interval", float),
        side_by_side=number("side_by_side", int),
        dead_letters=read_switch(_option("dead_letter"), values["dead_letter"]),
        first_sight=_first_sight(values["first_sight"] or ""),
        patience_seconds=number("patience", float),
        spark_master=values["spark_master"] or "",
        driver_memory=values["driver_memory"] or "",
        spark_conf=spark_conf,
    )


def _option(name: str) -> Option:
    return next(option for option in OPTIONS if option.name == name)


def _port(text: str | None) -> int | None:
    """A port, or None where there is to be none; 0 leaves the choice to the machine."""
    if text is None:
        return None
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise BadOption(f"{text!r} is not a port", advice="Correct --metrics-port.")
    return int(text)


def _first_sight(text: str) -> FirstSight:
    known: Mapping[str, FirstSight] = {"snapshot": "snapshot", "stream": "stream"}
    if text not in known:
        raise BadOption(
            f"{text!r} is no way to begin a table",
            advice="Write --first-sight snapshot or --first-sight stream.",
        )
    return known[text]


def _warehouse(text: str, catalog_uri: str) -> str:
    """A plain path becomes a file URI: the form that Spark and pyiceberg both read."""
    if catalog_uri.startswith("http") and "/" not in text.removeprefix("./"):
        # A REST catalog knows its warehouses by name, and where its only one is.
        return "" if text == WAREHOUSE else text
    # Not as_uri(): it writes a space as %20, which Spark takes for the folder's very name.
    return text if "://" in text else f"file://{os.path.abspath(text)}"


def _catalog(values: Values, warehouse: str) -> CatalogUri:
    uri = values["catalog_uri"]
    if not uri and not warehouse.startswith("file://"):
        raise BadOption(
            f"warehouse {warehouse} is not a folder, so there is no place for a catalog file in it",
            advice="Set LAKE_CATALOG_URI or --catalog-uri.",
        )
    store = ObjectStore.from_values(values)
    uri = uri or f"sqlite:///{warehouse.removeprefix('file://')}/catalog.db"
    is_there = is_s3(warehouse) or (not warehouse and store.endpoint is not None)
    return CatalogUri.from_values(uri, values, store if is_there else None)


def _table_format(text: str) -> str:
    if text not in FORMATS:
        raise BadOption(
            f"{text!r} is no format of tables",
            advice=f"Set LAKE_FORMAT or --format to one of {', '.join(FORMATS)}.",
        )
    return text


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
