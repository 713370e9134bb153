"""`/healthz` and `/readyz`, or `/metrics`, for processes without any other HTTP endpoint. No framework."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from pyoco_server.errors import UsageError
from pyoco_server.logs import get_logger

__all__ = ["METRICS_TYPE", "metrics_server", "probe_server"]

log = get_logger(__name__)

#: Limits on the arrival time of a request, the size of its head, and concurrent connections.
_SECONDS_MAX = 5.0
_HEAD_BYTES_MAX = 8192
_AT_ONCE_MAX = 64

#: Returns whether the process is ready, and the response body.
Checks = Callable[[], Awaitable[tuple[bool, Mapping[str, object]]]]

#: Status, content type and body.
Answer = tuple[int, str, bytes]
#: Returns the response for a method and a path.
Answers = Callable[[bytes, bytes], Awaitable[Answer]]

#: FLOW-129
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_PHRASES = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@contextlib.asynccontextmanager
async def probe_server(host: str, port: int, checks: Checks) -> AsyncIterator[None]:
    """Serve the probes while the block runs; port 0 disables them. Raises UsageError if the port is taken."""
    if port == 0:
        yield
        return
    async with _listening(host, port, f"PYOCO_HEALTH_PORT={port}", lambda method, path: _health(method, path, checks)):
        log.info("health endpoint started", host=host, port=port)
        yield


@contextlib.asynccontextmanager
async def metrics_server(
    host: str, port: int | None, render: Callable[[], Awaitable[bytes]]
) -> AsyncIterator[int | None]:
    """Serve `/metrics` while the block runs, and yield the port. Port 0 means any free port; None disables it.

    Raises UsageError if the port is taken.
    """
    if port is None:
        yield None
        return
    option = f"--metrics-port {port}"
    async with _listening(host, port, option, lambda method, path: _metrics(method, path, render)) as bound:
        log.info("metrics endpoint started", host=host, port=bound)
        yield bound


@contextlib.asynccontextmanager
async def _listening(host: str, port: int, option: str, answers: Answers) -> AsyncIterator[int]:
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
        raise UsageError(f"{option} cannot be used: {error.strerror or error}") from error
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers) -> None:
    """Serve one request and close the connection. Invalid or slow requests get no response."""
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
    except Exception:  # last resort: a defect in a check must not leave the connection open
        log.exception("probe request failed")
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
