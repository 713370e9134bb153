"""The exceptions of Celery that have a meaning here."""

from __future__ import annotations

from typing import Any

from pyoco_server.app.failures import RunCancelled, RunTimeout
from pyoco_server.compat.celery.refusals import refusal
from pyoco_server.executors.flow.asked_retries import RetryAsked

__all__ = ["MaxRetriesExceededError", "Retry", "TaskRevokedError", "TimeoutError"]

TaskRevokedError = RunCancelled
TimeoutError = RunTimeout  # noqa: A001  (the name that programs import)


class Retry(RetryAsked):
    """`self.retry()` has been called: the try ends, and another one is made."""


class MaxRetriesExceededError(Exception):
    """`self.retry()` has been called in the last try."""


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise refusal(name, {"SoftTimeLimitExceeded": "time_limit=, which ends the process of the task"})
