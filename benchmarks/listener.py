"""A subscriber of its own: how long after its commit does each change arrive?

`python -m benchmarks.listener PORT SUBJECT COUNT` listens on a socket, because a client library
would cost more than the change did on its way. It takes the time of a read for all changes in it,
so it may say a little too much and never too little. It ends with COUNT changes, or when nothing
has come for a while, and says what it saw as JSON.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Sequence
from datetime import datetime

PATIENCE_SECONDS = 30.0
READ_BYTES = 1 << 18

# The MessagePack of the key and of a text of 27 bytes, as every change carries them.
_COMMITTED = re.compile(rb"commit_ts\xbb(.{27})", re.DOTALL)
_LONGEST = len(b"commit_ts") + 1 + 27

_HELLO = (
    b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"lang":"python","version":"1"}\r\n'
)


class Arrivals:
    """Reads commit times out of whatever pieces the bytes come in."""

    def __init__(self) -> None:
        self._rest = b""
        self._known: dict[bytes, float] = {}
        self.seconds: list[float] = []

    def feed(self, data: bytes, now: float) -> None:
        """Note how old every change in these bytes is."""
        text = self._rest + data
        at = 0
        for found in _COMMITTED.finditer(text):
            self.seconds.append(now - self._moment(found[1]))
            at = found.end()
        self._rest = text[max(at, len(text) - _LONGEST + 1) :]

    def _moment(self, text: bytes) -> float:
        moment = self._known.get(text)
        if moment is None:
            # The changes of a transaction come together: the last one's time is enough to keep.
            moment = datetime.fromisoformat(text.decode()).timestamp()
            self._known = {text: moment}
        return moment


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value that this share of all values does not exceed."""
    if not values:
        raise ValueError("nothing arrived")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def listen(port: int, subject: str, count: int) -> Arrivals:
    arrivals = Arrivals()
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.settimeout(PATIENCE_SECONDS)
        wire.sendall(_HELLO + f"SUB {subject} 1\r\nPING\r\n".encode())
        while len(arrivals.seconds) < count:
            try:
                data = wire.recv(READ_BYTES)
            except TimeoutError:
                break
            now = time.time()
            if not data:
                break
            if b"PONG\r\n" in data:
                print("ready", flush=True)
            if b"PING\r\n" in data:
                wire.sendall(b"PONG\r\n")
            arrivals.feed(data, now)
    return arrivals


def main() -> int:
    port, subject, count = sys.argv[1:]
    seconds = listen(int(port), subject, int(count)).seconds
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "most_ms": 1.0}
    said = {name: percentile(seconds, share) * 1e3 for name, share in shares.items() if seconds}
    print(json.dumps({"count": len(seconds), **said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
