"""A REST catalog in this process: Iceberg's protocol in front of pyiceberg's own catalog.

It holds what both clients ask for, Spark's and pyiceberg's; requirements are checked and metadata
is written by pyiceberg. Whoever brings no token is turned away.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flask import Flask, Response, jsonify, request
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table
from werkzeug.serving import make_server

TOKEN = "t0ken-of-the-catalog"

_CODES: Mapping[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


def _loaded(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": table.metadata.model_dump(mode="json", by_alias=True, exclude_none=True),
        "config": {},
    }


def make_app(catalog: SqlCatalog) -> Flask:  # noqa: C901 - one function per endpoint
    app = Flask("rest-catalog")
    one_at_a_time = threading.Lock()

    @app.before_request
    def check_token() -> tuple[Response, int] | None:
        if request.headers.get("Authorization") == f"Bearer {TOKEN}":
            return None
        return jsonify(error={"message": "who?", "type": "NotAuthorized", "code": 401}), 401

    @app.errorhandler(Exception)
    def explain(error: Exception) -> tuple[Response, int]:
        code = _CODES.get(type(error), getattr(error, "code", 500))
        kind = type(error).__name__.replace("Error", "Exception")
        return jsonify(error={"message": str(error), "type": kind, "code": code}), code

    @app.get("/v1/config")
    def config() -> Any:
        return {"defaults": {}, "overrides": {}}

    @app.get("/v1/namespaces")
    def namespaces() -> Any:
        # A namespace of one level has no children.
        found = [] if request.args.get("parent") else catalog.list_namespaces()
        return {"namespaces": [list(name) for name in found]}

    @app.post("/v1/namespaces")
    def create_namespace() -> Any:
        body = request.get_json()
        with one_at_a_time:
            catalog.create_namespace(tuple(body["namespace"]))
        return {"namespace": body["namespace"], "properties": {}}

    @app.get("/v1/namespaces/<space>")
    def namespace(space: str) -> Any:
        return {"namespace": [space], "properties": catalog.load_namespace_properties(space)}

    @app.get("/v1/namespaces/<space>/tables")
    def tables(space: str) -> Any:
        found = catalog.list_tables(space)
        return {"identifiers": [{"namespace": list(n[:-1]), "name": n[-1]} for n in found]}

    @app.post("/v1/namespaces/<space>/tables")
    def create(space: str) -> Any:
        body = request.get_json()
        spec = body.get("partition-spec")
        with one_at_a_time:
            table = catalog.create_table(
                (space, body["name"]),
                Schema.model_validate(body["schema"]),
                partition_spec=PartitionSpec.model_validate(spec)
                if spec
                else UNPARTITIONED_PARTITION_SPEC,
                properties=body.get("properties", {}),
            )
        return _loaded(table)

    @app.get("/v1/namespaces/<space>/tables/<name>")
    def load(space: str, name: str) -> Any:
        return _loaded(catalog.load_table((space, name)))

    @app.post("/v1/namespaces/<space>/tables/<name>")
    def commit(space: str, name: str) -> Any:
        change = CommitTableRequest.model_validate(
            {"identifier": {"namespace": [space], "name": name}, **request.get_json()}
        )
        with one_at_a_time:
            table = catalog.load_table((space, name))
            catalog.commit_table(table, change.requirements, change.updates)
            return _loaded(catalog.load_table((space, name)))

    @app.post("/v1/namespaces/<space>/tables/<name>/metrics")
    def metrics(**_: str) -> Any:
        return "", 204

    return app


@contextmanager
def rest_catalog(folder: Path, warehouse: str, **properties: str) -> Iterator[str]:
    """Serve a catalog whose tables lie in the warehouse; gives its address."""
    catalog = SqlCatalog(
        "served", uri=f"sqlite:///{folder}/served.db", warehouse=warehouse, **properties
    )
    server = make_server("127.0.0.1", 0, make_app(catalog), threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        catalog.engine.dispose()
