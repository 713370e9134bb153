"""Servers that are no gateway of ours."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

__all__ = ["response", "somebody"]


@contextlib.contextmanager
def somebody(answer: bytes) -> Iterator[str]:
    """A server that gives everybody this answer, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError, ConnectionError):
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            is_over.set()
            thread.join()


def response(status: str, body: str, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body.encode())}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", body]).encode()
