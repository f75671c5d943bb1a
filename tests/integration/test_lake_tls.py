"""The lake's connections, encrypted and authenticated: the driver's and the executors'."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.embedded import EmbeddedNats, temporary_folder
from lake_consumer.errors import BadOption, LakeError, NatsUnreachable
from lake_consumer.jetstream.connection import connect
from lake_consumer.natsoptions import NatsOptions
from tests.support.certificates import Authority, Pair
from tests.support.lake import HandMadeStream, LakeRig, announce, change, make_shape
from tests.support.nats_jwt import make_nkey, make_operator

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"
)
PASSWORD = "s3cret-of-the-lake"


@pytest.fixture(scope="module")
def ours() -> Iterator[Authority]:
    with temporary_folder() as folder:
        yield Authority(folder / "ours", "ours")


def tls(pair: Pair, more: str = "") -> str:
    return f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}"{more} }}\n'


def reach(server: EmbeddedNats, **options: Any) -> NatsOptions:
    return NatsOptions(url=server.url, **options)


def lets_in(options: NatsOptions) -> bool:
    async def knock() -> bool:
        client = await connect(options)
        await client.flush()
        await client.close()
        return True

    return asyncio.run(knock())


def test_a_lake_follows_over_tls_with_certificate_and_credentials(
    spark: SparkSession, tmp_path: Path, server_folder: Path, ours: Authority
) -> None:
    """The executors are other processes: each has to bring its own proof."""
    operator, client = make_operator(), ours.issue("lake")
    config = tls(ours.issue("nats"), f', ca_file: "{ours.cert}", verify: true')
    with EmbeddedNats(server_folder, config=config + operator.server_config) as server:
        jwt, seed = operator.creds.splitlines()[1], operator.seed
        access = reach(
            server, jwt=jwt, seed=seed, tls_ca=ours.cert.read_text(),
            tls_cert=client.cert.read_text(), tls_key=client.key.read_text(),
        )  # fmt: skip
        stream = HandMadeStream(server.url, access=access)
        stream.commit(
            announce(make_shape("users", {"id": "int64"}), 1), change("users", "INSERT", {"id": 7})
        )
        stream.send()
        rig = LakeRig(spark, tmp_path, server.url)
        rig.nats = access

        rig.drain()

        assert [row["id"] for row in rig.mirror("users")] == [7]


def test_every_kind_of_identity_is_let_in_and_a_wrong_one_is_not(server_folder: Path) -> None:
    """And the sentence names the option to correct."""
    nkey, other = make_nkey(), make_nkey()
    kinds: list[tuple[str, dict[str, str | None], dict[str, str | None], str]] = [
        (f"authorization {{ user: lake, password: {PASSWORD} }}",
         {"user": "lake", "password": PASSWORD}, {"user": "lake", "password": "x"},
         "NATS_LAKE_PASSWORD"),
        (f"authorization {{ token: {PASSWORD} }}", {"token": PASSWORD}, {"token": "x"},
         "NATS_TOKEN"),
        (f"authorization {{ users: [ {{ nkey: {nkey.public} }} ] }}",
         {"seed": nkey.seed}, {"seed": other.seed}, "NATS_NKEY"),
    ]  # fmt: skip
    for number, (config, right, wrong, option) in enumerate(kinds):
        with EmbeddedNats(server_folder / str(number), config=config) as server:
            assert lets_in(reach(server, **right))
            with pytest.raises(NatsUnreachable) as caught:
                lets_in(reach(server, **wrong))
            assert option in caught.value.advice


def test_what_is_wrong_with_tls_is_said_in_a_sentence(
    server_folder: Path, tmp_path: Path, ours: Authority
) -> None:
    theirs = Authority(tmp_path / "theirs", "theirs")
    config = tls(ours.issue("nats2"), f', ca_file: "{ours.cert}", verify: true')
    stranger = theirs.issue("stranger")
    with EmbeddedNats(server_folder, config=config) as server:
        trusting = reach(server, tls_ca=ours.cert.read_text())
        cases: list[tuple[NatsOptions, type[LakeError], str]] = [
            (reach(server, tls_ca=theirs.cert.read_text()), NatsUnreachable, "cannot be trusted"),
            (trusting, NatsUnreachable, "wants a certificate from the lake"),
            (replace(trusting, tls_cert="-----BEGIN NONSENSE-----"), BadOption, "NATS_TLS_CERT"),
            (replace(trusting, tls_cert=stranger.cert.read_text(),
                     tls_key=stranger.key.read_text()), NatsUnreachable, "NATS"),
        ]  # fmt: skip
        for options, kind, said in cases:
            with pytest.raises(kind, match=said):
                lets_in(options)


def test_a_server_without_tls_gets_no_secret(server_folder: Path, ours: Authority) -> None:
    """nats-py would go on unencrypted, password included, where a server does not ask for TLS."""
    config = f"authorization {{ user: lake, password: {PASSWORD} }}\ntrace: true\ndebug: true"
    with EmbeddedNats(server_folder, config=config) as server:
        options = reach(server, user="lake", password=PASSWORD, tls_ca=ours.cert.read_text())
        with pytest.raises(NatsUnreachable, match="does not ask for TLS"):
            lets_in(options)
        with pytest.raises(NatsUnreachable, match="does not ask for TLS"):
            lets_in(replace(options, url=server.url.replace("nats://", "tls://"), tls_ca=None))

        assert "[CONNECT" not in server.log.read_text()
