"""`/healthz` and `/readyz`, or `/metrics`, of a process that serves nothing else over HTTP. No framework."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from pyoco_server.errors import UsageError
from pyoco_server.logs import get_logger

__all__ = ["METRICS_TYPE", "metrics_server", "probe_server"]

log = get_logger(__name__)

#: What a request may take to arrive, and what its head may have.
_SECONDS_MAX = 5.0
_HEAD_BYTES_MAX = 8192
_AT_ONCE_MAX = 64

#: Whether the process can do its work, and the body that says so.
Checks = Callable[[], Awaitable[tuple[bool, Mapping[str, object]]]]

#: A status, the type of the body, and the body.
Answer = tuple[int, str, bytes]
#: By method and path.
Answers = Callable[[bytes, bytes], Awaitable[Answer]]

#: FLOW-129
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_PHRASES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@contextlib.asynccontextmanager
async def probe_server(host: str, port: int, checks: Checks) -> AsyncIterator[None]:
    """Answers while the block runs; port 0: not at all. Raises UsageError when the port is taken."""
    if port == 0:
        yield
        return
    async with _listening(host, port, f"PYOCO_HEALTH_PORT={port}", lambda method, path: _health(method, path, checks)):
        log.info("health is told here", host=host, port=port)
        yield


@contextlib.asynccontextmanager
async def metrics_server(
    host: str, port: int | None, render: Callable[[], Awaitable[bytes]]
) -> AsyncIterator[int | None]:
    """`/metrics` while the block runs; which port that is, 0 being any free one. None: not at all. Raises UsageError
    when the port is taken."""
    if port is None:
        yield None
        return
    wish = f"--metrics-port {port}"
    async with _listening(host, port, wish, lambda method, path: _metrics(method, path, render)) as bound:
        log.info("metrics are told here", host=host, port=bound)
        yield bound


@contextlib.asynccontextmanager
async def _listening(host: str, port: int, wish: str, answers: Answers) -> AsyncIterator[int]:
    gate = asyncio.Semaphore(_AT_ONCE_MAX)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if gate.locked():
            writer.close()
            return
        async with gate:
            await _serve(reader, writer, answers)

    try:
        server = await asyncio.start_server(serve, host, port, limit=_HEAD_BYTES_MAX)
    except OSError as error:
        raise UsageError(f"{wish} cannot be used: {error.strerror or error}") from error
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers) -> None:
    """One request, one answer, and the end of the connection. What is no request, or comes too slowly, gets none."""
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b" ", 2)
            status, kind, data = await answers(method, target.partition(b"?")[0])
            writer.write(
                f"HTTP/1.1 {status} {_PHRASES[status]}\r\nContent-Type: {kind}\r\n"
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


def _json(status: int, body: Mapping[str, object]) -> Answer:
    return status, _JSON, json.dumps(dict(body)).encode()


def _refusal(method: bytes, path: bytes, paths: frozenset[bytes]) -> Answer | None:
    if path not in paths:
        return _json(404, {"status": "not found"})
    if method not in {b"GET", b"HEAD"}:
        return _json(405, {"status": "method not allowed"})
    return None


async def _health(method: bytes, path: bytes, checks: Checks) -> Answer:
    refused = _refusal(method, path, frozenset({b"/healthz", b"/readyz"}))
    if refused is not None:
        return refused
    if path == b"/healthz":
        return _json(200, {"status": "ok"})
    is_ready, body = await checks()
    return _json(200 if is_ready else 503, body)


async def _metrics(method: bytes, path: bytes, render: Callable[[], Awaitable[bytes]]) -> Answer:
    return _refusal(method, path, frozenset({b"/metrics"})) or (200, METRICS_TYPE, await render())
