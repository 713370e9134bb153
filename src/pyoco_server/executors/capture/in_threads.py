"""Captures what runs in threads of this process print and log (LOG-1).

The process belongs to the program around it. So its streams and its logging behave as before, and only what the threads
of a run write through Python is captured beside that. While nothing runs, nothing is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TextIO

from pyoco_server.core.run_log.attempt_log import AttemptLog, Record
from pyoco_server.core.run_log.line import Stream
from pyoco_server.core.run_log.shipment import Shipment
from pyoco_server.executors.capture.marks import record_fields
from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.capture.records import see_records_of_threads

__all__ = ["NOTICE", "ThreadLines"]

NOTICE = (
    "this run is executed in a thread of a program: only print and logging of its tasks' threads are captured here, "
    "not the output of C code, of other processes and of threads that a task starts"
)


class _Place(NamedTuple):
    """Whose output a thread writes."""

    lines: ThreadLines
    task: str | None


class ThreadLines:
    """The lines of one attempt. `execute` its run within `here`; `begin_task` and `end_task` as `Tasks`."""

    def __init__(self, captured: Captured, collector: Collector) -> None:
        """Call this in the event loop, which passes on the batches."""
        self.level = collector.level
        self._captured, self._collector = captured, collector
        self._log = AttemptLog(collector.limits)
        # Reentrant: a finalizer may print while its thread holds it.
        self._lock = threading.RLock()
        self._is_over = self._is_abandoned = False
        self._thread = 0
        self._loop = asyncio.get_running_loop()
        self._is_due = asyncio.Event()
        self.sending = asyncio.create_task(self._send(), name="pass on lines of a thread")

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Capture what the calling thread writes, until the end of the block. Then the attempt is over."""
        self._thread = threading.get_ident()
        _process.enter()
        try:
            _process.settle(_Place(self, None))
            yield
        finally:
            _process.settle(None)
            _process.leave()
            with self._lock:
                self._log.finish(time.time())
                self._is_over = True
            self._wake()

    def begin_task(self, name: str) -> None:
        """The calling thread executes this task from now on."""
        _process.settle(_Place(self, name))

    def end_task(self) -> None:
        """Idempotent."""
        _process.settle(_Place(self, None) if threading.get_ident() == self._thread else None)

    @property
    def takes_lines(self) -> bool:
        return not (self._is_over or self._is_abandoned)

    def feed(self, stream: Stream, task: str | None, text: str) -> None:
        with self._added():
            self._log.feed(stream, task, text.encode("utf-8", "replace"), time.time())

    def record(self, task: str | None, record: logging.LogRecord) -> None:
        level, text, exc = record_fields(record)
        with self._added():
            self._log.record(task, Record(record.created, level, str(record.name)[:256], text, exc), time.time())

    @contextlib.contextmanager
    def _added(self) -> Iterator[None]:
        """Surrounds what adds lines. Before the first one, say what is not captured."""
        with self._lock:
            was_idle = self._log.due_at() is None
            if not self._log.is_touched:
                self._log.say(NOTICE, time.time())
            yield
            is_due = was_idle and self._log.due_at() is not None
        if is_due:
            self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody can store them any more
            self._loop.call_soon_threadsafe(self._is_due.set)

    async def _send(self) -> None:
        while not (self._log.is_over or (self._is_abandoned and not self._log.pending_bytes)):
            due = self._log.due_at()
            seconds = None if due is None else due - time.time()
            if self._is_abandoned or (seconds is not None and seconds <= 0):
                # Encoding takes milliseconds.
                shipment = await asyncio.to_thread(self._take)
                if shipment is not None:
                    self._collector.collect(self._captured, shipment)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_due.wait()
            self._is_due.clear()

    def _take(self) -> Shipment | None:
        with self._lock:
            return self._log.take(time.time())

    async def stop(self) -> None:
        """Pass on what there is. No more is taken of a run that goes on."""
        self._is_abandoned = not self._is_over
        self._is_due.set()
        await self.sending


class _Process:
    """What is replaced in this process while runs are captured: there is one set of streams for all workers in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._undo = contextlib.ExitStack()
        self._here = threading.local()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """In a process that a task has forked: nothing is captured there, and another thread may have held the lock."""
        self._here = threading.local()
        self._lock = threading.Lock()

    def settle(self, place: _Place | None) -> None:
        self._here.place = place

    @property
    def place(self) -> _Place | None:
        """Whose output the calling thread writes. None: that of no run that goes on."""
        place: _Place | None = getattr(self._here, "place", None)
        return place if place is not None and place.lines.takes_lines else None

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count > 1:
                return
            for name, stream in (("stdout", Stream.STDOUT), ("stderr", Stream.STDERR)):
                self._undo.callback(_replace(name, stream))
            self._undo.callback(see_records_of_threads(self._see, self._level))

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if not self._count:
                self._undo.close()

    def _level(self) -> int | None:
        place = self.place
        return None if place is None else place.lines.level

    def _see(self, record: logging.LogRecord, is_printed: bool) -> contextlib.AbstractContextManager[object]:
        """Take a record. Returns what surrounds its handlers: what `logging` prints for want of one is not taken."""
        place = self.place
        if place is not None and record.levelno >= place.lines.level:
            place.lines.record(place.task, record)
        return contextlib.nullcontext() if is_printed else self._aside()

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        place = getattr(self._here, "place", None)
        self.settle(None)
        try:
            yield
        finally:
            self.settle(place)


class _Copied:
    """Stands for `sys.stdout` or `sys.stderr`: writes to it, and copies what the threads of runs write."""

    def __init__(self, target: TextIO | None, stream: Stream) -> None:
        self.target, self._stream = target, stream

    def write(self, text: str, /) -> int:
        count = len(text) if self.target is None else self.target.write(text)
        place = _process.place
        if place is not None:
            place.lines.feed(self._stream, place.task, text)
        return count

    def writelines(self, lines: Iterable[str], /) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if self.target is not None:
            self.target.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def _replace(name: str, stream: Stream) -> Callable[[], None]:
    """Replace a stream of `sys`. Returns how to undo it: without effect while someone else has replaced it, too."""
    earlier = getattr(sys, name)
    if isinstance(earlier, _Copied):  # left behind, because it was replaced when it should have been undone
        return lambda: None
    # The same object each time: a thread that is printing does not hold its own reference to it.
    ours = _copied.setdefault(stream, _Copied(earlier, stream))
    ours.target = earlier
    setattr(sys, name, ours)

    def undo() -> None:
        if getattr(sys, name) is ours:
            setattr(sys, name, earlier)

    return undo


#: Never freed.
_copied: dict[Stream, _Copied] = {}
_process = _Process()
