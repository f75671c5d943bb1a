"""HTTP: what the bridge is doing, and a way to end it. Never in the way of the pipeline.

One row per route. Bodies are small, handlers only read the status, and what changes state needs the
token wherever others than this machine can reach it. Connections are few and short-lived: beyond
`MAX_CONNECTIONS` new ones are turned away, and one that is older than `MAX_CONNECTION_SECONDS` is
closed, whatever it waits for, so no client can take the file descriptors the pipeline needs.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from aiohttp import web

from bridge.config import HttpConfig
from bridge.errors import BadConfiguration, BridgeError, PortInUse
from bridge.metrics import render
from bridge.status import Status

MAX_BODY_BYTES = 1_024
MAX_CONNECTIONS = 64
MAX_CONNECTION_SECONDS = 60.0
SHUTDOWN_SECONDS = 1.0

# The page is one file and may load nothing else, from nowhere.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

DescribeStream = Callable[[str], Awaitable[dict[str, Any] | None]]
"""Gives a stream's settings and state, or None; raises where NATS cannot be asked."""


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint as the README lists it, and the method that answers."""

    method: str
    path: str
    help: str
    answer: Callable[[HttpServer, web.Request], Awaitable[web.Response]]
    query: str = ""


class HttpServer:
    """Serves the routes until closed."""

    def __init__(
        self,
        config: HttpConfig,
        status: Status,
        stop: asyncio.Event,
        describe_stream: DescribeStream,
    ) -> None:
        self._config = config
        self._status = status
        self._stop = stop
        self._describe_stream = describe_stream
        # One question at a time: each costs NATS a connection.
        self._asking = asyncio.Lock()
        self._page = files("bridge.http").joinpath("page.html").read_text()
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen, and give the address that was taken."""
        if not _is_loopback(self._config.host) and not self._config.token:
            raise BadConfiguration(
                f"--host {self._config.host} lets other machines reach POST /shutdown",
                advice="Set BRIDGE_HTTP_TOKEN, or listen on 127.0.0.1.",
            )
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_refuse_large_bodies])
        for route in ROUTES:
            app.router.add_route(route.method, route.path, partial(route.answer, self))
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=15, shutdown_timeout=SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        address = f"{self._config.host}:{self._config.port}"
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._admit, self._config.host, self._config.port
            )
        except OSError as error:
            await self.close()
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"{address} is in use") from None
            raise BadConfiguration(f"cannot listen on {address}: {error.strerror}") from None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _admit(self) -> asyncio.Protocol:
        """Take a connection for a while, or turn it away."""
        server = self._runner.server if self._runner else None
        if server is None or len(server.connections) >= MAX_CONNECTIONS:
            return _TurnedAway()
        handler = server()
        asyncio.get_running_loop().call_later(MAX_CONNECTION_SECONDS, handler.force_close)
        return handler

    async def close(self) -> None:
        if self._server:
            self._server.close()
        if self._runner:
            await self._runner.cleanup()

    async def page(self, _: web.Request) -> web.Response:
        return web.Response(
            text=self._page,
            content_type="text/html",
            headers={"Content-Security-Policy": _PAGE_POLICY, "Cache-Control": "no-store"},
        )

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(self, _: web.Request) -> web.Response:
        streaming = self._status.state == "streaming"
        return web.json_response({"state": self._status.state}, status=200 if streaming else 503)

    async def status(self, _: web.Request) -> web.Response:
        return web.json_response(self._status.to_map())

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=render(self._status), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    async def stream(self, request: web.Request) -> web.Response:
        name = request.query.get("stream")
        if not name:
            return _problem(400, "name a stream: /streams/info?stream=CDC")
        try:
            async with self._asking:
                found = await self._describe_stream(name)
        except BridgeError as error:
            return _problem(503, str(error), error.advice)
        if found is None:
            return _problem(404, f"there is no stream {name}")
        return web.json_response(found)

    async def shutdown(self, request: web.Request) -> web.Response:
        if not self._may_change_state(request):
            return _problem(401, "a bearer token is needed")
        self._stop.set()
        return web.json_response({"status": "stopping"}, status=202)

    def _may_change_state(self, request: web.Request) -> bool:
        if self._config.token is None:
            # Without a token only this machine gets here; but a browser on it may be sent by any
            # web page, and then says from where.
            return "Origin" not in request.headers
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self._config.token.encode())


ROUTES = (
    Route("GET", "/", "a small live page for people", HttpServer.page),
    Route("GET", "/health", "200 while the process lives", HttpServer.health),
    Route("GET", "/ready", "200 while streaming, 503 else", HttpServer.ready),
    Route("GET", "/status", "everything the bridge knows about itself, as JSON", HttpServer.status),
    Route("GET", "/metrics", "the same for Prometheus", HttpServer.metrics),
    Route(
        "GET",
        "/streams/info",
        "settings and state of a stream; 404 for an unknown one, 503 while NATS is down",
        HttpServer.stream,
        query="?stream=CDC",
    ),
    Route(
        "POST",
        "/shutdown",
        "publish, confirm and end; needs the token where one is set",
        HttpServer.shutdown,
    ),
)


class _TurnedAway(asyncio.Protocol):
    """Hangs up at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@web.middleware
async def _refuse_large_bodies(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """No endpoint wants a body: what is announced as large is not even read."""
    if (request.content_length or 0) > MAX_BODY_BYTES:
        answer = _problem(413, f"a body may have {MAX_BODY_BYTES} bytes")
        answer.force_close()
        return answer
    return await handler(request)


def _problem(status: int, error: str, advice: str | None = None) -> web.Response:
    fields = {"error": error} if advice is None else {"error": error, "advice": advice}
    return web.json_response(fields, status=status)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
