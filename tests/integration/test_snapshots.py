"""Snapshots on request, by the bridge as a process between a real PostgreSQL and a real NATS."""

from __future__ import annotations

import argparse
import asyncio
import io
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from jsonschema import Draft202012Validator

from bridge.config import NatsConfig
from bridge.snapshot import command
from examples.embedded import EmbeddedNats, EmbeddedPostgres, temporary_folder
from schemas.jsonschemas import PAYLOADS
from tests.conftest import Connection
from tests.support.bridge import BridgeProcess, wait_for
from tests.support.snapshots import (
    ask,
    ask_for_all,
    read_snapshots,
    store_request,
    take,
    wait_snapshot,
)

_TABLES = r"""
    CREATE SCHEMA sales;
    CREATE SCHEMA "Odd. Schema";
    CREATE TABLE empty (id int PRIMARY KEY, name text);
    CREATE TABLE no_key (name text);
    INSERT INTO no_key VALUES ('twice'), ('twice'), (NULL);
    CREATE TABLE sales.orders (region text, id int, note text, PRIMARY KEY (region, id));
    INSERT INTO sales.orders
        SELECT r, i, 'note' FROM unnest(ARRAY['asia', 'eu', 'us']) r, generate_series(1, 5) i;
    CREATE TABLE tags (id uuid PRIMARY KEY, name text);
    INSERT INTO tags SELECT ('00000000-0000-0000-0000-00000000000' || g)::uuid, 'tag ' || g
        FROM generate_series(0, 9) g;
    CREATE TABLE "Odd. Schema"."a.b ""c"" é" ("ID ""1"" x" int PRIMARY KEY, "select" text);
    INSERT INTO "Odd. Schema"."a.b ""c"" é" VALUES (1, 'x');
    CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
    CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100);
    CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (200);
    INSERT INTO parts SELECT g, 'p' FROM generate_series(95, 105) g;
    CREATE TABLE parent (id int PRIMARY KEY);
    CREATE TABLE child () INHERITS (parent);
    INSERT INTO parent VALUES (1);
    INSERT INTO child VALUES (2);
    CREATE TABLE wide (id int PRIMARY KEY, body text);
    ALTER TABLE wide ALTER body SET STORAGE EXTERNAL;
    INSERT INTO wide VALUES (1, 'small'), (2, repeat('large', 1000000)), (3, 'small');
    CREATE TABLE codes (code text PRIMARY KEY, name text);
    INSERT INTO codes VALUES ('', 'empty'), ('a', 'one'), (E'tab\t', 'two'), ('\N', 'three'),
        ('日本', 'four');
    CREATE TABLE filtered (id int PRIMARY KEY, kept bool, hidden text);
    INSERT INTO filtered SELECT g, g > 3, 'h' FROM generate_series(1, 6) g;
    ALTER TABLE filtered REPLICA IDENTITY FULL;
    CREATE DOMAIN odd AS int CHECK (value % 2 = 1);
    CREATE TABLE odds (id odd PRIMARY KEY);
    CREATE TABLE unpublished (id int PRIMARY KEY);
    CREATE VIEW seen AS SELECT * FROM empty;
    CREATE PUBLICATION pub FOR TABLE empty, no_key, sales.orders, tags,
        "Odd. Schema"."a.b ""c"" é", parts, ONLY parent, wide, codes, odds,
        filtered (id, kept) WHERE (kept)
        WITH (publish_via_partition_root = true);
"""
ODD_TOKEN = "Odd=2E=20Schema/a=2Eb=20=22c=22=20=C3=A9"


@pytest.fixture(scope="module")
def stage(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[BridgeProcess, EmbeddedNats, Connection]]:
    """One bridge for all tests that only ask; each asks for a table of its own."""
    name = postgres.create_database("snapshots")
    with (
        temporary_folder() as folder,
        EmbeddedNats(folder) as nats,
        psycopg.connect(postgres.dsn(name), autocommit=True) as connection,
    ):
        connection.execute(_TABLES)
        environ = {**postgres.env(name), **nats.env()}
        flags = ("--slot", "snapshots", "--pub", "pub", "--durability", "acked")
        log = tmp_path_factory.mktemp("snapshots") / "bridge.log"
        with BridgeProcess(environ, *flags, log=log) as bridge:
            bridge.wait_serving()
            yield bridge, nats, connection
    postgres.drop_database(name)


@pytest.fixture
def url(stage: tuple[BridgeProcess, EmbeddedNats, Connection]) -> str:
    return stage[1].url


def test_an_empty_table_has_a_meta_and_no_chunks(url: str) -> None:
    """A consumer that waits for the first row of an empty table would wait for ever."""
    snapshot = take(url, "empty")

    assert snapshot.rows == []
    assert snapshot.meta is not None
    assert snapshot.meta["batch_count"] == 0
    assert snapshot.meta["whole"] is True
    assert snapshot.meta["schema_revision"] > 0


def test_a_table_without_a_key_arrives_with_its_double_rows(url: str) -> None:
    snapshot = take(url, "no_key")

    assert sorted(str(row["name"]) for row in snapshot.rows) == ["None", "twice", "twice"]


def test_names_that_need_quoting_arrive_as_they_are(url: str) -> None:
    snapshot = take(url, ODD_TOKEN)

    assert snapshot.rows == [{'ID "1" x': 1, "select": "x"}]
    assert snapshot.meta is not None
    assert (snapshot.meta["schema"], snapshot.meta["table"]) == ("Odd. Schema", 'a.b "c" é')


def test_a_partitioned_table_is_read_through_its_root(url: str) -> None:
    assert sorted(row["id"] for row in take(url, "parts").rows) == list(range(95, 106))


def test_rows_of_an_inheriting_table_stay_out(url: str) -> None:
    """Its changes are published under its own name, if at all."""
    assert take(url, "parent").rows == [{"id": 1}]


def test_what_the_publication_filters_stays_out(url: str) -> None:
    """Snapshot and changes must speak of the same rows and columns."""
    rows = sorted(take(url, "filtered").rows, key=lambda row: int(row["id"]))

    assert rows == [{"id": n, "kept": True} for n in (4, 5, 6)]


def test_a_row_above_max_payload_arrives_through_the_object_store(url: str) -> None:
    snapshot = take(url, "wide")

    assert {row["id"]: len(row["body"]) for row in snapshot.rows} == {1: 5, 2: 5_000_000, 3: 5}
    assert [chunk.headers.get("Oversize") is not None for chunk in snapshot.chunks].count(True) == 1


def test_a_text_key_arrives_whatever_it_holds(url: str) -> None:
    rows = {row["code"]: row["name"] for row in take(url, "codes").rows}

    assert rows == {"": "empty", "a": "one", "tab\t": "two", "\\N": "three", "日本": "four"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"from": ["eu", 3], "to": ["us", 2]}, [("eu", 3), ("eu", 4), ("eu", 5), ("us", 1)]),
        ({"to": ["asia", 3]}, [("asia", 1), ("asia", 2)]),
        ({"from": ["us"]}, [("us", n) for n in range(1, 6)]),
        ({"from": ["us", "4"]}, [("us", 4), ("us", 5)]),
        ({"from": ["' OR true --"], "to": ["b"]}, [("asia", n) for n in range(1, 6)]),
    ],
)
def test_a_range_has_its_first_key_and_not_its_last(
    url: str, body: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    """Ranges that meet must not overlap; a value is a value, whatever it looks like."""
    snapshot = take(url, "sales/orders", body)

    assert sorted((row["region"], row["id"]) for row in snapshot.rows) == expected
    assert snapshot.meta is not None
    assert snapshot.meta["whole"] is False, "who rebuilds a table from it would lose rows"


def test_a_range_of_uuids_and_chosen_columns(url: str) -> None:
    body = {
        "from": ["00000000-0000-0000-0000-000000000003"],
        "to": ["00000000-0000-0000-0000-000000000005"],
        "columns": ["name"],
    }

    assert take(url, "tags", body).rows == [{"name": "tag 3"}, {"name": "tag 4"}]


@pytest.mark.parametrize(
    ("token", "body", "reason"),
    [
        ("nowhere", b"", "there is no table public.nowhere"),
        ("sales.orders", b"", "names no table"),
        ("unpublished", b"", "not in publication pub"),
        ("parts_low", b"", "not in publication pub"),
        ("seen", b"", "a view"),
        ("empty", b"all of it", "neither empty nor JSON"),
        ("empty", b"[]", "not a map"),
        ("empty", b'{"where": "true"}', "'where' is not one of"),
        ("empty", b'{"columns": ["id", "age"]}', "no published column 'age'"),
        ("filtered", b'{"columns": ["hidden"]}', "no published column 'hidden'"),
        ("empty", b'{"from": ["x"]}', "invalid input syntax"),
        ("odds", b'{"from": [2]}', "not a key of public.odds: value for domain"),
        ("empty", b'{"from": [1, 2]}', "a key of 2 values"),
        ("empty", b'{"from": [null]}', "cannot be a key"),
        ("no_key", b'{"from": ["a"]}', "has no key"),
    ],
)
def test_what_cannot_be_served_is_rejected_with_the_reason(
    url: str, token: str, body: bytes, reason: str
) -> None:
    """Whoever asked learns at once what to mend, and what there is to ask for."""
    reply = ask(url, token, body)

    assert reply["status"] == "rejected"
    assert reason in reply["error"]
    assert "sales/orders" in reply["available_tables"]


def test_equal_requests_share_one_snapshot(
    stage: tuple[BridgeProcess, EmbeddedNats, Connection],
) -> None:
    """Ten consumers that start together must not copy the table ten times."""
    bridge, nats, connection = stage
    before = bridge.status()["snapshots"]["completed"]

    same = ask_for_all(nats.url, *[("tags", b'{"to": ["%s"]}' % (b"f" * 32))] * 10)

    assert {reply["status"] for reply in same} == {"accepted"}
    shared = {reply["snapshot_id"] for reply in same}
    for snapshot_id in shared:
        wait_snapshot(nats.url, snapshot_id).assert_whole()
    wait_for(lambda: bridge.status()["snapshots"]["completed"] == before + len(shared), "count")
    assert len(shared) < 10
    del connection


def test_payloads_meet_their_schemas(url: str) -> None:
    """Consumers in other languages read the JSON Schemas, not our code."""
    reply = ask(url, "tags")
    snapshot = wait_snapshot(url, reply["snapshot_id"])

    payloads = {
        "snapshot-reply": reply,
        "snapshot-start": snapshot.start,
        "snapshot-meta": snapshot.meta,
        "snapshot-chunk": snapshot.chunks[0].fields,
    }
    for name, payload in payloads.items():
        Draft202012Validator(PAYLOADS[name].document(name)).validate(payload)


def test_a_stored_request_is_served_once_and_may_be_wrong(
    stage: tuple[BridgeProcess, EmbeddedNats, Connection],
) -> None:
    """Nobody waits for the answer of a stored request: init.meta and init.error are the answer."""
    _, nats, _ = stage
    known = set(read_snapshots(nats.url))

    store_request(nats.url, "empty", b'{"columns": ["name"]}')
    store_request(nats.url, "nowhere")

    def fresh() -> list[str]:
        found = read_snapshots(nats.url)
        return [i for i in found if i not in known and (found[i].meta or found[i].error)]

    wait_for(lambda: len(fresh()) == 2, "both to be answered")
    found = read_snapshots(nats.url)
    whole, refused = sorted(fresh(), key=lambda i: found[i].error is not None)
    found[whole].assert_whole()
    error = found[refused].error
    assert error is not None
    assert "there is no table public.nowhere" in error["error"]


def test_the_command_asks_shows_and_ends_with_a_code(
    stage: tuple[BridgeProcess, EmbeddedNats, Connection],
) -> None:
    """For people and for scripts: plain lines where there is no terminal."""
    _, nats, _ = stage
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    config = NatsConfig(host="127.0.0.1", port=nats.port)

    def run(*arguments: str) -> tuple[int, str]:
        out = io.StringIO()
        code = asyncio.run(command.run(config, parser.parse_args(arguments), out))
        return code, out.getvalue()

    code, shown = run("sales.orders", "--from", '["us", 1]', "--columns", "id,note")
    assert (code, "complete: 5 rows in 1 chunks" in shown) == (0, True)
    code, shown = run("nowhere")
    assert (code, "rejected: there is no table public.nowhere" in shown) == (1, True)
