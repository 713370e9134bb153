"""Maps the end of an attempt to the outcome of its run (GRID-99, GRID-101, GRID-102, GRID-112)."""

from __future__ import annotations

import signal

from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.executors.program.wire import ProcessEnded, Stopped

__all__ = ["CANCELLED_UNSTARTED", "failure", "verdict"]

CANCELLED_UNSTARTED = Report(
    status=RunState.CANCELLED, error_code=ErrorCode.CANCELLED, error="it was cancelled before it started"
)

_STOPPED: dict[Stopped, tuple[RunState, ErrorCode, str]] = {
    "cancel": (RunState.CANCELLED, ErrorCode.CANCELLED, "it was cancelled"),
    "timeout": (RunState.FAILED, ErrorCode.RUN_TIMEOUT, "it ran for more than {:g} s"),
    "kill": (RunState.FAILED, ErrorCode.WORKER_ERROR, "the worker ended it"),
}


def failure(code: ErrorCode, text: str) -> Report:
    """Report of an attempt whose program did not start."""
    return Report(status=RunState.FAILED, error_code=code, error=text)


def verdict(ended: ProcessEnded, timeout_sec: float, spoiled: tuple[ErrorCode, str] | None = None) -> Report:
    """`spoiled` is the reason why its files could not be kept. A failure of the program itself takes precedence over
    it, unless the worker could not keep the files: then the attempt is retried in any case."""
    status, code, error = _end_of(ended, timeout_sec)
    if spoiled is not None and (status is RunState.COMPLETED or spoiled[0] is ErrorCode.WORKER_ERROR):
        status, (code, error) = RunState.FAILED, spoiled
    elif spoiled is not None:
        error = f"{error}; {spoiled[1]}"
    return Report(
        status=status,
        exit_code=ended.exit_code,
        error_code=code,
        error=error,
        stdout=ended.stdout,
        stderr=ended.stderr,
        stdout_truncated=ended.stdout_truncated,
        stderr_truncated=ended.stderr_truncated,
        started_at=ended.started_at,
        ended_at=ended.ended_at,
        run_seconds=ended.run_seconds,
    )


def _end_of(ended: ProcessEnded, timeout_sec: float) -> tuple[RunState, ErrorCode | None, str | None]:
    code = ended.exit_code or 0
    if ended.fault is not None:
        return RunState.FAILED, ErrorCode(ended.fault[0]), ended.fault[1]
    if ended.stopped is not None:
        status, why, text = _STOPPED[ended.stopped]
        return status, why, text.format(timeout_sec)
    if code > 0:
        return RunState.FAILED, ErrorCode.EXIT_NONZERO, f"it left with exit code {code}"
    if code < 0:
        return RunState.FAILED, ErrorCode.SIGNALED, f"it was killed by {_name_of(-code)}"
    return RunState.COMPLETED, None, None


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
