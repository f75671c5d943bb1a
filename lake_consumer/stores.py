"""Object stores: how S3, or whatever speaks like it, is told to Spark and to pyiceberg.

Keys that are given here reach the executors with the tables themselves, so executors need nothing
in their environment. Where none are given every machine looks for its own, as AWS's clients do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lake_consumer.options import Option, Values

_SCHEMES = ("s3://", "s3a://", "s3n://")
S3_FILE_IO = "org.apache.iceberg.aws.s3.S3FileIO"

STORE_OPTIONS = (
    Option(name="s3_endpoint", flag="--s3-endpoint", env="LAKE_S3_ENDPOINT",
           help="address of an S3 store that is not AWS's; buckets are then named in the path"),
    Option(name="s3_region", flag="--s3-region", env="AWS_REGION",
           help="S3 region; us-east-1 where only an endpoint is given"),
    Option(name="s3_key", env="AWS_ACCESS_KEY_ID",
           help="S3 access key; without one every machine looks for its own"),
    Option(name="s3_secret", env="AWS_SECRET_ACCESS_KEY", secret=True,
           help="that key's secret"),
    Option(name="s3_session", env="AWS_SESSION_TOKEN", secret=True,
           help="token of a temporary key"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """An S3 store, and the key to it."""

    endpoint: str | None = None
    region: str | None = None
    key: str | None = None
    secret: str | None = field(default=None, repr=False)
    session: str | None = field(default=None, repr=False)

    @classmethod
    def from_values(cls, values: Values) -> ObjectStore:
        endpoint = values["s3_endpoint"]
        return cls(
            endpoint=endpoint,
            region=values["s3_region"] or ("us-east-1" if endpoint else None),
            key=values["s3_key"],
            secret=values["s3_secret"],
            session=values["s3_session"],
        )

    def spark(self) -> dict[str, str]:
        """Properties of a catalog whose tables lie here, as Iceberg's S3FileIO names them."""
        style = {"s3.path-style-access": "true"} if self.endpoint else {}
        return {"io-impl": S3_FILE_IO, **style, **self._shared("client.region")}

    def pyiceberg(self) -> dict[str, str]:
        style = {"s3.force-virtual-addressing": "false"} if self.endpoint else {}
        return {**style, **self._shared("s3.region")}

    def _shared(self, region: str) -> dict[str, str]:
        found = {
            "s3.endpoint": self.endpoint,
            region: self.region,
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "s3.session-token": self.session,
        }
        return {name: value for name, value in found.items() if value}


def is_s3(warehouse: str) -> bool:
    return warehouse.startswith(_SCHEMES)
