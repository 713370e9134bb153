"""How an attempt at a program ended, as reported by the process that ran it (sections 5.4 and 14.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pyoco_server.core.states import RunState

__all__ = ["ErrorCode", "Report"]


class ErrorCode(StrEnum):
    """Why a run did not complete."""

    EXIT_NONZERO = "EXIT_NONZERO"
    SIGNALED = "SIGNALED"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    EXEC_NOT_FOUND = "EXEC_NOT_FOUND"
    EXEC_NOT_ALLOWED = "EXEC_NOT_ALLOWED"
    BAD_FILE_NAME = "BAD_FILE_NAME"
    INPUT_MISSING = "INPUT_MISSING"
    OUTPUT_TOO_LARGE = "OUTPUT_TOO_LARGE"
    CANCELLED = "CANCELLED"
    #: An error of the worker itself: the attempt is retried (GRID-79).
    WORKER_ERROR = "WORKER_ERROR"
    MAX_ATTEMPTS = "MAX_ATTEMPTS"
    MAX_LOST = "MAX_LOST"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The result of one finished attempt. Its files travel separately."""

    #: COMPLETED, FAILED or CANCELLED.
    status: RunState
    #: None: the program did not start. Negative: killed by that signal.
    exit_code: int | None = None
    error_code: ErrorCode | None = None
    #: One line for people.
    error: str | None = None
    #: The last bytes of each stream (GRID-100).
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    run_seconds: float | None = None
