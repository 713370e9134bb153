"""One ticker for all attempts in flight: it extends deliveries, writes heartbeats, and hears cancel requests."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Callable
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
#: Heartbeats written at the same time: a door may be responsible for thousands of attempts.
_BEATS_AT_ONCE = 32
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
        #: This process was suspended, and no heartbeat has shown since that the attempt still owns its run. Its
        #: delivery may be another's by now (GRID-10).
        self.is_unverified = False
        self.beating: asyncio.Task[None] | None = None

    @property
    @abc.abstractmethod
    def run_id(self) -> str | None:
        """The run, once it is known. For the log."""

    @property
    @abc.abstractmethod
    def is_executing(self) -> bool:
        """Whether an attempt is in progress, so that heartbeats are due."""

    def tick(self, now: float) -> None:  # noqa: B027 - most kinds of runs need nothing of the kind
        """Called at each tick, before anything else."""

    def on_suspended(self, seconds: float) -> None:  # noqa: B027 - as above
        """This process was suspended, or had no CPU, for about that long."""

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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(every_seconds=_IDLE_SECONDS)
        self._clock = clock
        self._turned_at = clock()
        self._room = asyncio.Semaphore(_BEATS_AT_ONCE)
        #: In order of their begin, so that a simulation is repeatable.
        self._lives: dict[Live, None] = {}
        #: Heartbeats are written outside of the turns, so they have an outage of their own.
        self._unwritten = Outage(log)

    def begin(self, live: Live) -> None:
        """Keep it alive from now on, until `end`. The claim was its first heartbeat."""
        live.held_at = live.beaten_at = self._clock()
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

    def beat_now(self, live: Live) -> None:
        """Write a heartbeat now: it hears a cancel request sooner than the next one would."""
        if live in self._lives and live.is_executing and not live.is_fenced:
            self._beat_soon(live, self._clock())

    async def beat_all(self) -> None:
        """Write a heartbeat for each attempt, and wait for them. Those that fail are repeated by the ticker."""
        for live in list(self._lives):
            self.beat_now(live)
        while under_way := self._under_way():
            await asyncio.wait(under_way)

    def _under_way(self) -> set[asyncio.Task[None]]:
        return {live.beating for live in self._lives if live.beating is not None and not live.beating.done()}

    async def start(self) -> None:
        self._turned_at = self._clock()
        await super().start()

    async def turn(self) -> None:
        """Check all attempts once. O(n); waits for no heartbeat."""
        now = self._clock()
        slept, self._turned_at = now - self._turned_at - self._every_seconds, now
        self._recover_from_suspension(slept)
        for live in list(self._lives):
            live.tick(now)
            if live.is_fenced:
                continue
            rhythm = live.rhythm
            if rhythm.lease is not None and live.is_executing and now >= live.lease_until:
                self._fence(live)
                continue
            is_held = rhythm.hold is not None and not live.is_unverified
            if is_held and rhythm.hold is not None and self._is_due(live.held_at, rhythm.hold, rhythm, now):
                await self._hold(live, rhythm.hold, now)
            if live.is_executing and self._is_due(live.beaten_at, rhythm.beat, rhythm, now):
                self._beat_soon(live, now)

    def _recover_from_suspension(self, slept: float) -> None:
        """Recover after this process was suspended or had no CPU: others may own its attempts by now."""
        late = [live for live in self._lives if slept > live.rhythm.beat]
        if late:
            log.warning("process was suspended; rechecking ownership of all attempts", seconds=round(slept, 1))
        for live in late:
            live.is_unverified, live.beaten_at = live.is_executing, float("-inf")
            live.on_suspended(slept)

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
            async with self._room:
                standing = await live.beat()
            self._unwritten.worked()
            live.is_unverified = False
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

    def _beat_again(self, live: Live) -> None:
        if live.rhythm.beat_again is not None:
            live.beaten_at = self._clock() - live.rhythm.beat + live.rhythm.beat_again

    @staticmethod
    def _fence(live: Live) -> None:
        if not live.is_fenced:
            live.is_fenced = True
            live.on_fenced()

    async def stop(self) -> None:
        """Stop. Heartbeats that are under way may complete."""
        await super().stop()
        self._unwritten.forget()
        if under_way := self._under_way():
            await asyncio.wait(under_way, timeout=_LAST_BEATS_SECONDS)
        for task in self._under_way():
            task.cancel()
