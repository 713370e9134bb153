"""Maps errors to Error frames. The only place that does."""

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

#: Errors of a peer that violates the protocol. The others may occur with any peer.
PROTOCOL_ERRORS = frozenset(Code) - {
    Code.JOB_ID_CONFLICT,
    Code.FORBIDDEN,
    Code.NOT_FOUND,
    Code.QUEUE_FULL,
    Code.UNAVAILABLE,
    Code.TOO_MANY_CONNECTIONS,
    Code.INTERNAL,
}

#: The nearest class wins; an error missing here is a bug and becomes INTERNAL.
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
    """The connection must be closed, for one of the reasons of section 26.3."""

    def __init__(self, reason: str, error: GridRefused | None = None) -> None:
        super().__init__(reason)
        self.reason, self.error = reason, error
        #: Of the frame that caused it.
        self.corr_id = NIL


def as_refusal(error: PyocoError, job_id: str | None = None) -> GridRefused:
    """Return the error as a refusal, without its own text, which is for operators (GRID-169)."""
    if isinstance(error, GridRefused):
        if error.job_id is None:
            error.job_id = job_id
        return error
    code = next((_CODES[cls] for cls in type(error).__mro__ if cls in _CODES), None)
    if code is None:
        log.error("request failed", job_id=job_id, error=error)
        return GridRefused(Code.INTERNAL, "something went wrong here; the log says what", job_id=job_id)
    log.info("request not served", job_id=job_id, code=code, why=str(error))
    return GridRefused(code, _TEXTS[code], job_id=job_id)


def error_frame(error: GridRefused, corr_id: UUID = NIL) -> Frame:
    """Build an Error frame (section 26.1). BAD_SCHEMA contains the name of the field."""
    if error.field is not None and error.field not in error.message:
        error = GridRefused(error.code, f"{error.field}: {error.message}", field=error.field, job_id=error.job_id)
    return fresh(Type.ERROR, ErrorMessage.of(error).to_payload(), corr_id=corr_id)


class ErrorCount:
    """Counts protocol errors: ten within a minute are too many (GRID-35)."""

    MOST, SECONDS = 10, 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=self.MOST)

    def add(self) -> bool:
        """Count an error. Returns True if it was one too many."""
        now = self._clock()
        self._times.append(now)
        return len(self._times) == self.MOST and now - self._times[0] < self.SECONDS
