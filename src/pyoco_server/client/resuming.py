"""One event stream over any number of connections. No socket; the clock is passed in.

A connection may end because the server's time limit is reached, a gateway restarts, a proxy times out or the network
fails. The next one names the last event seen, so no event is repeated or missed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import httpx

from pyoco_server.client.calls import Call
from pyoco_server.client.events import EventDecoder, EventTooLarge, ServerEvent
from pyoco_server.client.faults import AnswerDamaged, NotAGateway, err_id_of, failure_of
from pyoco_server.client.retry import BRIEFLY_AWAY, How, backoff_seconds

__all__ = ["SILENCE_SECONDS", "Clocks", "Resuming"]

T = TypeVar("T")

#: The server sends a heartbeat every five seconds. After three times that the connection is considered dead.
SILENCE_SECONDS = 15.0
#: The server's limit for one connection, and its default.
_STREAM_SECONDS_MAX = 600
_STREAM_SECONDS_DEFAULT = 300
#: Tolerance for the time that has passed since the caller's call: 30 seconds stay 30, not 29.9999.
_BLINK_SECONDS = 0.05
#: Statuses after which the stream is opened again.
_LATER = BRIEFLY_AWAY | {408, 425, 429, 500}
#: The upper limit of the reconnection delay that a server may request.
_ASKED_SECONDS_MAX = 10.0
#: A connection that has lasted this long counts as successful.
_GOOD_SECONDS = 5.0


@dataclass(frozen=True)
class Clocks:
    """The sources of time and randomness."""

    #: Monotonic seconds.
    steady: Callable[[], float]
    #: Unix seconds.
    wall: Callable[[], float]
    #: A random number from 0 to 1.
    chance: Callable[[], float]


@dataclass(kw_only=True)
class Resuming(ABC, Generic[T]):
    """The state of one stream of items of type T about a run."""

    run_id: str
    clocks: Clocks
    #: How long a server may be unavailable before that is an error.
    retry_seconds: float
    #: The same for a server that has answered before; None: `retry_seconds`.
    patience_sec: float | None = None
    timeout_sec: float | None = None
    #: Error ids of the gateway after which the stream is not opened again.
    final_errors: frozenset[str] = frozenset()

    _ends_at: float = field(default=math.inf, init=False)
    _is_over: bool = field(default=False, init=False)
    _was_open: bool = field(default=False, init=False)
    #: Whether a gateway has answered, with events or with an error document.
    _was_answered: bool = field(default=False, init=False)
    #: The time of the first failure since the last event; None: no failure since then.
    _away_since: float | None = field(default=None, init=False)
    #: Connections that have ended since the last news.
    _tries: int = field(default=0, init=False)
    _connected_at: float = field(default=0.0, init=False)
    _stream_ends_at: float = field(default=0.0, init=False)
    _had_event: bool = field(default=False, init=False)
    _decoder: EventDecoder = field(default_factory=EventDecoder, init=False)

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.patience_sec is not None and not self.patience_sec >= 0:
            raise ValueError(f"patience_sec cannot be negative: {self.patience_sec}")
        if self.timeout_sec is not None:
            self._ends_at = self.clocks.steady() + self.timeout_sec

    @abstractmethod
    def _request(self, timeout_sec: float | None) -> Call[None]:
        """Return the request for a connection that continues after the last event seen."""

    @abstractmethod
    def _known_events(self) -> frozenset[str]:
        """Return the names of the events that `_read` accepts. Others are of a newer server, and ignored."""

    @abstractmethod
    def _read(self, event: ServerEvent) -> T | None:
        """Record an event, and set `_is_over` if it is the last one. Return its item.

        None: it has none, or was seen before. Raises AnswerDamaged.
        """

    @abstractmethod
    def _is_news(self, event: ServerEvent) -> bool:
        """Return whether the event reports a change. A connection with news counts as successful."""

    def is_over(self) -> bool:
        """Whether no more events will come: the run has ended, or the time is up."""
        return self._is_over

    def connect(self) -> Call[None]:
        """Return the request for the next connection."""
        now = self.clocks.steady()
        asked = self._stream_seconds(now)
        self._decoder, self._had_event, self._connected_at = EventDecoder(), False, now
        self._stream_ends_at = now + (_STREAM_SECONDS_DEFAULT if asked is None else asked)
        return self._request(asked)

    def limits(self, timeout: float) -> dict[str, float]:
        """Return the timeouts of the connection. None of them extends far beyond the end of the stream."""
        left = max(self._ends_at - self.clocks.steady(), 0.05)
        return {"read": min(SILENCE_SECONDS, left)} | dict.fromkeys(("connect", "write", "pool"), min(timeout, left))

    def opened(self, status: int, content_type: str) -> bool:
        """Return whether events will follow. Raises NotAGateway."""
        if status == 204:  # the last event seen was the last one of the stream
            self._is_over = True
            return False
        if not content_type.startswith("text/event-stream"):
            raise NotAGateway(f"a stream of run {self.run_id} was answered with {content_type or 'something'!r}")
        self._was_open = self._was_answered = True
        return True

    def feed(self, data: bytes) -> Iterator[T]:
        """Yield the items that these bytes complete, up to the last one. AnswerDamaged follows the valid ones."""
        for event in self._decoded(data):
            if event.name not in self._known_events():
                continue
            item = self._read(event)
            self._had_event, self._away_since = True, None
            if item is not None or not self._is_news(event):
                self._note(event)
            if item is not None:
                yield item
            if self._is_over:
                return
        self._is_over = self.clocks.steady() >= self._ends_at

    def _note(self, event: ServerEvent) -> None:
        """Reset the backoff after news, or a connection that has lasted a while."""
        if self._is_news(event) or self.clocks.steady() >= self._connected_at + _GOOD_SECONDS:
            self._tries = 0

    def _decoded(self, data: bytes) -> Iterator[ServerEvent]:
        try:
            yield from self._decoder.feed(data)
        except EventTooLarge as error:
            raise AnswerDamaged(f"the event stream of run {self.run_id} cannot be read: {error}") from error

    def pause_after_end(self) -> float:
        """Return the seconds to wait after the server has closed the stream normally.

        Raises AnswerDamaged if streams have ended without any event for too long.
        """
        now = self.clocks.steady()
        if now >= self._ends_at:
            self._is_over = True
            return 0.0
        if now >= self._stream_ends_at:  # the stream's time limit was reached; the server starts its clock after us
            return 0.0
        if self._had_event:  # the gateway is stopping, and may have sent a reconnection delay
            self._tries += 1
            asked = min(self._decoder.retry_seconds or 0.0, _ASKED_SECONDS_MAX)
            return self._in_time(max(asked, backoff_seconds(self._tries, self.clocks.chance())), now)
        error = AnswerDamaged(f"the event stream of run {self.run_id} ends before its first event")
        return self.pause_after_failure(error)

    def pause_after_failure(self, error: httpx.HTTPError) -> float:
        """Return the seconds to wait before the next connection.

        Raises `error` if the stream must not be opened again, and TimeoutError if the time is up and no stream was ever
        opened.
        """
        now = self.clocks.steady()
        failure = failure_of(error, self.clocks.wall())
        if failure is None or (failure.how is How.REFUSED and self._is_final(error)):
            raise error
        self._tries += 1
        self._was_answered = self._was_answered or (
            isinstance(error, httpx.HTTPStatusError) and err_id_of(error) is not None
        )
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
        """Return how long failures are tolerated. Fail fast if the server never answered: the address may be wrong."""
        return self.patience_sec if self._was_answered and self.patience_sec is not None else self.retry_seconds

    def _is_final(self, error: httpx.HTTPError) -> bool:
        assert isinstance(error, httpx.HTTPStatusError)
        return error.response.status_code not in _LATER or err_id_of(error) in self.final_errors

    def _in_time(self, pause: float, now: float) -> float:
        """Return the pause, cut off at the end of the stream; the stream is over then."""
        if now + pause < self._ends_at:
            return pause
        self._is_over = True
        return max(0.0, self._ends_at - now)

    def _stream_seconds(self, now: float) -> float | int | None:
        """Return the stream's duration, rounded down to whole seconds: the server ends it before our deadline."""
        if self.timeout_sec is None:
            return None
        if not self.timeout_sec > 0:
            return self.timeout_sec  # the server refuses it with an error (FLOW-127)
        return max(1, math.floor(min(self._ends_at - now + _BLINK_SECONDS, _STREAM_SECONDS_MAX)))
