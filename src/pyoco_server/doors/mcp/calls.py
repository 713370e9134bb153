"""One tool call: from its arguments to the document that the agent reads. Independent of the transport."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import Any, Protocol

from pyoco_server.client.calls import Repeat
from pyoco_server.client.retry import Failure, How, Patience, read_retry_after
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.doors.mcp.problems import ArgumentsRefused, RunUnknown, problem, problem_of, refusal
from pyoco_server.doors.mcp.tools import Ask, Tool
from pyoco_server.logs import get_logger

__all__ = [
    "NOT_OURS",
    "PATIENCE",
    "Reply",
    "Send",
    "ToolResult",
    "Unreachable",
    "call_tool",
    "failed",
    "given_up",
    "read_document",
    "send_patiently",
]

log = get_logger(__name__)

#: Agents wait half a minute or more for a tool. A gateway restart takes less than this.
PATIENCE = Patience(retries=8, seconds=10.0)

NOT_OURS = (
    "What answers there is not a pyoco-server gateway with priced runs, or something on the way changed its answer."
)
#: The same text as the server's (PRICED-79).
_NOTHING_HERE = "There is nothing here."
_STOPPING = "The gateway stops. What was submitted may have been accepted. Try again with the same key."

#: A receipt, a run or a problem is far less deeply nested. Not every JSON library can write deeper documents.
_DEPTH_MAX = 64


@dataclass(frozen=True)
class Reply:
    """A response of the server."""

    status: int
    body: bytes
    retry_after: str | None = None


class Unreachable(Exception):
    """The server returned no complete response. The text is for the agent, and names the server's address."""

    def __init__(self, detail: str, *, is_unsent: bool = False) -> None:
        super().__init__(detail)
        self.is_unsent = is_unsent


class Send(Protocol):
    """Sends requests to `/v1`, with the caller's key. Raises Unreachable."""

    async def __call__(self, ask: Ask, trace_id: str) -> Reply: ...

    async def wait(self, seconds: float) -> bool:
        """Wait before a retry. Returns False, perhaps early, if the sender is shutting down and will not retry."""


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool call."""

    document: dict[str, Any]
    is_error: bool = False
    #: For an error: how to continue without paying twice.
    hint: str | None = None


async def call_tool(
    tool: Tool,
    arguments: dict[str, Any],
    send: Send,
    trace_id: str,
    patience: Patience = PATIENCE,
) -> ToolResult:
    """Call a tool. Never raises for a mistake of the caller or a failure of the server.

    Nothing is sent for invalid arguments. All tries use one idempotency key (PRICED-217). While the server is
    unavailable, or the same key is being submitted, the call is retried within its patience; after "too many requests"
    once, and only if the server's Retry-After is within the patience. Any other response is final.
    """
    try:
        ask = tool.ask(arguments)
    except ArgumentsRefused as error:
        log.info("tool called with invalid arguments", tool=tool.name, problems=len(error.problems))
        return ToolResult(refusal(error, trace_id), is_error=True)
    except RunUnknown as error:
        return ToolResult(problem(Reason.RUN_NOT_FOUND, _NOTHING_HERE, trace_id, error.path), is_error=True)
    try:
        reply = await send_patiently(send, ask, trace_id, patience)
    except Unreachable as error:
        log.warning("tool could not reach the server", tool=tool.name, trace_id=trace_id, detail=str(error))
        return failed(ask, problem(Reason.DEPENDENCY_UNAVAILABLE, str(error), trace_id, ask.path))
    is_ok = 200 <= reply.status < 300
    document = _document_of_lines(reply.body) if is_ok and tool.is_of_lines else read_document(reply.body)
    if document is not None and not is_ok and "reason_code" not in document:
        document = problem_of(document, reply.status, trace_id, ask.path)
    if document is None or is_ok == ("reason_code" in document) or (is_ok and not tool.needs <= document.keys()):
        log.warning("invalid response to a tool call", tool=tool.name, trace_id=trace_id, status=reply.status)
        return failed(ask, problem(Reason.DEPENDENCY_UNAVAILABLE, NOT_OURS, trace_id, ask.path))
    if not is_ok:
        return failed(ask, document)
    result = tool.read(document)
    return ToolResult(result if ask.idempotency_key is None else {**result, "idempotency_key": ask.idempotency_key})


def given_up(ask: Ask, trace_id: str) -> ToolResult:
    """Result of a call cut off because the gateway is stopping. The outcome is unknown; its key allows a safe retry."""
    return failed(ask, problem(Reason.DEPENDENCY_UNAVAILABLE, _STOPPING, trace_id, ask.path))


async def send_patiently(send: Send, ask: Ask, trace_id: str, patience: Patience) -> Reply:
    """Return the first response that is not worth a retry, or the last one in time. Raises Unreachable."""
    began, tries = time.monotonic(), 0
    while True:
        tries += 1
        lost: Unreachable | None = None
        reply = Reply(0, b"")
        try:
            reply = await send(ask, trace_id)
        except Unreachable as error:
            lost = error
            failure = Failure(How.UNSENT if error.is_unsent else How.LOST)
        else:
            if reply.status < 400:
                return reply
            failure = Failure(
                How.REFUSED,
                reply.status,
                read_retry_after(reply.retry_after, time.time()),
                is_passing=reply.status == 409 and _reason(reply) == Reason.IDEMPOTENCY_IN_PROGRESS,
            )
        pause = patience.pause(Repeat.SAFE, failure, tries, time.monotonic() - began, random.random())  # noqa: S311
        if pause is not None and await send.wait(pause):
            continue
        if lost is not None:
            raise lost
        return reply


def failed(ask: Ask, document: dict[str, Any]) -> ToolResult:
    """Return the result of a call that failed, with the key under which it can be repeated."""
    hint = None
    if ask.idempotency_key is not None:
        hint = f"idempotency_key of this call: {ask.idempotency_key}"
    return ToolResult(document, is_error=True, hint=hint)


def _reason(reply: Reply) -> object:
    return (read_document(reply.body) or {}).get("reason_code")


def read_document(body: bytes) -> dict[str, Any] | None:
    """Parse a JSON object.

    Returns None if it is not an object or cannot be passed on: with NaN, a lone surrogate, or too deeply nested.
    """
    try:
        document = json.loads(body)
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and _is_flat(document, _DEPTH_MAX) else None


def _document_of_lines(body: bytes) -> dict[str, Any] | None:
    """Parse one JSON object per line. Returns None if one of them is not valid."""
    lines = [read_document(line) for line in body.splitlines()]
    return None if None in lines else {"lines": lines}


def _is_flat(value: object, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    return depth > 0 and all(
        _is_flat(each, depth - 1) for each in (value.values() if isinstance(value, dict) else value)
    )
