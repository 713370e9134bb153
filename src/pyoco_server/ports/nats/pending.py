"""The requests of a link that have no response yet."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.client import Raw

__all__ = ["Pending", "Swallowed"]

#: A write without a response for this time may have been swallowed by a full disk; then a probe is sent.
_DOUBT_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Request:
    answer: asyncio.Future[Raw]
    deadline: float
    subject: str
    #: The stream that a write is for; "" for other requests, and if it is not known.
    stream: str = ""
    #: When to find out whether the stream has swallowed the write.
    doubt_at: float = math.inf


class Swallowed(Unavailable):
    """A stream has received a message and will never respond."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"{stream} takes messages and neither stores nor refuses them: the disk of NATS is, or was, full; "
            "NATS writes nothing there until it has room and is restarted"
        )
        self.stream = stream


class Pending:
    """By token: each request gets its response, or the reason why there will be none."""

    def __init__(self, loop: asyncio.AbstractEventLoop, probe: Callable[[str], Awaitable[str]]) -> None:
        """`probe` returns the stream that has swallowed a message on this subject, or "" if that is not known."""
        self._loop = loop
        self._probe = probe
        self._requests: dict[str, _Request] = {}
        #: One probe at a time: NATS may merely be slow.
        self._probing: asyncio.Task[None] | None = None
        #: The number of responses that arrived after their timeout.
        self.late = 0

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, token: str, subject: str, seconds: float, stored_in: str | None) -> asyncio.Future[Raw]:
        """Return the future of the response. `stored_in` marks a write, and names its stream or is ""."""
        now = self._loop.time()
        answer: asyncio.Future[Raw] = self._loop.create_future()
        doubt_at = math.inf if stored_in is None else now + _DOUBT_SECONDS
        self._requests[token] = _Request(answer, now + seconds, subject, stored_in or "", doubt_at)
        return answer

    def remove(self, token: str) -> None:
        del self._requests[token]

    def answer(self, token: str, message: Raw) -> None:
        request = self._requests.get(token)
        if request is not None and not request.answer.done():
            request.answer.set_result(message)
        else:
            self.late += 1

    def fail(self, reason_of: Callable[[str], Exception | None]) -> None:
        """Fail the requests for whose subject this returns a reason."""
        for request in self._requests.values():
            reason = None if request.answer.done() else reason_of(request.subject)
            if reason is not None:
                request.answer.set_exception(reason)

    def expire(self) -> None:
        """Fail the requests whose time is over, and probe the streams of writes that have waited for long."""
        now = self._loop.time()
        for request in list(self._requests.values()):
            if request.deadline < now and not request.answer.done():
                request.answer.set_exception(Unavailable("no answer came in time"))
            elif request.doubt_at < now and (self._probing is None or self._probing.done()):
                request.doubt_at = math.inf
                self._probing = asyncio.create_task(self._resolve_doubt(request), name="is a write swallowed")

    async def _resolve_doubt(self, request: _Request) -> None:
        """Fail the writes that their stream has swallowed: those sent before the probe, and not answered before it."""
        sent = list(self._requests.values())
        stuck = await self._probe(request.subject)
        for each in sent if stuck else ():
            if (each is request or each.stream == stuck) and not each.answer.done():
                each.answer.set_exception(Swallowed(stuck))

    def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
