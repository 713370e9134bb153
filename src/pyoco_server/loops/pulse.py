"""One ticker for all attempts of a worker: it extends deliveries, writes heartbeats, and hears cancel requests."""

from __future__ import annotations

import abc
import asyncio
import time
from dataclasses import dataclass

from pyoco_server.actions.attempt import Standing
from pyoco_server.errors import CATALOGUE, PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.cancelling import cancelled
from pyoco_server.loops.loop import Loop

__all__ = ["Live", "Pulse", "Rhythm"]

log = get_logger(__name__)

#: A delivery whose deadline could not be extended: try again after this, not at every tick.
_HOLD_AGAIN_SECONDS = 1.0
#: Heartbeats that are under way when the worker stops may take this long.
_LAST_BEATS_SECONDS = 5.0
#: Between two ticks while nothing is in flight.
_IDLE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Rhythm:
    """The intervals at which one attempt is kept alive, in seconds."""

    beat: float
    #: None: its heartbeat extends its delivery, too.
    hold: float | None = None
    #: After a heartbeat that failed. None: the next one is early enough.
    beat_again: float | None = None
    #: How long the attempt owns its run after a heartbeat. None: the record decides, whenever it can be read.
    lease: float | None = None

    @property
    def shortest(self) -> float:
        return min(self.beat, self.hold or self.beat)


class Live(abc.ABC):
    """One delivery in flight, and its attempt once claimed: what the pulse does for each kind of run.

    No method may block the event loop.
    """

    def __init__(self, rhythm: Rhythm) -> None:
        self.rhythm = rhythm
        #: Monotonic times of the last extension of the delivery, and of the last heartbeat: the claim was the first.
        self.held_at = self.beaten_at = time.monotonic()
        #: End of the lease, if it has one.
        self.lease_until = self.held_at + (rhythm.lease or 0.0)
        #: Another attempt owns the run: nothing more may be written or acknowledged (FLOW-311).
        self.is_fenced = False
        self.beating: asyncio.Task[None] | None = None

    @property
    @abc.abstractmethod
    def run_id(self) -> str | None:
        """The run, once it is known. For the log."""

    @property
    @abc.abstractmethod
    def is_executing(self) -> bool:
        """Whether an attempt is in progress, so that heartbeats are due."""

    async def hold(self) -> None:
        """Extend the deadline of the delivery. Only called if the rhythm has `hold`. Raises Unavailable."""
        raise NotImplementedError

    @abc.abstractmethod
    async def beat(self) -> Standing:
        """Write one heartbeat. Raises PyocoError: whether the attempt still owns its run is unknown."""

    async def on_cancel(self) -> None:
        """Called after each heartbeat that has found a cancel request. Raises PyocoError."""
        raise NotImplementedError

    @abc.abstractmethod
    def on_fenced(self) -> None:
        """Called once, when another attempt owns the run: stop the work."""


class Pulse(Loop):
    """Keeps all attempts in flight alive. A turn waits for no heartbeat: each attempt has its own task for it.

    What it cannot do: write heartbeats while this process is suspended or starved of CPU. They then become stale, the
    job is redelivered to another worker, and the first write after resuming reports that the attempt is fenced.
    """

    def __init__(self) -> None:
        super().__init__(every_seconds=_IDLE_SECONDS)
        #: In order of their begin, so that a simulation is repeatable.
        self._lives: dict[Live, None] = {}
        #: Heartbeats are written outside of the turns, so they have an outage of their own.
        self._unwritten = Outage(log)

    def begin(self, live: Live) -> None:
        """Keep it alive from now on, until `end`."""
        self._lives[live] = None
        # Four checks per interval: each is late by at most a quarter of it, whatever the ratio of the intervals.
        if live.rhythm.shortest / 4 < self._every_seconds:
            self._every_seconds = live.rhythm.shortest / 4
            self.nudge()

    def end(self, live: Live) -> None:
        """Do nothing more for it. A heartbeat may still be under way. May be called twice."""
        self._lives.pop(live, None)

    async def end_at_rest(self, live: Live, seconds: float) -> None:
        """Do nothing more for it, and return when no heartbeat is under way. One that takes longer is cancelled."""
        self.end(live)
        if live.beating is not None and not live.beating.done():
            await asyncio.wait({live.beating}, timeout=seconds)
            await cancelled({live.beating})

    async def turn(self) -> None:
        now = time.monotonic()
        for live in [live for live in self._lives if not live.is_fenced]:
            rhythm = live.rhythm
            if rhythm.lease is not None and live.is_executing and now >= live.lease_until:
                self._fence(live)
                continue
            if rhythm.hold is not None and self._is_due(live.held_at, rhythm.hold, rhythm, now):
                await self._hold(live, rhythm.hold, now)
            if live.is_executing and self._is_due(live.beaten_at, rhythm.beat, rhythm, now):
                self._beat_soon(live, now)

    @staticmethod
    def _is_due(last: float, every_seconds: float, rhythm: Rhythm, now: float) -> bool:
        return now - last >= every_seconds - rhythm.shortest / 8

    async def _hold(self, live: Live, every_seconds: float, now: float) -> None:
        try:
            await live.hold()
            live.held_at = now
        except Unavailable as error:
            live.held_at = now - every_seconds + _HOLD_AGAIN_SECONDS
            text = CATALOGUE[9]
            log.error(text.en, run_id=live.run_id, err_id=text.err_id, msg_id=text.msg_id, cause=error)

    def _beat_soon(self, live: Live, now: float) -> None:
        if live.beating is None or live.beating.done():
            live.beaten_at = now
            live.beating = asyncio.create_task(self._beat(live, now))

    async def _beat(self, live: Live, asked_at: float) -> None:
        try:
            standing = await live.beat()
            self._unwritten.worked()
            live.lease_until = asked_at + (live.rhythm.lease or 0.0)
            if standing is Standing.FENCED:
                self._fence(live)
            elif standing is Standing.CANCEL_REQUESTED:
                await live.on_cancel()
        except PyocoError as error:
            self._unwritten.failed("could not write a heartbeat", error, run_id=live.run_id)
            self._beat_again(live)
        except Exception:  # top level of a task: a defect of ours must not leave a run without heartbeats
            log.exception("heartbeat failed", run_id=live.run_id)
            self._beat_again(live)

    @staticmethod
    def _beat_again(live: Live) -> None:
        if live.rhythm.beat_again is not None:
            live.beaten_at = time.monotonic() - live.rhythm.beat + live.rhythm.beat_again

    @staticmethod
    def _fence(live: Live) -> None:
        if not live.is_fenced:
            live.is_fenced = True
            live.on_fenced()

    async def stop(self) -> None:
        """Stop. Heartbeats that are under way may complete."""
        await super().stop()
        self._unwritten.forget()
        under_way = {live.beating for live in self._lives if live.beating is not None and not live.beating.done()}
        if under_way:
            await asyncio.wait(under_way, timeout=_LAST_BEATS_SECONDS)
