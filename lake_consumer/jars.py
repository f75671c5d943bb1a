"""Which jars a session needs, by Maven coordinate: no more than its catalog and its store ask for.

S3 alone is 69 MB, so it is left out where tables lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lake_consumer.catalogs import CatalogUri
from lake_consumer.stores import is_s3

ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
ICEBERG_AWS = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
SQLITE = "org.xerial:sqlite-jdbc:3.53.4.0"
POSTGRES = "org.postgresql:postgresql:42.7.14"


def _needs_aws(catalog: CatalogUri, warehouse: str) -> bool:
    chosen = catalog.spark()
    return is_s3(warehouse) or chosen["type"] == "glue" or ".aws." in chosen.get("io-impl", "")


_NEEDS: tuple[tuple[str, int, Callable[[CatalogUri, str], bool]], ...] = (
    (ICEBERG, 47, lambda _catalog, _warehouse: True),
    (SQLITE, 14, lambda catalog, _: ":sqlite:" in f":{catalog.uri}"),
    (POSTGRES, 1, lambda catalog, _: catalog.is_postgres),
    (ICEBERG_AWS, 69, _needs_aws),
)
"""A coordinate, its size in MB, and who needs it."""


def packages(catalog: CatalogUri, warehouse: str) -> tuple[str, ...]:
    return tuple(name for name, _, needed in _NEEDS if needed(catalog, warehouse))


def missing(coordinates: tuple[str, ...], folders: Folders | None = None) -> tuple[str, ...]:
    """Those that are in none of the folders that Spark looks into before it downloads."""
    found = folders or Folders.of(None)
    return tuple(name for name in coordinates if not any(p.exists() for p in found.places(name)))


def megabytes(coordinates: tuple[str, ...]) -> int:
    return sum(size for name, size, _ in _NEEDS if name in coordinates)


@dataclass(frozen=True, slots=True)
class Folders:
    """Where Spark's resolver finds jars on this machine: Ivy's folder, and Maven's."""

    ivy: Path
    maven: Path

    @classmethod
    def of(cls, ivy: str | None) -> Folders:
        """The folders of a session; `ivy` is its spark.jars.ivy, if it has one."""
        home = Path.home()
        return cls(Path(ivy) if ivy else home / ".ivy2.5.2", home / ".m2" / "repository")

    @property
    def jars(self) -> Path:
        return self.ivy / "jars"

    def places(self, coordinate: str) -> tuple[Path, ...]:
        """The files of which any one spares the download."""
        group, artifact, version = coordinate.split(":")[:3]
        jar = f"{artifact}-{version}.jar"
        return (
            self.jars / f"{group}_{jar}",
            self.ivy / "cache" / group / artifact / "jars" / jar,
            self.ivy / "local" / group / artifact / version / "jars" / f"{artifact}.jar",
            self.maven.joinpath(*group.split("."), artifact, version, jar),
        )
