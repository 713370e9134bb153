"""One watch of a run over any number of connections: what to ask next, and when to stop. No socket; the clock is given.

A connection ends for many reasons: the server's time is up, a gateway restarts, a proxy loses patience, a cable is
pulled. The next one says in `Last-Event-ID` what was seen last, so nothing is told twice and the last state is never
missed.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from pyoco_server.client import calls
from pyoco_server.client.calls import Call
from pyoco_server.client.events import EventDecoder, EventTooLarge, ServerEvent
from pyoco_server.client.faults import AnswerDamaged, NotAGateway, err_id_of, failure_of
from pyoco_server.client.retry import BRIEFLY_AWAY, How, backoff_seconds
from pyoco_server.client.run_results import RunWatchEvent
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
#: Revisions that are remembered as told. A server that begins anew begins with the newest, so few would do.
_TOLD_MAX = 100
#: A server may ask for a pause between two connections, and for no longer one.
_ASKED_SECONDS_MAX = 10.0
#: A connection that has lasted so long was a good one.
_GOOD_SECONDS = 5.0


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
    #: The same for a server that has answered before; as long unless given.
    patience_sec: float | None = None
    include: Sequence[str] | None = None
    since: float | None = None
    timeout_sec: float | None = None
    #: Errors, by the gateway's id, after which another connection is not tried.
    final_errors: frozenset[str] = frozenset()

    _ends_at: float = field(default=math.inf, init=False)
    _last_id: str | None = field(default=None, init=False)
    _told: deque[str] = field(default_factory=lambda: deque(maxlen=_TOLD_MAX), init=False)
    _is_over: bool = field(default=False, init=False)
    _was_open: bool = field(default=False, init=False)
    #: Whether it was a gateway that answered, with events or with a reason for having none.
    _was_there: bool = field(default=False, init=False)
    #: Since when no event has come, by failures; None: all is well.
    _away_since: float | None = field(default=None, init=False)
    #: Connections that ended since the last news.
    _tries: int = field(default=0, init=False)
    _connected_at: float = field(default=0.0, init=False)
    _stream_ends_at: float = field(default=0.0, init=False)
    _heard_here: bool = field(default=False, init=False)
    _decoder: EventDecoder = field(default_factory=EventDecoder, init=False)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.patience_sec is not None and not self.patience_sec >= 0:
            raise ValueError(f"patience_sec cannot be negative: {self.patience_sec}")
        if self.timeout_sec is not None:
            self._ends_at = self.clocks.steady() + self.timeout_sec

    def is_over(self) -> bool:
        """Nothing more will come: the run has ended, or the time is up."""
        return self._is_over

    def connect(self) -> Call[None]:
        """The request for the next connection."""
        now = self.clocks.steady()
        asked = self._stream_seconds(now)
        self._decoder, self._heard_here, self._connected_at = EventDecoder(), False, now
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
        self._was_open = self._was_there = True
        return True

    def feed(self, data: bytes) -> Iterator[RunWatchEvent]:
        """The events that these bytes complete, up to the run's end. Raises AnswerDamaged after the good ones."""
        for event in self._decoded(data):
            if event.name not in _EVENTS:
                continue  # of a newer server
            document = _document(event.data)
            self._last_id = event.id if event.id is not None else self._last_id
            self._heard_here, self._away_since = True, None
            self._is_over = document["snapshot"]["status"] in TERMINAL
            if event.name == "snapshot" and event.id in self._told and not self._is_over:
                continue  # the server begins anew; the end of a run is news, whatever its number
            self._note(event)
            yield cast(RunWatchEvent, {"event": event.name, **document})
            if self._is_over:
                return
        self._is_over = self.clocks.steady() >= self._ends_at

    def _note(self, event: ServerEvent) -> None:
        """A snapshot is news; a heartbeat only shows, after a while, that the connection is a good one."""
        is_news = event.name == "snapshot"
        if is_news and event.id is not None:
            self._told.append(event.id)
        if is_news or self.clocks.steady() >= self._connected_at + _GOOD_SECONDS:
            self._tries = 0

    def _decoded(self, data: bytes) -> Iterator[ServerEvent]:
        try:
            yield from self._decoder.feed(data)
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
            self._tries += 1
            asked = min(self._decoder.retry_seconds or 0.0, _ASKED_SECONDS_MAX)
            return self._in_time(max(asked, backoff_seconds(self._tries, self.clocks.chance())), now)
        error = AnswerDamaged(f"the event stream of run {self.run_id} ends before its first event")
        return self.pause_after_failure(error)

    def pause_after_failure(self, error: httpx.HTTPError) -> float:
        """Seconds to wait before the next connection. Raises the error when there shall be none, and TimeoutError when
        time is up and no stream was ever had."""
        now = self.clocks.steady()
        failure = failure_of(error, self.clocks.wall())
        if failure is None or (failure.how is How.REFUSED and self._is_final(error)):
            raise error
        self._tries += 1
        self._was_there = self._was_there or (isinstance(error, httpx.HTTPStatusError) and err_id_of(error) is not None)
        if self._away_since is None:
            self._away_since = now
        pause = backoff_seconds(self._tries, self.clocks.chance())
        if failure.retry_after is not None:
            pause = max(pause, failure.retry_after)
        if now + pause >= self._ends_at:
            if self._was_open:
                return self._in_time(pause, now)
            if failure.how is How.REFUSED:
                raise error
            why = str(error) or type(error).__name__
            raise TimeoutError(f"no event of run {self.run_id} came within {self.timeout_sec:g} s: {why}") from error
        if now + pause >= self._away_since + self._patience_seconds():
            raise error
        return pause

    def _patience_seconds(self) -> float:
        """Who never answered is not waited for as one who will come back: the address may be wrong."""
        return self.patience_sec if self._was_there and self.patience_sec is not None else self.retry_seconds

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
        if not self.timeout_sec > 0:
            return self.timeout_sec  # the server says what is wrong with it (FLOW-127)
        return max(1, math.floor(min(self._ends_at - now + _BLINK_SECONDS, _STREAM_SECONDS_MAX)))


def _document(data: str) -> dict[str, Any]:
    """What an event carries (FLOW-121). Raises AnswerDamaged."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise AnswerDamaged("an event is no JSON") from error
    try:
        is_whole = isinstance(document["snapshot"]["status"], str) and isinstance(document["run_id"], str)
    except (TypeError, KeyError, IndexError) as error:
        raise AnswerDamaged("an event tells of no run") from error
    if not is_whole:
        raise AnswerDamaged("an event tells of no run")
    return cast(dict[str, Any], document)
