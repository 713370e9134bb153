"""`/healthz` and `/readyz` of a process that serves nothing else: worker and keeper. No framework: two answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from pyoco_server.errors import UsageError
from pyoco_server.logs import get_logger

__all__ = ["probe_server"]

log = get_logger(__name__)

#: What a request may take to arrive, and what its head may have.
_SECONDS_MAX = 5.0
_HEAD_BYTES_MAX = 8192
_AT_ONCE_MAX = 64

#: Whether the process can do its work, and the body that says so.
Checks = Callable[[], Awaitable[tuple[bool, Mapping[str, object]]]]

_PHRASES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@contextlib.asynccontextmanager
async def probe_server(host: str, port: int, checks: Checks) -> AsyncIterator[None]:
    """Answers while the block runs; port 0: not at all. Raises UsageError when the port is taken."""
    if port == 0:
        yield
        return
    gate = asyncio.Semaphore(_AT_ONCE_MAX)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if gate.locked():
            writer.close()
            return
        async with gate:
            await _serve(reader, writer, checks)

    try:
        server = await asyncio.start_server(serve, host, port, limit=_HEAD_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"PYOCO_HEALTH_PORT={port} cannot be used: {error.strerror or error}") from error
    log.info("health is told here", host=host, port=port)
    try:
        yield
    finally:
        server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, checks: Checks) -> None:
    """One request, one answer, and the end of the connection. What is no request, or comes too slowly, gets none."""
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b" ", 2)
            status, body = await _answer(method, target.partition(b"?")[0], checks)
            data = json.dumps(dict(body)).encode()
            writer.write(
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
            )
            writer.write(b"" if method == b"HEAD" else data)
            await writer.drain()
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass
    except Exception:  # the top of a connection: a defect in a check must not leave it open
        log.exception("a look at this process failed")
    finally:
        writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _answer(method: bytes, path: bytes, checks: Checks) -> tuple[int, Mapping[str, object]]:
    if path not in {b"/healthz", b"/readyz"}:
        return 404, {"status": "not found"}
    if method not in {b"GET", b"HEAD"}:
        return 405, {"status": "method not allowed"}
    if path == b"/healthz":
        return 200, {"status": "ok"}
    is_ready, body = await checks()
    return (200 if is_ready else 503), body
