"""The frame format: bytes in, values out (section 3). No socket, no clock.

    4 len | 1 type | 16 msgId | 16 corrId | 2 subjectLen | subject | 4 payloadLen | payload      little-endian

`len` counts everything after itself. UUIDs are in network order (GRID-15).
"""

from __future__ import annotations

import re
import struct
import uuid
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from pyoco_server.core.programs.faults import Code, GridRefused

__all__ = ["LENGTH_MAX", "LENGTH_MIN", "NIL", "SUBJECT_BYTES_MAX", "Decoder", "Frame", "FrameError", "Type", "encode"]

#: GRID-13, GRID-14: the bounds of `len`.
LENGTH_MIN: Final = 39
LENGTH_MAX: Final = 4 * 1024 * 1024
SUBJECT_BYTES_MAX: Final = 255
#: A corrId that refers to no message.
NIL: Final = uuid.UUID(int=0)

_LENGTH = struct.Struct("<I")
#: len, type, msgId, corrId, subjectLen: everything before the subject.
_HEAD = struct.Struct("<IB16s16sH")
_LENGTH_BYTES = _LENGTH.size
#: White space and control characters (GRID-19).
_UNFIT = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


class Type(IntEnum):
    """The type of a frame (section 4). A frame with an unknown code is valid, and is answered with UNKNOWN_TYPE."""

    HELLO_CLIENT = 0x01
    HELLO_WORKER = 0x02
    SUBMIT_JOB = 0x03
    ASSIGN_JOB = 0x04
    ACK_JOB = 0x05
    CREDIT = 0x06
    RESULT = 0x07
    NOT_LEADER = 0x08
    ERROR = 0x09
    HELLO_ACK = 0x0A
    SUBMIT_ACK = 0x0B
    HEARTBEAT = 0x0C
    CANCEL_JOB = 0x0D
    OBJECT_PUT = 0x0E
    OBJECT_GET = 0x0F
    OBJECT_CHUNK = 0x10
    OBJECT_ACK = 0x11
    SETTLED = 0x12
    #: The capability `logs` (LOG-30). Without it these codes are as unknown as before.
    LOG_CHUNK = 0x20
    LOG_CREDIT = 0x21


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. `type` may be an unknown code."""

    type: int
    #: Not in the repr: it contains keys, arguments and files (GRID-169).
    payload: bytes = field(repr=False)
    msg_id: uuid.UUID
    corr_id: uuid.UUID = NIL
    subject: str = ""


class FrameError(GridRefused):
    """Invalid bytes (BAD_FRAME or FRAME_TOO_LARGE), or a frame with an invalid subject (BAD_SUBJECT)."""

    def __init__(self, code: Code, message: str, *, msg_id: uuid.UUID = NIL) -> None:
        super().__init__(code, message)
        #: The id of the refused frame; NIL if it could not be read.
        self.msg_id = msg_id

    @property
    def is_fatal(self) -> bool:
        """Whether the end of the frame is unknown, so that nothing after it can be read."""
        return self.code is not Code.BAD_SUBJECT


def encode(frame: Frame) -> bytes:
    """Encode a frame; O(payload). Raises FrameError: FRAME_TOO_LARGE (GRID-21) or BAD_SUBJECT."""
    subject = frame.subject.encode("utf-8", "surrogatepass")
    problem = _subject_problem(subject, frame.subject)
    if problem is not None:
        raise FrameError(Code.BAD_SUBJECT, problem, msg_id=frame.msg_id)
    length = LENGTH_MIN + len(subject) + len(frame.payload)
    if length > LENGTH_MAX:
        raise FrameError(Code.FRAME_TOO_LARGE, _too_large(length), msg_id=frame.msg_id)
    head = _HEAD.pack(length, frame.type, frame.msg_id.bytes, frame.corr_id.bytes, len(subject))
    return b"".join((head, subject, _LENGTH.pack(len(frame.payload)), frame.payload))


class Decoder:
    """Incremental decoder. Any split of the same bytes gives the same frames (GRID-16). Buffers one incomplete frame.

    Work and memory are O(bytes fed), even if fed one byte at a time. After a fatal error all input is ignored.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_dead = False

    @property
    def held(self) -> int:
        """Return the number of bytes buffered of an incomplete frame; 0 between two frames."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[Frame | FrameError]:
        """Return the frames completed by this data, in order, with a FrameError in place of an invalid one. Never
        raises."""
        found: list[Frame | FrameError] = []
        if self._is_dead:
            return found
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= _LENGTH_BYTES:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            problem = _length_problem(length)  # GRID-17: as soon as the four bytes have arrived
            if problem is not None:
                return [*found, self._die(problem)]
            end = start + _LENGTH_BYTES + length
            if len(self._buffer) < end:
                break
            item = self._parse(start, end)
            if isinstance(item, FrameError) and item.is_fatal:
                return [*found, self._die(item)]
            found.append(item)
            start = end
        del self._buffer[:start]
        return found

    def _die(self, error: FrameError) -> FrameError:
        self._is_dead = True
        self._buffer = bytearray()
        return error

    def _parse(self, start: int, end: int) -> Frame | FrameError:
        """Parse a complete frame (GRID-18, GRID-19)."""
        _, code, msg_id, corr_id, subject_size = _HEAD.unpack_from(self._buffer, start)
        after = start + _HEAD.size + subject_size
        if after + _LENGTH_BYTES > end:
            return FrameError(Code.BAD_FRAME, "the subject passes the end of the frame")
        (payload_size,) = _LENGTH.unpack_from(self._buffer, after)
        begin = after + _LENGTH_BYTES
        if begin + payload_size != end:
            return FrameError(Code.BAD_FRAME, "the lengths inside the frame do not add up to its length")
        raw = bytes(self._buffer[start + _HEAD.size : after])
        subject = raw.decode("utf-8", "replace")
        problem = _subject_problem(raw, subject)
        if problem is not None:
            return FrameError(Code.BAD_SUBJECT, problem, msg_id=uuid.UUID(bytes=msg_id))
        with memoryview(self._buffer) as view:
            payload = bytes(view[begin:end])
        return Frame(code, payload, uuid.UUID(bytes=msg_id), uuid.UUID(bytes=corr_id), subject)


def _length_problem(length: int) -> FrameError | None:
    if length < LENGTH_MIN:
        return FrameError(Code.BAD_FRAME, f"a frame of length {length} cannot be: the least is {LENGTH_MIN}")
    if length > LENGTH_MAX:
        return FrameError(Code.FRAME_TOO_LARGE, _too_large(length))
    return None


def _too_large(length: int) -> str:
    return f"a frame of length {length} is above the limit of {LENGTH_MAX}"


def _subject_problem(raw: bytes, subject: str) -> str | None:
    """Return why a subject is invalid, or None. `subject` is the decoded `raw`. Most subjects are short and ASCII, or
    empty."""
    if not raw:
        return None
    if len(raw) > SUBJECT_BYTES_MAX:
        return f"a subject has at most {SUBJECT_BYTES_MAX} bytes"
    if _UNFIT.search(subject):
        return "a subject may not contain white space or control characters"
    return None if raw.isascii() or _is_utf8(raw) else "a subject must be UTF-8"


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
