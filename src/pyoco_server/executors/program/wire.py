"""Protocol between a worker and its runner: a length, then that many bytes of a marshalled tuple.

worker -> runner   the greeting (the values of Settings); then BEGIN with an Order, CANCEL or KILL with a
number and the seconds between SIGTERM and SIGKILL (None: those of the settings)
runner -> worker   READY; then an Ended for each Order; LINES with a number and the values of a Shipment, also after it

Both ends are this package in the same interpreter, and no program ever inherits the socket.
"""

from __future__ import annotations

import marshal
import struct
from typing import Any, Literal, NamedTuple

__all__ = [
    "BEGIN",
    "CANCEL",
    "KILL",
    "LINES",
    "READY",
    "Input",
    "Order",
    "ProcessEnded",
    "RunnerFrames",
    "Stopped",
    "frame",
]

READY, BEGIN, CANCEL, KILL, LINES = "ready", "begin", "cancel", "kill", "lines"
_LENGTH = struct.Struct("<I")

#: Why a program was stopped before it ended by itself.
Stopped = Literal["timeout", "cancel", "kill"]
#: Name, size, sha256, and its bytes; None: it is in the directory already.
Input = tuple[str, int, str, bytes | None]


class Order(NamedTuple):
    """One attempt for the runner."""

    number: int
    job_id: str
    run_id: str
    attempt: int
    client_id: str
    exec_name: str
    args: tuple[str, ...]
    timeout_sec: float
    inputs: tuple[Input, ...]
    #: The directory with the inputs exists already.
    is_made: bool


class ProcessEnded(NamedTuple):
    """The end of an attempt."""

    number: int
    #: None: it did not start, or its exit status could not be read.
    exit_code: int | None = None
    stopped: Stopped | None = None
    #: Why it did not start: an error code, and a text for users.
    fault: tuple[str, str] | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    run_seconds: float | None = None
    #: Path, size and sha256 of the archive.
    packed: tuple[str, int, str] | None = None
    #: Directory and program name, if the worker still has to pack the files and remove the directory.
    left: tuple[str, str] | None = None
    #: Its last batch of lines follows.
    has_lines: bool = False


def frame(*message: Any) -> bytes:
    body = marshal.dumps(message)
    return _LENGTH.pack(len(body)) + body


class RunnerFrames:
    """Splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Any, ...]]:
        buffer = self._buffer
        buffer += data
        messages: list[tuple[Any, ...]] = []
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            end = at + _LENGTH.size + _LENGTH.unpack_from(buffer, at)[0]
            if len(buffer) < end:
                break
            messages.append(marshal.loads(memoryview(buffer)[at + _LENGTH.size : end]))  # noqa: S302 - see above
            at = end
        del buffer[:at]
        return messages
