"""HTTP: what the bridge is doing, and a way to end it. Never in the way of the pipeline.

One row per route. Bodies are small, handlers only read the status, and what changes state needs the
token wherever others than this machine can reach it.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from bridge.config import HttpConfig
from bridge.errors import BadConfiguration, PortInUse
from bridge.metrics import render
from bridge.status import Status

MAX_BODY_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class Route:
    """An endpoint as the README lists it, and the method that answers."""

    method: str
    path: str
    help: str
    answer: Callable[[HttpServer, web.Request], Awaitable[web.Response]]


class HttpServer:
    """Serves the routes until closed."""

    def __init__(self, config: HttpConfig, status: Status, stop: asyncio.Event) -> None:
        self._config = config
        self._status = status
        self._stop = stop
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen, and give the address that was taken."""
        if not _is_loopback(self._config.host) and not self._config.token:
            raise BadConfiguration(
                f"--host {self._config.host} lets other machines reach POST /shutdown",
                advice="Set BRIDGE_HTTP_TOKEN, or listen on 127.0.0.1.",
            )
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for route in ROUTES:
            app.router.add_route(route.method, route.path, partial(route.answer, self))
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=15)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._config.host, self._config.port).start()
        except OSError as error:
            await self.close()
            address = f"{self._config.host}:{self._config.port}"
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"{address} is in use") from None
            raise BadConfiguration(f"cannot listen on {address}: {error.strerror}") from None
        host, port = self._runner.addresses[0][:2]
        return f"{host}:{port}"

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()

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

    async def shutdown(self, request: web.Request) -> web.Response:
        if not self._may_change_state(request):
            return web.json_response({"error": "a bearer token is needed"}, status=401)
        self._stop.set()
        return web.json_response({"status": "stopping"}, status=202)

    def _may_change_state(self, request: web.Request) -> bool:
        if self._config.token is None:
            return True
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self._config.token.encode())


ROUTES = (
    Route("GET", "/health", "200 while the process lives", HttpServer.health),
    Route("GET", "/ready", "200 while streaming, 503 else", HttpServer.ready),
    Route("GET", "/status", "everything the bridge knows about itself, as JSON", HttpServer.status),
    Route("GET", "/metrics", "the same for Prometheus", HttpServer.metrics),
    Route(
        "POST",
        "/shutdown",
        "publish, confirm and end; needs the token where one is set",
        HttpServer.shutdown,
    ),
)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
