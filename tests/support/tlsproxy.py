"""TLS in front of a PostgreSQL that was built without it, as a connection pooler offers it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path

from tests.support.certificates import Pair

HOST = "127.0.0.1"
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_PIECE = 1 << 16


class TlsProxy:
    """Answers libpq's request for TLS and passes on what is inside; hangs up on who does not ask.

    It passes on 64 KiB at a time, so records get as large as TLS allows, which is more than libpq
    takes out of one at once.
    """

    def __init__(self, target_port: int, pair: Pair, *, clients: Path | None = None) -> None:
        self._target = target_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.cert, pair.key)
        if clients:
            self._context.load_verify_locations(clients)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0
        self.served = 0

    def __enter__(self) -> TlsProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            if await client.readexactly(len(_SSL_REQUEST)) == _SSL_REQUEST:
                to_client.write(b"S")
                await to_client.start_tls(self._context)
                self.served += 1
                server, to_server = await asyncio.open_connection(HOST, self._target)
                await asyncio.gather(_pass(client, to_server), _pass(server, to_client))
        to_client.close()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_PIECE):
            sink.write(data)
            await sink.drain()
    finally:
        sink.close()
