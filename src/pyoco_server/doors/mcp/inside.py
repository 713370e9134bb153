"""Sends requests from `/mcp/` to `/v1` within one gateway: ordinary requests with the caller's own key."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import Message, Scope

from pyoco_server.doors.http.event_stream import server_is_stopping
from pyoco_server.doors.http.state import state_of
from pyoco_server.doors.mcp.calls import Reply
from pyoco_server.doors.mcp.tools import Ask

__all__ = ["Inside", "asked_in", "is_stopping"]

#: Scope key under which a request to `/mcp/` carries the request made for it.
_ASKED = "pyoco.asked"

#: Headers of the outer request that identify the caller and the host name of this gateway.
_PASSED_ON = frozenset({b"authorization", b"host", b"x-forwarded-host", b"x-forwarded-proto"})


class Inside:
    """Sends a tool's request to its own gateway. Key, rate limit, input and budget are checked there, once."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def __call__(self, ask: Ask, trace_id: str) -> Reply:
        self._request.scope[_ASKED] = (ask, trace_id)
        answer = _Answer()
        body: list[Message] = [{"type": "http.request", "body": ask.body, "more_body": False}]

        async def receive() -> Message:
            return body.pop() if body else {"type": "http.disconnect"}

        await self._request.app(self._scope(ask, trace_id), receive, answer.take)
        return Reply(answer.status, b"".join(answer.parts), answer.retry_after)

    async def wait(self, seconds: float) -> bool:
        """Wait, unless the gateway is stopping: a retry could only reach the same gateway."""
        if not is_stopping(self._request.app):
            await asyncio.sleep(seconds)
        return not is_stopping(self._request.app)

    def _scope(self, ask: Ask, trace_id: str) -> Scope:
        outer = self._request.scope
        wanted = _PASSED_ON | {state_of(self._request).backend.config.http_api_key_header.lower().encode("latin-1")}
        headers = [(name, value) for name, value in outer["headers"] if name in wanted]
        headers.append((b"x-trace-id", trace_id.encode("ascii")))
        if ask.idempotency_key is not None:
            headers.append((b"idempotency-key", ask.idempotency_key.encode("ascii")))
        if ask.body:
            headers.append((b"content-type", ask.content_type.encode("ascii")))
            headers.append((b"content-length", b"%d" % len(ask.body)))
        named = ("type", "asgi", "http_version", "scheme", "client", "server", "root_path")
        return {
            **{name: outer[name] for name in named if name in outer},
            "method": ask.method,
            "path": unquote(ask.path),
            "raw_path": ask.path.encode("ascii"),
            "query_string": ask.query.encode("ascii"),
            "headers": headers,
        }


def asked_in(scope: Scope) -> tuple[Ask, str] | None:
    """Return the request sent for a request to `/mcp/`, and its trace id, or None if nothing was sent yet."""
    return cast(tuple[Ask, str] | None, scope.get(_ASKED))


def is_stopping(app: Any) -> bool:
    return getattr(app.state, "stopping", False) or server_is_stopping()


class _Answer:
    """Collects the gateway's response. It is a receipt, a run or a problem, so it is small."""

    def __init__(self) -> None:
        self.status = 0
        self.retry_after: str | None = None
        self.parts: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            retry_after = dict(message["headers"]).get(b"retry-after")
            self.retry_after = None if retry_after is None else retry_after.decode("latin-1")
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))
