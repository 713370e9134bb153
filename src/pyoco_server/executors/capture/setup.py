"""Sets up the capture around the fork into guard and host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import sys

from pyoco_server.executors.capture.marks import Marks, TaggedStream
from pyoco_server.executors.capture.page import Page
from pyoco_server.executors.capture.reader import Reader
from pyoco_server.executors.capture.records import see_records
from pyoco_server.executors.capture.wire import read_argument

__all__ = ["Capture"]

_PIPE_BYTES = 1 << 20
#: Our descriptors in the host have higher numbers than those that tasks usually get.
_HIGH = 200


class Capture:
    """The pipes of a host. Create it before the fork; then each side takes its own."""

    def __init__(self, argument: str) -> None:
        descriptor, self._limits, self._level = read_argument(argument)
        self._line = socket.socket(fileno=descriptor)
        self._page, self._secret = Page(), secrets.token_hex(8).encode()
        self._out, self._err, self._records = os.pipe(), os.pipe(), os.pipe()
        for _, end in (self._out, self._err, self._records):
            with contextlib.suppress(OSError):  # the limit of pipe memory for this user is reached
                fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def guard_descriptors(self) -> tuple[int, ...]:
        return self._out[0], self._err[0], self._records[0], self._line.fileno()

    def in_guard(self) -> Reader:
        """Call this after all other descriptors were closed: the pipes end with the host."""
        pipes = {1: self._out[0], 2: self._err[0]}
        reader = Reader(self._page, self._secret, pipes, self._records[0], self._line)
        reader.limits = self._limits
        return reader

    def in_host(self) -> Marks:
        """Replace the standard streams of this process."""
        self._line.close()
        for end, _ in (self._out, self._err, self._records):
            os.close(end)
        own = {}
        for number, end in ((1, self._out[1]), (2, self._err[1])):
            own[number] = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _HIGH)
            os.dup2(end, number)
            os.close(end)
        records = fcntl.fcntl(self._records[1], fcntl.F_DUPFD_CLOEXEC, _HIGH)
        os.close(self._records[1])
        marks = Marks(self._page, self._secret, own, records, self._level, self._limits.line_bytes)
        encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
        sys.stdout = TaggedStream(1, marks, encoding, "replace")
        sys.stderr = TaggedStream(2, marks, encoding, "backslashreplace")
        marks.use((sys.stdout, sys.stderr))
        see_records(marks.record, lowest=self._level)
        return marks
