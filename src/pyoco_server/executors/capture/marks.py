"""The host's side of the capture: marks between the bytes of different tasks and runs.

A byte in a pipe does not show which task wrote it. So the host writes a mark behind the bytes of each task: everything
since the previous mark belongs to it. A mark is written only if something was printed: a silent run costs a few
microseconds. What has no mark yet belongs to the owner on the shared page.

Marks and records also carry a sequence, by which the guard restores the order between the two pipes and the records.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import struct
import sys
import termios
import threading
import time
import traceback
from _thread import get_ident

from pyoco_server.core.run_log.cutting import cut_text
from pyoco_server.executors.capture.page import TASK_BYTES_MAX, Owner, Page

__all__ = ["Marks", "TaggedStream", "escaped_task", "record_fields"]

_LENGTH = struct.Struct("<I")
_NO_BYTES = b"\0\0\0\0"
#: What a pipe that nothing was ever written to looks like.
_UNTOUCHED = (0, 0)
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=repr).encode
_formatter = logging.Formatter()
#: Names of tasks that are kept in their encoded form.
_NAMES_MAX = 1000
#: Longer names of loggers are cut.
_LOGGER_MAX = 256
#: The name of a level by its number: other levels count as the one below.
_LEVELS = ((50, "CRITICAL"), (40, "ERROR"), (30, "WARNING"), (20, "INFO"))


def escaped_task(task: str) -> bytes:
    """Encode the name of a task, so that it fits on one line of a mark."""
    return task[:TASK_BYTES_MAX].encode("unicode_escape")[:TASK_BYTES_MAX]


class TaggedStream(io.TextIOWrapper):
    """`sys.stdout` or `sys.stderr` of a host. Complete lines are written at once."""

    def __init__(self, number: int, marks: Marks, encoding: str, errors: str) -> None:
        file = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
        super().__init__(file, encoding=encoding, errors=errors, line_buffering=True)
        self._number, self._marks = number, marks

    def write(self, text: str, /) -> int:
        return self._marks.write(self._number, self, text)

    def write_directly(self, is_direct: bool) -> None:
        """Replace `write` by that of the base class, or restore it. `print` calls it for each of its arguments."""
        if is_direct:
            self.__dict__["write"] = super().write
        else:
            self.__dict__.pop("write", None)

    def write_untagged(self, text: str) -> int:
        return super().write(text)


class Marks:
    """Knows which task runs on which thread, and tells the guard. Thread-safe."""

    def __init__(self, page: Page, secret: bytes, pipes: dict[int, int], records: int, level: int, line_bytes: int):
        """`pipes`: our own descriptors of the pipes by 1 and 2, which tasks do not close by accident."""
        self._page, self._prefix, self._pipes, self._records = page, b"\0" + secret, pipes, records
        self._level, self._line_bytes = level, line_bytes
        self._lock = threading.RLock()
        self._streams: tuple[TaggedStream, ...] = ()
        self._order = 0
        self._owner = Owner()
        #: The running tasks by thread.
        self._tasks: dict[int, str] = {}
        #: The last task has ended; its name is still on the page.
        self._is_stale = False
        #: What each pipe holds as long as nothing was written since its last mark, and it was not read. None: unknown.
        self._behind_mark: dict[int, tuple[int, int] | None] = dict.fromkeys(pipes)
        #: The pipe that Python code wrote to last; 0: none since the last mark.
        self._writer = 0
        #: The pipe that Python code writes to right away; 0: neither.
        self._direct = 0
        self._is_touched = False
        self._is_active = True
        #: The encoded names of tasks.
        self._escaped: dict[str, bytes] = {}
        # A process that a task forks prints as part of its task; it must not write marks from its copy of this state.
        os.register_at_fork(after_in_child=self._disable)

    def _disable(self) -> None:
        self._is_active = False
        self._lock = threading.RLock()

    def use(self, streams: tuple[TaggedStream, ...]) -> None:
        self._streams = streams

    # Runs and tasks.

    def begin_run(self, number: int) -> None:
        """Call this when the previous run has ended: nothing was printed since then."""
        with self._lock:
            self._set(Owner(number))
            self._is_touched = False

    def end_run(self) -> None:
        """Call this when no code of the run is left that could print."""
        with self._lock:
            number = self._owner.run
            self._tasks.clear()
            if not self._switch(Owner(), is_end=True) and self._is_touched:
                self._send(["E", self._next_order(), number])

    def begin_task(self, name: str) -> None:
        """The calling thread executes this task from now on."""
        with self._lock:
            self._tasks[get_ident()] = name
            self._settle()

    def end_task(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._tasks.pop(get_ident(), None) is None:
                return
            if self._tasks:
                self._settle()
            else:  # usually another task begins at once, and nothing was printed
                self._is_stale = True
                self._set_direct(0)

    def _settle(self) -> None:
        owner = Owner(self._owner.run, self._only_task())
        if owner != self._owner:
            self._switch(owner)
        self._is_stale = False
        if len(self._tasks) > 1:
            self._set_direct(0)

    def _set_direct(self, number: int) -> None:
        if number == self._direct:
            return
        self._direct = number
        for pipe, stream in enumerate(self._streams, 1):
            stream.write_directly(pipe == number)

    def _only_task(self) -> bytes | None:
        if len(self._tasks) != 1:
            return None
        (name,) = self._tasks.values()
        if name not in self._escaped:
            if len(self._escaped) >= _NAMES_MAX:
                self._escaped.clear()
            self._escaped[name] = escaped_task(name)
        return self._escaped[name]

    def _switch(self, owner: Owner, *, is_end: bool = False) -> bool:
        """Everything that was printed until now belongs to the current owner. Returns whether anything was. `is_end`:
        the last mark, if any, says that the run has ended."""
        if self._writer:
            for stream in self._streams:
                with contextlib.suppress(OSError, ValueError):  # a task may have closed it
                    stream.flush()
        looks = {number: self._look_into(number) for number in self._pipes}
        unmarked = [number for number, look in looks.items() if look != (self._behind_mark[number] or _UNTOUCHED)]
        for number in unmarked:
            look, length = looks[number], self._mark(number, self._owner, is_end=is_end and number == unmarked[-1])
            # Counted from before the mark: what another process wrote around it is never taken for a part of it.
            self._behind_mark[number] = None if look is None else (look[0] + length, look[1])
        self._set(owner)
        return bool(unmarked)

    def _set(self, owner: Owner) -> None:
        self._page.store(owner)
        self._owner, self._writer, self._is_stale = owner, 0, False
        self._set_direct(0)

    def _look_into(self, number: int) -> tuple[int, int] | None:
        """Return how many bytes a pipe holds, and how often it was read. None: it is being read."""
        reads = self._page.reads(number)
        held = int.from_bytes(fcntl.ioctl(self._pipes[number], termios.FIONREAD, _NO_BYTES), sys.byteorder)
        return (held, reads) if reads % 2 == 0 and self._page.reads(number) == reads else None

    def _mark(self, number: int, owner: Owner, *, is_end: bool = False) -> int:
        """Write a mark, and return its length. `is_end`: the run has ended, which takes the next place in the order."""
        self._is_touched, self._behind_mark[number] = True, None
        task = b"" if owner.task is None else b"=" + owner.task
        mark = b"%s%d%s %d %s\n" % (self._prefix, self._next_order(), b"E" if is_end else b"", owner.run, task)
        self._order += is_end
        with contextlib.suppress(OSError):  # the guard has exited, and this process is about to
            os.write(self._pipes[number], mark)
        return len(mark)

    def _next_order(self) -> int:
        self._order += 1
        return self._order

    # What Python code writes.

    def write(self, number: int, stream: TaggedStream, text: str) -> int:
        """Write text, with a mark if the one that follows from the page would be wrong."""
        with self._lock:
            if not self._is_active:
                return stream.write_untagged(text)
            self._look(number)
            task = self._tasks.get(get_ident()) if len(self._tasks) > 1 else None
            if task is None:
                self._set_direct(number if len(self._tasks) == 1 else 0)
                return stream.write_untagged(text)
            stream.flush()
            self._mark(number, self._owner)
            written = stream.write_untagged(text)
            stream.flush()
            self._mark(number, Owner(self._owner.run, escaped_task(task)))
            return written

    def _look(self, number: int) -> None:
        """`number` is written to next; 0: a record."""
        if self._is_stale and not self._tasks:
            self._switch(Owner(self._owner.run))
        if self._writer not in (0, number):
            with contextlib.suppress(OSError, ValueError):
                self._streams[self._writer - 1].flush()
            self._mark(self._writer, self._owner)
        self._writer = number

    def record(self, record: logging.LogRecord) -> None:
        """Take a record of `logging`. Never raises."""
        if record.levelno < self._level or not self._is_active:
            return
        level, text, exc = record_fields(record)
        text, left_out = cut_text(text, self._line_bytes)
        exc = None if exc is None else cut_text(exc, self._line_bytes)[0]
        # Other code may have put anything into its record.
        created = record.created if type(record.created) is float else time.time()
        name = record.name[:_LOGGER_MAX] if type(record.name) is str else type(record.name).__name__
        with self._lock:
            self._look(0)
            self._set_direct(0)
            self._is_touched = True
            task = self._tasks.get(get_ident())
            if task is None and len(self._tasks) == 1:
                task = next(iter(self._tasks.values()))
            order, run = self._next_order(), self._owner.run
            self._send(["L", order, run, task, created, level, name, text, left_out, exc])

    def _send(self, message: list[object]) -> None:
        body = _encode(message).encode("utf-8", "replace")
        data = memoryview(_LENGTH.pack(len(body)) + body)
        with contextlib.suppress(OSError):  # as in `_mark`
            while data:
                data = data[os.write(self._records, data) :]


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  (foreign code)
        return type(value).__name__


def record_fields(record: logging.LogRecord) -> tuple[str, str, str | None]:
    """Return level, message and exception of a record. Never raises: its arguments may be anything."""
    level = next((name for number, name in _LEVELS if record.levelno >= number), "DEBUG")
    try:
        text = record.getMessage()
    except Exception as error:  # noqa: BLE001  (foreign code formats its arguments)
        text = f"{_shown(record.msg)} (not formatted: {type(error).__name__})"
    try:
        exc = record.exc_text or (_formatter.formatException(record.exc_info) if record.exc_info else None)
        if record.stack_info:
            exc = f"{exc}\n{record.stack_info}" if exc else record.stack_info
    except Exception:  # noqa: BLE001  (foreign exceptions format themselves)
        exc = traceback.format_exc()
    return level, text, exc
