"""Stores the lines that runs print, beside the runs themselves: nothing waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from pyoco_server.core.run_log.attempt_log import Limits
from pyoco_server.core.run_log.batch import encode_gap
from pyoco_server.core.run_log.counts import LogTotals
from pyoco_server.core.run_log.line import Gap, Stream, Why
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.errors import PyocoError
from pyoco_server.executors.capture.port import Captured
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.ports.run_logs.port import RunLogs

__all__ = ["LogSender", "LogSink", "StoredLines"]

log = get_logger(__name__)

_STREAMS = tuple(stream.value for stream in Stream)
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.1, 2.0
#: A batch that NATS refuses for this long, although it is there, is dropped.
_REFUSED_SECONDS = 60.0
#: What all runs together may hold: after an outage, the lines of many ended runs may be waiting.
_ALL_BYTES_MAX = 64 * 1024 * 1024
#: Attempts without a last batch, because their guard was killed, are forgotten when there are this many.
_OUTBOXES_MAX = 10_000
#: How long a stop waits for NATS.
_LAST_SECONDS = 5.0


class LogSink(Protocol):
    """Where batches go. An outage raises Unavailable."""

    async def append(self, captured: Captured, shipment: Shipment, after: int) -> int:
        """Store a batch after the batch with the number `after` (0: as the first of this attempt). Returns its number.

        Idempotent.
        """

    async def delete(self, number: int) -> None:
        """Delete a batch of the tail, if that is our task. Idempotent."""


class StoredLines:
    """The store itself."""

    def __init__(self, logs: RunLogs) -> None:
        self._logs = logs

    async def append(self, captured: Captured, shipment: Shipment, after: int) -> int:
        return await self._logs.append(captured.run_id, captured.attempt, shipment.payload, after)

    async def delete(self, number: int) -> None:
        await self._logs.delete(number)


class _Waiting(NamedTuple):
    shipment: Shipment
    when_done: Callable[[], None]

    @property
    def size(self) -> int:
        return len(self.shipment.payload)


@dataclass(eq=False)
class _Outbox:
    """The batches of one attempt that are not stored yet."""

    captured: Captured
    waiting: deque[_Waiting] = field(default_factory=deque)
    size: int = 0
    #: The size of the batches that do not count for the tail.
    head_size: int = 0
    #: Lines and bytes that were dropped before the first waiting batch.
    dropped: tuple[int, int] = (0, 0)
    #: The number of the newest stored batch, and the sequence that follows it.
    number: int = 0
    next: int = 1
    #: Stored batches of the tail, with their sizes.
    tail: deque[tuple[int, int]] = field(default_factory=deque)
    tail_size: int = 0
    sending: asyncio.Task[None] | None = None


def _counted(shipment: Shipment) -> int:
    """Return what a batch counts for the bounds of its attempt: one without text counts as what is stored of it, so
    that no number of those fills the store."""
    return shipment.size or len(shipment.payload)


class LogSender:
    """Takes batches from executors and stores them, one after another for each attempt.

    While NATS is unreachable it keeps up to `buffer_bytes` for each run; then the oldest are dropped, and a gap is
    stored in their place. What it cannot do: keep what it holds when its process is killed.
    """

    def __init__(
        self,
        sink: LogSink,
        limits: Limits,
        level: int,
        buffer_bytes: int,
        is_up: Callable[[], bool],
    ) -> None:
        self.limits, self.level = limits, level
        self._sink, self._buffer_bytes, self._is_up = sink, buffer_bytes, is_up
        self._outboxes: dict[Captured, _Outbox] = {}
        self._size = 0
        self._outage = Outage(log)
        #: What this process has stored and dropped (LOG-28).
        self.totals = LogTotals()

    @property
    def is_full(self) -> bool:
        """Whether lines are dropped because all runs together hold too many."""
        return self._size > _ALL_BYTES_MAX

    def collect(self, captured: Captured, shipment: Shipment, when_done: Callable[[], None] = lambda: None) -> None:
        """Take a batch. `when_done` is called once it is stored, or dropped."""
        outbox = self._outboxes.get(captured)
        if outbox is None:
            # Earlier lines may have been stored by another process.
            outbox = self._outboxes[captured] = _Outbox(captured, next=shipment.first)
            self._forget_idle()
        totals = self.totals
        for stream, count in zip(_STREAMS, shipment.streams, strict=True):
            totals.lines[stream] += count
        totals.bytes += shipment.size
        outbox.waiting.append(_Waiting(self._within_head(outbox, shipment), when_done))
        self._grow(outbox, len(shipment.payload))
        while len(outbox.waiting) > 1 and (outbox.size > self._buffer_bytes or self.is_full):
            self._drop(outbox)
        if outbox.sending is None or outbox.sending.done():
            outbox.sending = asyncio.create_task(self._send(outbox), name="store log lines")

    def _within_head(self, outbox: _Outbox, shipment: Shipment) -> Shipment:
        """Let everything above the bound of the head count for the tail, whatever the sender says."""
        if shipment.is_tail:
            return shipment
        outbox.head_size += _counted(shipment)
        return shipment if outbox.head_size <= self.limits.head_bytes else replace(shipment, is_tail=True)

    def _grow(self, outbox: _Outbox, size: int) -> None:
        outbox.size += size
        self._size += size

    def _drop(self, outbox: _Outbox) -> None:
        waiting = outbox.waiting.popleft()
        shipment = waiting.shipment
        self._grow(outbox, -waiting.size)
        waiting.when_done()
        lines, size = outbox.dropped
        outbox.dropped = lines + shipment.count, size + shipment.size
        self.totals.dropped[Why.BUFFER.value] += shipment.count

    def _forget_idle(self) -> None:
        if len(self._outboxes) > _OUTBOXES_MAX:
            idle = [captured for captured, outbox in self._outboxes.items() if not outbox.waiting]
            for captured in idle[: _OUTBOXES_MAX // 2]:
                del self._outboxes[captured]

    async def _send(self, outbox: _Outbox) -> None:
        while outbox.waiting:
            waiting = outbox.waiting[0]
            if not await self._store(outbox, waiting):
                continue  # it was dropped meanwhile
            outbox.waiting.popleft()
            self._grow(outbox, -waiting.size)
            waiting.when_done()
            shipment = waiting.shipment
            missing = shipment.first - outbox.next
            if missing > 0:
                is_gap = not shipment.count and not shipment.is_last  # of a worker whose buffer was full
                self.totals.dropped[(Why.BUFFER if is_gap else Why.LIMIT).value] += missing
            outbox.next = shipment.first + shipment.count
            await self._shorten(outbox, shipment)
            # A worker over TCP sends a batch again whose answer it did not get.
            if shipment.is_last and not outbox.waiting and self._outboxes.get(outbox.captured) is outbox:
                del self._outboxes[outbox.captured]

    async def _store(self, outbox: _Outbox, waiting: _Waiting) -> bool:
        """Store a batch, and before it the gap of dropped ones. Returns False if it was dropped meanwhile."""
        pause, refused_at = _PAUSE_SECONDS, 0.0
        while outbox.waiting and outbox.waiting[0] is waiting:
            try:
                await self._store_gap(outbox, waiting.shipment)
                outbox.number = await self._sink.append(outbox.captured, waiting.shipment, outbox.number)
                self._outage.worked()
                # The batch was dropped while it was being stored, and its lines are not missing after all: readers see
                # them before the gap, whose count then includes them.
                return bool(outbox.waiting) and outbox.waiting[0] is waiting
            except PyocoError as error:
                self._outage.failed("cannot store log lines", error, run_id=outbox.captured.run_id)
                refused_at = (refused_at or time.monotonic()) if self._is_up() else 0.0
                if refused_at and time.monotonic() - refused_at > _REFUSED_SECONDS and outbox.waiting[0] is waiting:
                    self._drop(outbox)
                    return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        return False

    async def _store_gap(self, outbox: _Outbox, shipment: Shipment) -> None:
        lines, size = outbox.dropped
        if not lines:
            return
        payload = encode_gap(shipment.first, shipment.before, Gap(Why.BUFFER, lines, size))
        gap = Shipment(shipment.first, 0, shipment.before, 0, shipment.is_tail, is_last=False, payload=payload)
        outbox.number = await self._sink.append(outbox.captured, gap, outbox.number)
        outbox.dropped, outbox.next = (0, 0), shipment.first

    async def _shorten(self, outbox: _Outbox, shipment: Shipment) -> None:
        """Delete the oldest batches of the tail, as far as it exceeds its bound. Best effort: readers lose nothing."""
        is_repeated = bool(outbox.tail) and outbox.tail[-1][0] == outbox.number
        if not shipment.is_tail or is_repeated:
            return
        outbox.tail.append((outbox.number, _counted(shipment)))
        outbox.tail_size += _counted(shipment)
        while outbox.tail_size > self.limits.tail_bytes and len(outbox.tail) > 1:
            number, size = outbox.tail.popleft()
            outbox.tail_size -= size
            with contextlib.suppress(PyocoError):
                await self._sink.delete(number)

    async def stored(self) -> None:
        """Wait until everything that was collected so far is stored, or dropped."""
        sending = [box.sending for box in self._outboxes.values() if box.sending is not None]
        if sending:
            await asyncio.wait(sending)

    async def stop(self) -> None:
        """Store what is waiting, for a limited time. Call it after the executors have stopped."""
        sending = [box.sending for box in self._outboxes.values() if box.sending is not None and not box.sending.done()]
        if sending:
            _, late = await asyncio.wait(sending, timeout=_LAST_SECONDS)
            for task in late:
                task.cancel()
            if late:
                log.warning("log lines were not stored before the stop", runs=len(late))
        self._outage.forget()
