"""Error codes of refused requests: each code means the same at every door (section 26.2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyoco_server.errors import PyocoError

__all__ = ["FACTS", "Code", "CodeFacts", "GridRefused"]


class Code(StrEnum):
    BAD_FRAME = "BAD_FRAME"
    FRAME_TOO_LARGE = "FRAME_TOO_LARGE"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    BAD_STATE = "BAD_STATE"
    BAD_CREDIT = "BAD_CREDIT"
    BAD_OBJECT = "BAD_OBJECT"
    BAD_JSON = "BAD_JSON"
    BAD_SCHEMA = "BAD_SCHEMA"
    BAD_HELLO = "BAD_HELLO"
    BAD_SUBJECT = "BAD_SUBJECT"
    BAD_EXEC_NAME = "BAD_EXEC_NAME"
    BAD_JOB_ID = "BAD_JOB_ID"
    BAD_FILE_NAME = "BAD_FILE_NAME"
    CLIENT_ID_MISMATCH = "CLIENT_ID_MISMATCH"
    JOB_ID_CONFLICT = "JOB_ID_CONFLICT"
    TOO_LARGE = "TOO_LARGE"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    NOT_FOUND = "NOT_FOUND"
    QUEUE_FULL = "QUEUE_FULL"
    UNAVAILABLE = "UNAVAILABLE"
    TOO_MANY_CONNECTIONS = "TOO_MANY_CONNECTIONS"
    INTERNAL = "INTERNAL"


@dataclass(frozen=True)
class CodeFacts:
    """Retry behaviour and HTTP status of a code."""

    #: Whether the same request may succeed later.
    retry: bool
    retry_after_ms: int | None
    #: The HTTP status; None: the code is used in frames only.
    http: int | None


_LATER = {
    Code.QUEUE_FULL: CodeFacts(True, 1_000, 429),
    Code.UNAVAILABLE: CodeFacts(True, 1_000, 503),
    Code.TOO_MANY_CONNECTIONS: CodeFacts(True, 5_000, 503),
    Code.INTERNAL: CodeFacts(True, 1_000, 500),
}
_HTTP = {
    Code.JOB_ID_CONFLICT: 409,
    Code.TOO_LARGE: 413,
    Code.UNAUTHENTICATED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
}
_FRAMES_ALONE = frozenset(list(Code)[: list(Code).index(Code.BAD_JSON)])

FACTS: dict[Code, CodeFacts] = {
    code: _LATER.get(code) or CodeFacts(False, None, None if code in _FRAMES_ALONE else _HTTP.get(code, 422))
    for code in Code
}


class GridRefused(PyocoError):
    """A request about programs was refused; nothing changed."""

    #: Its message is one line for people and never repeats submitted content (GRID-169).
    number = 44
    phrase = "job refused"

    def __init__(self, code: Code, message: str, *, field: str | None = None, job_id: str | None = None) -> None:
        super().__init__(f"{code}: {message}"[:512])
        self.code, self.message, self.field, self.job_id = code, message[:512], field, job_id

    @property
    def facts(self) -> CodeFacts:
        return FACTS[self.code]
