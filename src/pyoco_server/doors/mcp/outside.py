"""The way to the `/v1` of a gateway somewhere else, over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from typing import Self

import httpx

from pyoco_server.doors.cli.client.connection import Connection, shown_address
from pyoco_server.doors.mcp.calls import Reply, Unreachable
from pyoco_server.doors.mcp.tools import Ask

__all__ = ["Outside"]

#: A receipt, a run or a problem is far below.
_ANSWER_BYTES_MAX = 8 * 1024 * 1024


class Outside:
    """Redirects are not followed: the key is for this gateway alone, and no error shows it."""

    def __init__(self, connection: Connection) -> None:
        url = httpx.URL(connection.server)
        self._client = httpx.AsyncClient(
            base_url=url.copy_with(userinfo=b""),
            auth=httpx.BasicAuth(url.username, url.password) if url.userinfo else None,
            headers=_key_headers(connection, has_password=bool(url.userinfo)),
            timeout=connection.timeout_sec,
            # Without TLS no certificate is needed, and reading them all takes 30 ms. This context trusts nobody.
            verify=True if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )
        self._where = shown_address(connection.server)
        self._stack = AsyncExitStack()
        self._calls = 0
        #: No call waits for an answer.
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def __call__(self, ask: Ask, trace_id: str) -> Reply:
        headers = {"X-Trace-Id": trace_id}
        if ask.idempotency_key is not None:
            headers |= {"Idempotency-Key": ask.idempotency_key, "Content-Type": "application/json"}
        self._calls += 1
        self.is_idle.clear()
        try:
            return await self._sent(self._client.build_request(ask.method, ask.path, content=ask.body, headers=headers))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
            raise Unreachable(
                f"The gateway at {self._where} cannot be reached. Is it running, and is PYOCO_SERVER_URL right?",
                is_unsent=True,
            ) from None
        except httpx.HTTPError:
            raise Unreachable(
                f"The gateway at {self._where} gave no whole answer. What was submitted may have been accepted."
            ) from None
        finally:
            self._calls -= 1
            if not self._calls:
                self.is_idle.set()

    async def _sent(self, request: httpx.Request) -> Reply:
        response = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > _ANSWER_BYTES_MAX:  # not one of ours: it will not be understood
                    break
            return Reply(response.status_code, bytes(body), response.headers.get("Retry-After"))
        finally:
            await response.aclose()


def _key_headers(connection: Connection, *, has_password: bool) -> dict[str, str]:
    """As a bearer, unless that header is needed for something else, or another was chosen."""
    if connection.api_key is None:
        return {}
    if has_password or connection.origins["api_key_header"] != "default":
        return {connection.api_key_header: connection.api_key}
    return {"Authorization": f"Bearer {connection.api_key}"}
