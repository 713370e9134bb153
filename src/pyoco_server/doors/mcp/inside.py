"""The way from `/mcp/` to `/v1` within one gateway: a request like any other, with the caller's own key."""

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

#: Under which a request to `/mcp/` carries what was asked for it.
_ASKED = "pyoco.asked"

#: What the caller's own request says of who asks, and under which name this gateway was asked.
_PASSED_ON = frozenset({b"authorization", b"host", b"x-forwarded-host", b"x-forwarded-proto"})


class Inside:
    """Sends what a tool asks for to the gateway it was called on. Key, rate, form and money are judged there, once."""

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
        """A gateway that stops is not asked again: it is the one that is away."""
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
    """What was sent on for a request to `/mcp/`, and under which trace id; None: nothing yet."""
    return cast(tuple[Ask, str] | None, scope.get(_ASKED))


def is_stopping(app: Any) -> bool:
    return getattr(app.state, "stopping", False) or server_is_stopping()


class _Answer:
    """What the gateway sends back, gathered. It is a receipt, a run or a problem: small."""

    def __init__(self) -> None:
        self.status = 0
        self.retry_after: str | None = None
        self.parts: list[bytes] = []

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = dict(message["headers"]).get(b"retry-after")
            self.retry_after = None if told is None else told.decode("latin-1")
        elif message["type"] == "http.response.body":
            self.parts.append(message.get("body", b""))
