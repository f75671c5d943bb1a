"""HTTP for `run`: metrics, health and status; it only tells, and is off unless asked for.

A thread of its own serves it, so that a long batch does not keep Prometheus waiting.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST

from lake_consumer.errors import BadOption
from lake_consumer.logs import info
from lake_consumer.metrics import Meter, Remembered, render
from lake_consumer.metricsoptions import MetricsOptions

STALLED_SECONDS = 900.0
"""A loop that has not come round for so long is taken for dead; a large batch takes minutes."""

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """What an endpoint says."""

    body: bytes
    content_type: str = JSON
    status: HTTPStatus = HTTPStatus.OK


class Endpoints:
    """What can be asked."""

    def __init__(self, meter: Meter, tables: Remembered) -> None:
        self._meter = meter
        self._tables = tables

    def metrics(self) -> Answer:
        return Answer(render(self._meter, self._tables), CONTENT_TYPE_LATEST)

    def health(self) -> Answer:
        silent = time.monotonic() - self._meter.turned
        is_alive = silent < STALLED_SECONDS
        parked = list(self._meter.parked)
        meter = self._meter
        working = "outage" if meter.outage_attempts else "parked" if parked else "following"
        body = {
            "status": working if is_alive else "stalled",
            "silent_seconds": round(silent),
            "parked_tables": parked,
            "outage": meter.outage or None,
            "outage_seconds": round(meter.outage_seconds),
            "outage_attempts": meter.outage_attempts,
        }
        # Restarting the process helps neither a parked table nor an outage: the code stays 200.
        status = HTTPStatus.OK if is_alive else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(json.dumps(body).encode(), status=status)

    def status(self) -> Answer:
        tables = [asdict(table) for table in self._tables()]
        document = {**self._meter.document(), "tables": tables}
        return Answer(json.dumps(document, default=str).encode())


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint as the README lists it."""

    path: str
    help: str
    answer: Callable[[Endpoints], Answer]


ROUTES = (
    Route(
        "/health",
        "200 while the loop comes round, 503 when it has stalled; the body lists parked tables and"
        " says since when an outage of NATS, catalog or disk lasts",
        Endpoints.health,
    ),
    Route("/metrics", "Prometheus's text format", Endpoints.metrics),
    Route("/status", "the same numbers and every table, as JSON", Endpoints.status),
)
_ROUTES = {route.path: route for route in ROUTES}


@contextmanager
def serving(options: MetricsOptions, endpoints: Endpoints) -> Iterator[int | None]:
    """Serve for as long as the block lasts; gives the port, which may have been left open."""
    if options.port is None:
        yield None
        return
    try:
        server = ThreadingHTTPServer((options.host, options.port), _handler(endpoints))
    except OSError as error:
        raise BadOption(
            f"metrics cannot listen on {options.host}:{options.port}: {error.strerror or error}",
            advice="Choose another --metrics-port, or stop what listens there.",
        ) from error
    server.daemon_threads = True
    port = int(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    info("metrics", url=f"http://{options.host}:{port}/metrics")
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(endpoints: Endpoints) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET, and nothing else."""

        timeout = 10

        def do_GET(self) -> None:
            route = _ROUTES.get(self.path.partition("?")[0])
            if route is None:
                names = ", ".join(_ROUTES)
                answer = Answer(
                    json.dumps({"error": f"ask for {names}"}).encode(), status=HTTPStatus.NOT_FOUND
                )
            else:
                answer = self._ask(route)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def _ask(self, route: Route) -> Answer:
            try:
                return route.answer(endpoints)
            except Exception as error:  # whatever it is, the one who asked must hear of it
                body = json.dumps({"error": str(error)}).encode()
                return Answer(body, status=HTTPStatus.INTERNAL_SERVER_ERROR)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are no news."""

    return Handler
