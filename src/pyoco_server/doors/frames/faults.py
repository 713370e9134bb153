"""What went wrong, as a peer is told of it. The only place where an error meets an Error frame."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from uuid import UUID

from pyoco_server.core.frames.codec import NIL, Frame, Type
from pyoco_server.core.frames.messages import ErrorMessage
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.errors import (
    ArtifactExpired,
    NotFound,
    PyocoError,
    QueueFull,
    RunNotEnded,
    SnapshotTooLargeError,
    TooLarge,
    Unavailable,
)
from pyoco_server.frames.wire import fresh
from pyoco_server.logs import get_logger

__all__ = ["PROTOCOL_ERRORS", "ErrorCount", "Leave", "as_refusal", "error_frame"]

log = get_logger(__name__)

#: Errors of a peer that does not keep to the protocol. The others may happen to anybody.
PROTOCOL_ERRORS = frozenset(Code) - {
    Code.JOB_ID_CONFLICT,
    Code.FORBIDDEN,
    Code.NOT_FOUND,
    Code.QUEUE_FULL,
    Code.UNAVAILABLE,
    Code.TOO_MANY_CONNECTIONS,
    Code.INTERNAL,
}

#: The nearest class wins; what is not here is a defect of ours.
_CODES: dict[type[PyocoError], Code] = {
    QueueFull: Code.QUEUE_FULL,
    Unavailable: Code.UNAVAILABLE,
    NotFound: Code.NOT_FOUND,
    ArtifactExpired: Code.NOT_FOUND,
    RunNotEnded: Code.NOT_FOUND,
    TooLarge: Code.TOO_LARGE,
    SnapshotTooLargeError: Code.TOO_LARGE,
}
_TEXTS = {
    Code.QUEUE_FULL: "the queue is full",
    Code.UNAVAILABLE: "not known whether it was done: NATS did not answer",
    Code.NOT_FOUND: "there is no such thing",
    Code.TOO_LARGE: "too large",
}


class Leave(Exception):
    """The connection is to be closed, for one of the reasons of section 26.3."""

    def __init__(self, reason: str, error: GridRefused | None = None) -> None:
        super().__init__(reason)
        self.reason, self.error = reason, error
        #: Of the frame that led to it.
        self.corr_id = NIL


def as_refusal(error: PyocoError, job_id: str | None = None) -> GridRefused:
    """Never with the error's own text, which is for operators (GRID-169)."""
    if isinstance(error, GridRefused):
        if error.job_id is None:
            error.job_id = job_id
        return error
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), None)
    if code is None:
        log.error("a request failed", job_id=job_id, error=error)
        return GridRefused(Code.INTERNAL, "something went wrong here; the log says what", job_id=job_id)
    log.info("a request was not served", job_id=job_id, code=code, why=str(error))
    return GridRefused(code, _TEXTS[code], job_id=job_id)


def error_frame(error: GridRefused, corr_id: UUID = NIL) -> Frame:
    """Section 26.1: BAD_SCHEMA comes with the name of the field."""
    if error.field is not None and error.field not in error.message:
        error = GridRefused(error.code, f"{error.field}: {error.message}", field=error.field, job_id=error.job_id)
    return fresh(Type.ERROR, ErrorMessage.of(error).to_payload(), corr_id=corr_id)


class ErrorCount:
    """GRID-35: ten protocol errors within a minute are too many."""

    MOST, SECONDS = 10, 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=self.MOST)

    def add(self) -> bool:
        """True: this one was too many."""
        now = self._clock()
        self._times.append(now)
        return len(self._times) == self.MOST and now - self._times[0] < self.SECONDS
