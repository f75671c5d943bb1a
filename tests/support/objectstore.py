"""An S3 server in this process, with one bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3  # type: ignore[import-untyped]
from moto.server import ThreadedMotoServer

KEY, SECRET, BUCKET = "lake-key", "s3cret-of-the-bucket", "lake"


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where it is, and what it holds."""

    url: str

    def env(self) -> dict[str, str]:
        return {
            "LAKE_WAREHOUSE": f"s3://{BUCKET}/tables",
            "LAKE_S3_ENDPOINT": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def client(self) -> Any:
        return boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1",
            aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        )  # fmt: skip

    def names(self) -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        found = S3Server(f"http://{host}:{port}")
        found.client().create_bucket(Bucket=BUCKET)
        yield found
    finally:
        server.stop()
