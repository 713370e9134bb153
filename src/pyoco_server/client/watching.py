"""One watch of a run over any number of connections: what to ask next, and when to stop. No socket; the clock is given.

A connection ends for many reasons: the server's time is up, a gateway restarts, a proxy loses patience, a cable is
pulled. The next one says in `Last-Event-ID` what was seen last, so nothing is told twice and the last state is never
missed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from pyoco_server.client import calls
from pyoco_server.client.calls import Call
from pyoco_server.client.events import EventDecoder, EventTooLarge, ServerEvent
from pyoco_server.client.faults import AnswerDamaged, NotAGateway, err_id_of, failure_of
from pyoco_server.client.results import RunWatchEvent
from pyoco_server.client.retry import BRIEFLY_AWAY, How, backoff_seconds
from pyoco_server.core.states import TERMINAL

__all__ = ["SILENCE_SECONDS", "Clocks", "Watching"]

#: The server says something every five seconds. After three times that the connection is taken for dead.
SILENCE_SECONDS = 15.0
#: What the server allows for one connection.
_STREAM_SECONDS_MAX = 600
_STREAM_SECONDS_DEFAULT = 300
#: The time between the caller's word and ours: thirty seconds are thirty, not 29.9999.
_BLINK_SECONDS = 0.05
#: Who asks too often, or was too slow, may come back.
_LATER = BRIEFLY_AWAY | {408, 425, 429, 500}
_EVENTS = frozenset({"snapshot", "heartbeat"})


@dataclass(frozen=True)
class Clocks:
    """Where time and chance come from."""

    #: Seconds that never go back.
    steady: Callable[[], float]
    #: Unix seconds.
    wall: Callable[[], float]
    #: From 0 to 1.
    chance: Callable[[], float]


@dataclass(kw_only=True)
class Watching:
    """Where one watch stands."""

    run_id: str
    clocks: Clocks
    #: For so long a server may be away before that is an error.
    retry_seconds: float
    include: Sequence[str] | None = None
    since: float | None = None
    timeout_sec: float | None = None
    #: Errors, by the gateway's id, after which another connection is not tried.
    final_errors: frozenset[str] = frozenset()

    _ends_at: float = field(default=math.inf, init=False)
    _last_id: str | None = field(default=None, init=False)
    _is_over: bool = field(default=False, init=False)
    _was_open: bool = field(default=False, init=False)
    #: Since when no event has come, by failures; None: all is well.
    _away_since: float | None = field(default=None, init=False)
    _tries: int = field(default=0, init=False)
    _stream_ends_at: float = field(default=0.0, init=False)
    _heard_here: bool = field(default=False, init=False)
    _decoder: EventDecoder = field(default_factory=EventDecoder, init=False)

    def __post_init__(self) -> None:
        if self.timeout_sec is not None:
            self._ends_at = self.clocks.steady() + self.timeout_sec

    def is_over(self) -> bool:
        """Nothing more will come: the run has ended, or the time is up."""
        return self._is_over

    def connect(self) -> Call[None]:
        """The request for the next connection."""
        now = self.clocks.steady()
        asked = self._stream_seconds(now)
        self._decoder, self._heard_here = EventDecoder(), False
        self._stream_ends_at = now + (_STREAM_SECONDS_DEFAULT if asked is None else asked)
        include = list(self.include) if self.include else None
        query = {"include": include, "since": self.since, "timeout_sec": asked}
        return calls.watch_run(self.run_id, query, self._last_id)

    def limits(self, timeout: float) -> dict[str, float]:
        """For how long the connection may say nothing, step by step: no wait goes far beyond the end."""
        left = max(self._ends_at - self.clocks.steady(), 0.05)
        return {"read": min(SILENCE_SECONDS, left)} | dict.fromkeys(("connect", "write", "pool"), min(timeout, left))

    def opened(self, status: int, content_type: str) -> bool:
        """Whether events will follow. Raises NotAGateway."""
        if status == 204:  # the last event that was seen is the end
            self._is_over = True
            return False
        if not content_type.startswith("text/event-stream"):
            raise NotAGateway(f"a watch of run {self.run_id} was answered with {content_type or 'something'!r}")
        self._was_open = True
        return True

    def feed(self, data: bytes) -> Iterator[RunWatchEvent]:
        """The events that these bytes complete, up to the run's end. Raises AnswerDamaged after the good ones."""
        for event in self._decoded(data):
            if event.name not in _EVENTS:
                continue  # of a newer server
            document = _document(event.data)
            self._last_id = event.id if event.id is not None else self._last_id
            self._heard_here = True
            self._away_since, self._tries = None, 0
            self._is_over = document["snapshot"]["status"] in TERMINAL
            yield cast(RunWatchEvent, {"event": event.name, **document})
            if self._is_over:
                return
        self._is_over = self.clocks.steady() >= self._ends_at

    def _decoded(self, data: bytes) -> list[ServerEvent]:
        try:
            return self._decoder.feed(data)
        except EventTooLarge as error:
            raise AnswerDamaged(f"the event stream of run {self.run_id} cannot be read: {error}") from error

    def pause_after_end(self) -> float:
        """The server has closed the stream in order. Raises AnswerDamaged when it has done nothing else for long."""
        now = self.clocks.steady()
        if now >= self._ends_at:
            self._is_over = True
            return 0.0
        if now >= self._stream_ends_at:  # its time was up; the server began to count later than we did
            return 0.0
        if self._heard_here:  # the gateway goes away, and says when to come back
            asked = self._decoder.retry_seconds
            return self._in_time(backoff_seconds(1, self.clocks.chance()) if asked is None else min(asked, 10.0), now)
        error = AnswerDamaged(f"the event stream of run {self.run_id} ends before its first event")
        return self.pause_after_failure(error)

    def pause_after_failure(self, error: httpx.HTTPError) -> float:
        """Seconds to wait before the next connection. Raises the error when there shall be none."""
        now = self.clocks.steady()
        failure = failure_of(error, self.clocks.wall())
        if failure is None or (failure.how is How.REFUSED and self._is_final(error)):
            raise error
        self._tries += 1
        if self._away_since is None:
            self._away_since = now
        pause = backoff_seconds(self._tries, self.clocks.chance())
        if failure.retry_after is not None:
            pause = max(pause, failure.retry_after)
        if now + pause >= self._ends_at and self._was_open:
            return self._in_time(pause, now)
        if now + pause >= min(self._away_since + self.retry_seconds, self._ends_at):
            raise error
        return pause

    def _is_final(self, error: httpx.HTTPError) -> bool:
        assert isinstance(error, httpx.HTTPStatusError)
        return error.response.status_code not in _LATER or err_id_of(error) in self.final_errors

    def _in_time(self, pause: float, now: float) -> float:
        """No wait goes beyond the end; the watch is over then."""
        if now + pause < self._ends_at:
            return pause
        self._is_over = True
        return max(0.0, self._ends_at - now)

    def _stream_seconds(self, now: float) -> float | int | None:
        """Whole seconds, and none too many: so the server ends the stream, and a slow read need not be cut off."""
        if self.timeout_sec is None:
            return None
        if not self.timeout_sec >= 1:
            return self.timeout_sec  # the server says what is wrong with it (FLOW-127)
        return max(1, math.floor(min(self._ends_at - now + _BLINK_SECONDS, _STREAM_SECONDS_MAX)))


def _document(data: str) -> dict[str, Any]:
    """What an event carries (FLOW-121). Raises AnswerDamaged."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise AnswerDamaged("an event is no JSON") from error
    try:
        _ = document["snapshot"]["status"], document["run_id"]
    except (TypeError, KeyError) as error:
        raise AnswerDamaged("an event tells of no run") from error
    return cast(dict[str, Any], document)
