"""A relay in front of a server, in threads: connections through it can be cut, and the way closed for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

__all__ = ["Relay", "relayed"]


class Relay:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._is_closed = False
        #: Connections up to this one stay open, and nothing goes through them any more.
        self._still_until = 0
        self.connections = 0
        #: All that went through, either way.
        self.seen = b""
        #: A connection that sends this is cut; how often that was.
        self.unwanted: bytes | None = None
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close_the_way(self) -> None:
        """Every connection breaks, and whoever comes is turned away."""
        self._is_closed = True
        self._cut()

    def open_the_way(self) -> None:
        self._is_closed = False

    def stand_still(self) -> None:
        """Every connection of now stays, and says nothing; a new one works."""
        self._still_until = self.connections

    def end(self) -> None:
        self._listening.close()
        self._cut()

    def _cut(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                if self._is_closed:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._forward, args=(*pair, self.connections), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if number <= self._still_until:
                    continue
                if self.unwanted is not None and self.unwanted in data:
                    self.cuts += 1
                    break
                self.seen += data
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()


@contextlib.contextmanager
def relayed(url: str) -> Iterator[Relay]:
    host, _, port = url.removeprefix("http://").partition(":")
    relay = Relay(host, int(port))
    try:
        yield relay
    finally:
        relay.end()
