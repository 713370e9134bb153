"""Sends requests to the `/v1` of a remote gateway over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Self

import httpx

from pyoco_server.client.connection import Connection, shown_address
from pyoco_server.doors.mcp.calls import Reply, Unreachable
from pyoco_server.doors.mcp.tools import Ask

__all__ = ["Outside"]

#: A receipt, a run or a problem is far smaller.
_ANSWER_BYTES_MAX = 8 * 1024 * 1024
#: Time limit for calls that were told to stop.
_SHUTDOWN_SECONDS = 0.5


class Outside:
    """Client of one gateway. Follows no redirects: the key is for this gateway only, and no error text contains it."""

    def __init__(self, connection: Connection) -> None:
        url = httpx.URL(connection.server)
        self._client = httpx.AsyncClient(
            base_url=url.copy_with(userinfo=b""),
            auth=httpx.BasicAuth(url.username, url.password) if url.userinfo else None,
            headers=_key_headers(connection, has_password=bool(url.userinfo)),
            timeout=connection.timeout_sec,
            # Plain HTTP needs no certificates, and loading them takes 30 ms. This context trusts none.
            verify=True if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
        self._where = shown_address(connection.server)
        self._stack = AsyncExitStack()
        self._calls = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_leaving = asyncio.Event()
        #: The timeouts of requests in flight; unlimited until shutdown.
        self._limits: set[asyncio.Timeout] = set()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Marks a call in flight, including all tries and the pauses between them."""
        self._calls += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._is_idle.set()

    async def leave(self, seconds: float) -> None:
        """Wait this long for the calls in flight, then end the rest.

        Those are not retried, and each still returns its idempotency key (PRICED-217).
        """
        await self._until_idle(seconds)
        if not self._is_leaving.is_set():  # an expired timeout cannot be rescheduled
            self._is_leaving.set()
            for limit in self._limits:
                limit.reschedule(asyncio.get_running_loop().time())
        await self._until_idle(_SHUTDOWN_SECONDS)

    async def _until_idle(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_idle.wait()

    async def wait(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_leaving.wait()
        return not self._is_leaving.is_set()

    async def __call__(self, ask: Ask, trace_id: str) -> Reply:
        headers = {"X-Trace-Id": trace_id}
        if ask.idempotency_key is not None:
            headers["Idempotency-Key"] = ask.idempotency_key
        if ask.body:
            headers["Content-Type"] = ask.content_type
        path = f"{ask.path}?{ask.query}" if ask.query else ask.path
        try:
            return await self._sent(self._client.build_request(ask.method, path, content=ask.body, headers=headers))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise Unreachable(
                f"The gateway at {self._where} cannot be reached. Is it running, and is PYOCO_SERVER_URL right?",
                is_unsent=True,
            ) from None
        except (httpx.HTTPError, TimeoutError):
            raise Unreachable(
                f"The gateway at {self._where} gave no whole answer. What was submitted may have been accepted."
            ) from None

    async def _sent(self, request: httpx.Request) -> Reply:
        """Send the request. Raises httpx.HTTPError; TimeoutError during shutdown."""
        async with asyncio.timeout(0 if self._is_leaving.is_set() else None) as limit:
            self._limits.add(limit)
            try:
                return await self._answered(request)
            finally:
                self._limits.discard(limit)

    async def _answered(self, request: httpx.Request) -> Reply:
        response = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _ANSWER_BYTES_MAX:  # not a response of ours: it will be reported as invalid
                    break
            return Reply(response.status_code, bytes(body), response.headers.get("Retry-After"))
        finally:
            await response.aclose()


def _key_headers(connection: Connection, *, has_password: bool) -> dict[str, str]:
    """Send a bearer token, unless `Authorization` is needed for a password or another header is configured."""
    if connection.api_key is None:
        return {}
    if has_password or connection.origins["api_key_header"] != "default":
        return {connection.api_key_header: connection.api_key}
    return {"Authorization": f"Bearer {connection.api_key}"}
