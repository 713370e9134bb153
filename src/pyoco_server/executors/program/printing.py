"""What programs print, as lines: cut and bounded in the runner, passed on by the worker.

The runner has one thread, in which it also starts programs. So it sends one batch of one program at a time, and only
when nothing else waits to be sent; what is not sent yet is bounded (`AttemptLog`), and the reports never wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import astuple

from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits
from pyoco_server.core.run_log.line import Stream
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.program.wire import LINES, frame

__all__ = ["TASK", "Captures", "Printing"]

#: LOG-3
TASK = "exec"


class Printing:
    """The runner's side: the lines of its programs that the worker does not have yet."""

    def __init__(self, limits: Limits | None) -> None:
        """None: nothing is captured."""
        self._limits = limits
        #: Of the programs that have printed something and may print more.
        self._logs: dict[int, AttemptLog] = {}
        #: Those with something to be sent, the one whose turn it is first.
        self._unsent: dict[int, AttemptLog] = {}

    def feed(self, number: int, stream: Stream, data: bytes) -> None:
        if self._limits is None:
            return
        log = self._logs.get(number)
        if log is None:
            log = self._logs[number] = AttemptLog(self._limits)
        log.feed(stream, TASK, data, time.time())
        self._unsent.setdefault(number, log)

    def end(self, number: int) -> bool:
        """The program has ended and nothing holds its pipes. Returns whether a last batch follows."""
        log = self._logs.pop(number, None)
        if log is None:
            return False
        log.finish(time.time())
        self._unsent[number] = log
        return True

    def seconds(self) -> float | None:
        """Return how long to wait for the next batch. None: there is nothing to be sent."""
        due = [at for log in self._unsent.values() if (at := log.due_at()) is not None]
        return max(0.0, min(due) - time.time()) if due else None

    def take(self) -> bytes:
        """Return the next message that is due; empty: none is. Costs some milliseconds at most."""
        now = time.time()
        for number, log in list(self._unsent.items()):
            at = log.due_at()
            if at is None:
                del self._unsent[number]
            elif at <= now and (shipment := log.take(now)) is not None:
                del self._unsent[number]
                if log.due_at() is not None:
                    self._unsent[number] = log
                return frame(LINES, number, *astuple(shipment))
        return b""


class Captures:
    """The worker's side: whose lines they are. That is decided here, by the number of the attempt at the runner."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._attempts: dict[int, Captured] = {}
        #: Those that have ended, and whose last batch has not come.
        self._ended: set[int] = set()
        self._is_settled = asyncio.Event()

    def expect(self, number: int, attempt: Captured) -> None:
        self._attempts[number] = attempt

    def take(self, number: int, *values: object) -> None:
        attempt, shipment = self._attempts.get(number), Shipment(*values)  # type: ignore[arg-type]
        if attempt is not None:
            self._collector.collect(attempt, shipment)
        if shipment.is_last:
            self._forget(number)

    def end(self, number: int, *, has_lines: bool) -> None:
        """The attempt has ended. `has_lines`: its last batch will follow."""
        if has_lines and number in self._attempts:
            self._ended.add(number)
        else:
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._attempts.pop(number, None)
        self._ended.discard(number)
        if not self._ended:
            self._is_settled.set()

    def lose(self) -> None:
        """The runner has exited: nothing more comes of its programs."""
        self._attempts.clear()
        self._ended.clear()
        self._is_settled.set()

    async def settle(self, seconds: float) -> None:
        """Wait for the last batches of attempts that have ended, with a time limit."""
        if self._ended:
            self._is_settled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_settled.wait()
