"""The guard's side of the capture: reads the pipes of a host and sends batches of lines to the worker."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import select
import socket
import struct
import termios
import time
import traceback
from typing import NamedTuple

from pyoco_server.core.run_log.attempt_log import AttemptLog, Limits, Record
from pyoco_server.core.run_log.line import LEVELS, Stream
from pyoco_server.executors.capture.page import Page
from pyoco_server.executors.capture.wire import pack_shipment

__all__ = ["Reader"]

_LENGTH = struct.Struct("<I")
_INT = struct.Struct("i")
#: A pipe with little data is not read again for this long, so that several short runs cost one wake-up, here and in the
#: worker: waking costs as much as the lines of a dozen runs. No more, since a host that fills its pipe meanwhile waits.
_REST_SECONDS = 0.05
_MUCH_BYTES = 32_768
#: The clock may be set back; a poll does not take any number.
_POLL_MS_MAX = 60_000.0
#: A mark that was read only in part begins at most this far from the end.
_MARK_BYTES_MAX = 8192
#: How often the pipes are read again, until everything that was written before something that was read is there.
_ROUNDS = 4
_RECORD_BYTES_MAX = 4 * 1024 * 1024
#: The last batches of a host that has ended may take this long.
_LAST_SECONDS = 2.0
#: Batches that are due at the same time are sent together, up to about this size.
_TOGETHER_BYTES = 65_536
#: Output of no run that is passed on at once: a pipe that can be written to takes at least this much.
_PASSED_ON_BYTES = 512


class _Item(NamedTuple):
    """One unit of input: bytes, a record, or the end of a run."""

    order: float
    run: int
    task: str | None
    stream: Stream
    data: bytes = b""
    record: Record | None = None
    left_out: int = 0


class _Pipe:
    def __init__(self, fd: int, stream: Stream, passed_to: int) -> None:
        self.fd, self.stream, self.passed_to = fd, stream, passed_to
        self.held = bytearray()
        with contextlib.suppress(OSError):
            os.set_blocking(fd, False)
        self.capacity = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)

    @property
    def waiting(self) -> int:
        """The number of bytes to be read."""
        return int(_INT.unpack(fcntl.ioctl(self.fd, termios.FIONREAD, b"\0\0\0\0"))[0])


class Reader:
    """Reads as fast as a host prints, keeps no more than the bounds allow, and never waits for the worker."""

    def __init__(self, page: Page, secret: bytes, pipes: dict[int, int], records: int, line: socket.socket) -> None:
        self._page, self._line, self._records = page, line, records
        self._pipes = [_Pipe(pipes[1], Stream.STDOUT, 1), _Pipe(pipes[2], Stream.STDERR, 2)]
        os.set_blocking(records, False)
        line.setblocking(False)
        self._prefix = b"\0" + secret
        self._mark = re.compile(re.escape(self._prefix) + rb"(\d{1,19})(E?) (\d{1,19}) ([^\n]*)\n")
        self._frames = bytearray()
        self.limits = Limits()
        self._logs: dict[int, AttemptLog] = {}
        #: The last run that has ended; it gets no more output.
        self._ended = 0
        self._order = 0
        self._unsent = b""
        self._rests_until = 0.0
        self._is_line_open = True
        self._has_failed = False

    # The loop of the guard.

    def wants(self) -> dict[int, int]:
        """Return the descriptors to be polled now, with their events."""
        wanted = {}
        if time.monotonic() >= self._rests_until:
            wanted = dict.fromkeys((self._records, *(pipe.fd for pipe in self._pipes)), select.POLLIN)
        if self._unsent:
            wanted[self._line.fileno()] = select.POLLOUT
        return wanted

    def timeout(self) -> float | None:
        """How many milliseconds the poll may take. None: as long as nothing happens."""
        now = time.monotonic()
        due = [at for log in self._logs.values() if (at := log.due_at()) is not None] if not self._unsent else []
        if self._rests_until > now:
            due.append(self._wall(self._rests_until, now))
        return None if not due else min(max(0.0, (min(due) - time.time()) * 1000.0), _POLL_MS_MAX)

    @staticmethod
    def _wall(at: float, now: float) -> float:
        return time.time() + at - now

    def turn(self) -> None:
        """Read and send what is due. Never raises: an error here must not end the host, so its lines are dropped."""
        try:
            if self._has_failed:
                self._discard()
            else:
                self._turn()
        except Exception:  # noqa: BLE001  (see above)
            traceback.print_exc()
            self._has_failed, self._unsent = True, b""
            self._logs.clear()

    def _discard(self) -> None:
        """Drain the pipes: a host must never block on its guard."""
        self._read()
        for pipe in self._pipes:
            pipe.held.clear()
        self._frames.clear()

    def _turn(self) -> None:
        if time.monotonic() >= self._rests_until:
            count = self.drain()
            self._rests_until = time.monotonic() + _REST_SECONDS if 0 < count < _MUCH_BYTES else 0.0
        self.ship()

    def finish(self) -> None:
        """The host has ended: everything that it has printed is sent, as far as that is possible in a short time."""
        if self._has_failed:
            return
        until = time.monotonic() + _LAST_SECONDS
        while self.drain() and time.monotonic() < until:
            """Read on: nothing writes any more, so this ends."""
        for log in self._logs.values():
            log.finish(time.time())
        self._line.setblocking(True)
        self._line.settimeout(_LAST_SECONDS)
        while self._is_line_open and time.monotonic() < until and (self._unsent or self._logs):
            self.ship()

    # Reading.

    def drain(self) -> int:
        """Read what is there. Returns the number of bytes."""
        count, items = 0, list[_Item]()
        for _ in range(_ROUNDS):
            owner, version = self._page.load()
            count += self._read()
            items += self._parsed()
            is_stable = self._page.load()[1] == version
            if is_stable:
                task = None if owner.task is None else _unescaped(owner.task)
                items += [
                    _Item(math.inf, owner.run, task, pipe.stream, data)
                    for pipe in self._pipes
                    if (data := self._unmarked(pipe))
                ]
            if is_stable and not self._is_order_missing(items):
                break
        items.sort(key=lambda item: item.order)
        ts = time.time()
        for item in items:
            self._take(item, ts)
        return count

    def _read(self) -> int:
        count = 0
        for pipe in self._pipes:
            # All that was in the pipe when this began, and nothing is lost if more comes meanwhile.
            room = pipe.capacity
            while room > 0 and (waiting := pipe.waiting):
                self._page.count_read(pipe.passed_to)
                try:
                    data = os.read(pipe.fd, min(room, waiting))
                except BlockingIOError:
                    break
                finally:
                    self._page.count_read(pipe.passed_to)
                pipe.held += data
                room -= len(data)
                count += len(data)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._records, 1 << 16):
                self._frames += data
                count += len(data)
        return count

    def _parsed(self) -> list[_Item]:
        items = []
        for pipe in self._pipes:
            at = 0
            for mark in self._mark.finditer(pipe.held) if self._prefix in pipe.held else ():
                order, run, task = int(mark[1]), int(mark[3]), _unescaped(mark[4][1:]) if mark[4] else None
                items.append(_Item(order, run, task, pipe.stream, bytes(pipe.held[at : mark.start()])))
                if mark[2]:
                    items.append(_Item(order + 1, run, None, Stream.SYSTEM))
                at = mark.end()
            del pipe.held[:at]
        return items + self._parsed_records()

    def _parsed_records(self) -> list[_Item]:
        items = list[_Item]()
        while len(self._frames) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._frames)
            if length > _RECORD_BYTES_MAX:  # a task has written to our pipe
                self._frames.clear()
                break
            end = _LENGTH.size + length
            if len(self._frames) < end:
                break
            item = _item_of(bytes(self._frames[_LENGTH.size : end]))
            del self._frames[:end]
            if item is not None:
                items.append(item)
        return items

    def _unmarked(self, pipe: _Pipe) -> bytes:
        """Take the bytes without a mark, except a mark that was only read in part."""
        held = pipe.held
        at = held.rfind(b"\0", max(0, len(held) - _MARK_BYTES_MAX))
        is_mark = at >= 0 and (held[at : at + len(self._prefix)] == self._prefix[: len(held) - at])
        end = at if is_mark and b"\n" not in held[at:] else len(held)
        data = bytes(held[:end])
        del held[:end]
        return data

    def _is_order_missing(self, items: list[_Item]) -> bool:
        orders = {int(item.order) for item in items if item.order != math.inf}
        return bool(orders) and len(orders) < max(orders) - self._order

    def _take(self, item: _Item, ts: float) -> None:
        if item.order != math.inf:
            self._order = max(self._order, int(item.order))
        if not item.run:
            self._pass_on(item)
            return
        if item.run <= self._ended:
            return
        log = self._logs.get(item.run)
        if log is None:
            log = self._logs[item.run] = AttemptLog(self.limits)
        if item.record is not None:
            log.record(item.task, item.record, ts, item.left_out)
        elif item.stream is Stream.SYSTEM:
            log.finish(ts)
            self._ended = item.run
        else:
            log.feed(item.stream, item.task, item.data, ts)

    def _pass_on(self, item: _Item) -> None:
        """Write what belongs to no run, such as the output of imports, to where the worker prints, as far as that can
        be done without waiting."""
        target = next((pipe.passed_to for pipe in self._pipes if pipe.stream is item.stream), 2)
        data = item.data if item.record is None else f"{item.record.level} {item.record.text}\n".encode()
        poll = select.poll()
        poll.register(target, select.POLLOUT)
        with contextlib.suppress(OSError):
            while data and any(events & select.POLLOUT for _, events in poll.poll(0)):
                data = data[os.write(target, data[:_PASSED_ON_BYTES]) :]

    # Sending.

    def ship(self) -> None:
        now = time.time()
        for number in list(self._logs):
            log = self._logs[number]
            while self._has_room() and (due := log.due_at()) is not None and due <= now:
                shipment = log.take(now)
                if shipment is None:
                    break
                self._unsent += pack_shipment(number, shipment)
            if log.is_over:
                del self._logs[number]
        self._flush()

    def _has_room(self) -> bool:
        return len(self._unsent) < _TOGETHER_BYTES or self._flush()

    def _flush(self) -> bool:
        """Send what is pending. Returns whether nothing is left."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._line.send(self._unsent) :]
        except (BlockingIOError, TimeoutError):
            return False
        except OSError:  # the worker has exited, or does not want lines any more
            self._is_line_open, self._unsent = False, b""
        return True


def _unescaped(task: bytes) -> str:
    return task.decode("unicode_escape", "replace")


def _item_of(body: bytes) -> _Item | None:
    """Decode a record. None: it is not one, since a task has written to our pipe."""
    try:
        kind, order, run, *values = json.loads(body)
        if kind == "E":
            return _Item(int(order), int(run), None, Stream.SYSTEM)
        task, ts, level, logger, text, left_out, exc = values
        if level not in LEVELS or not isinstance(text, str):
            return None
        record = Record(float(ts), level, str(logger), text, exc if isinstance(exc, str) else None)
        return _Item(int(order), int(run), None if task is None else str(task), Stream.LOG, b"", record, int(left_out))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
