"""A TCP proxy between the bridge and a server, for faults that only a network makes."""

from __future__ import annotations

import contextlib
import socket
import threading

HOST = "127.0.0.1"


class Proxy:
    """Passes bytes both ways until told to cut, to swallow answers or to hold what is sent."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.swallow_answers = threading.Event()
        self.swallow_after = b""
        """What is sent to the server before answers are swallowed."""

        self.held = b""
        """What came for the server since it is held."""

        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._listener.close()
        self.release()
        self.cut()

    def cut(self) -> None:
        """Break every connection at once."""
        with self._lock:
            victims, self._open = self._open, []
        for victim in victims:
            with contextlib.suppress(OSError):
                victim.shutdown(socket.SHUT_RDWR)
            victim.close()

    def hold(self) -> None:
        """Keep what is sent to the server from now on, as the buffers of a frozen machine do."""
        self.held = b""
        self._flowing.clear()

    def release(self) -> None:
        """Let the server have what was held."""
        self._flowing.set()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((HOST, self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for source, sink, answers in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pass, args=(source, sink, answers), daemon=True
                ).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.swallow_answers.is_set():
                    continue
                if not answers and self.swallow_after and self.swallow_after in data:
                    self.swallow_answers.set()
                if not answers and not self._flowing.is_set():
                    self.held += data
                    self._flowing.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
