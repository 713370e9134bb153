"""Follow what a run prints."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass

from pyoco_server.actions.read import read_run
from pyoco_server.actions.read_logs import lines_in
from pyoco_server.actions.watch import HEARTBEAT_SECONDS, Follower, Hub, may_still_see
from pyoco_server.core.retries.course import try_of
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.run_log.line import Line
from pyoco_server.core.run_log.reading import Assembly
from pyoco_server.core.run_log.selection import LastLines, Selection
from pyoco_server.errors import RunNotFound, Unavailable
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.run_logs.port import RunLogs, StoredBatch, StoredBatches

__all__ = ["QUIET_SECONDS", "Follow", "Following", "Heartbeat", "LogEnd", "follow_logs"]

#: LOG-21: the stream ends when the run has ended and no line came for this long.
QUIET_SECONDS = 2.0
#: Groups of batches that are held for a follower that is slower than its store.
_ARRIVED_MAX = 2


@dataclass(frozen=True, kw_only=True)
class Follow:
    """What a follower requests."""

    run_id: str
    selection: Selection
    #: Begin with the last lines that exist, as many as fit on a page. None: with the first.
    tail: int | None = None
    timeout_seconds: float = 300.0
    heartbeat_seconds: float = HEARTBEAT_SECONDS


@dataclass(frozen=True)
class Heartbeat:
    """No line came for a while."""


@dataclass(frozen=True)
class LogEnd:
    """The run has ended, and so has its log."""

    status: str
    attempt: int


async def follow_logs(backend: GatewayBackend, caller: Caller, hub: Hub, ask: Follow) -> Following:
    """Follow the run and its lines. Close the returned object: it holds a consumer and a place in the hub.

    Raises RunNotFound, also for another tenant's run, TooManyWatchers, Unavailable.
    """
    with contextlib.ExitStack() as undo:
        follower = hub.follow(ask.run_id)
        undo.callback(follower.close)
        follower.offer(await read_run(backend, caller, ask.run_id))
        if follower.version is None:  # deleted after it was read: the feed was faster
            raise RunNotFound
        following = Following(backend, caller, follower, ask)
        undo.pop_all()
    return following


class Following:
    """The lines of one follower, as they come. A slow one delays only itself: NATS sends it no more than it takes."""

    def __init__(self, backend: GatewayBackend, caller: Caller, follower: Follower, ask: Follow) -> None:
        self.follower = follower
        self._backend, self._caller, self._ask = backend, caller, ask
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        #: When the stream ends at the latest, by the event loop's clock.
        self.ends_at = self._sent_at + ask.timeout_seconds
        self._assembly = Assembly()
        #: Lines that existed before, until all are known: only for `tail`.
        self._earlier = LastLines(ask.tail) if ask.tail is not None else None
        self._arrived: asyncio.Queue[StoredBatches] = asyncio.Queue(_ARRIVED_MAX)
        self._batches: deque[StoredBatch] = deque()
        self._caught_up = backend.logs is None
        #: When the last batch was stored, by the store's clock.
        self._stored_at = 0.0
        self._is_done = False
        #: The try of the run, by attempt of the lines that were returned (LOG-8).
        self.tries: dict[int, int] = {}
        self._reading = None
        if backend.logs is not None:
            self._reading = asyncio.create_task(self._read(backend.logs), name="follow log lines")

    async def _read(self, logs: RunLogs) -> None:
        async with contextlib.aclosing(logs.batches(self._ask.run_id)) as batches:
            async for some in batches:
                await self._arrived.put(some)
                self.follower.wake()

    async def next(self) -> list[Line] | Heartbeat | LogEnd | None:
        """Return what comes next. None: the stream is over, and the run has perhaps not ended."""
        while not self._is_done:
            found = await self._lines() or await self._look()
            if found is not None and not self._is_done:
                self._is_done = isinstance(found, LogEnd) or not await may_still_see(self._backend, self._caller)
                self._sent_at = self._loop.time()
                if isinstance(found, list):
                    self._is_done = self._is_done or not await self._knows_tries({line.attempt for line in found})
                return found if isinstance(found, LogEnd) or not self._is_done else None
        return None

    async def _knows_tries(self, attempts: set[int]) -> bool:
        """Return False if the record of the run cannot be read: who follows has to reconnect."""
        for attempt in sorted(attempts - self.tries.keys()):
            run = self._run()
            if run is None or run.attempt < attempt:  # lines may be faster than the feed of records
                try:
                    run = (await read_run(self._backend, self._caller, self._ask.run_id)).run
                except (RunNotFound, Unavailable):
                    return False
            self.tries[attempt] = try_of(run, attempt)
        return True

    async def _lines(self) -> list[Line] | None:
        """Return the lines of the next batch. None: there is none, or it contains no wanted line."""
        if self._batches:
            return await asyncio.to_thread(self._lines_of, self._batches.popleft())
        if not self._arrived.empty():
            some = self._arrived.get_nowait()
            self._batches += some.items
            self._caught_up = self._caught_up or some.caught_up
            if some.items:
                self._stored_at = some.items[-1].stored_at
        elif self._caught_up and self._earlier is not None:
            earlier, self._earlier = self._earlier, None
            return earlier.lines()
        return None

    def _lines_of(self, batch: StoredBatch) -> list[Line]:
        lines = [line for line in lines_in(self._assembly, batch) if self._ask.selection.has(line)]
        if self._earlier is None:
            return lines
        for line in lines:
            self._earlier.add(line)
        return []

    async def _look(self) -> Heartbeat | LogEnd | None:
        """Without a batch, wait for something to happen."""
        if self._batches or not self._arrived.empty() or (self._caught_up and self._earlier is not None):
            return None
        run, now = self._run(), self._loop.time()
        quiet_in = self._quiet_in(run)
        if quiet_in is not None and quiet_in <= 0 and self._caught_up and run is not None:
            return LogEnd(run.status, run.attempt)
        if self.follower.is_over or now >= self.ends_at:
            self._is_done = True
            return None
        beats_at = self._sent_at + self._ask.heartbeat_seconds
        if now >= beats_at:
            return Heartbeat()
        await self.follower.wait(min(beats_at, self.ends_at, now + (quiet_in or self._ask.heartbeat_seconds)))
        return None

    def _run(self) -> Run | None:
        word = self.follower.version
        return word.stored.run if word is not None else None

    def _quiet_in(self, run: Run | None) -> float | None:
        """How long it takes until the log counts as complete, by the store's clock. None: the run has not ended."""
        if run is None or not run.is_terminal:
            return None
        last = max(self._stored_at, run.updated_at)
        return last + QUIET_SECONDS - self._backend.clock()

    def close(self) -> None:
        """Release what the stream holds. May be called twice, and while `next` waits: `next` then returns."""
        self._is_done = True
        self.follower.close()
        if self._reading is not None:
            self._reading.cancel()
