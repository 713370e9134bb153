"""What a handle of a run raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyoco_server.errors import CATALOGUE, PyocoError, ResultNotReady

if TYPE_CHECKING:
    from pyoco_server.app.run_set import RunSet

__all__ = ["RequestFailed", "ResultUnavailable", "RunCancelled", "RunFailed", "RunTimeout"]

_NO_RESULT = CATALOGUE[ResultNotReady.number].err_id


class RequestFailed(PyocoError):
    """The server has refused a request, or could not be reached."""

    def __init__(self, message: str, *, err_id: str | None = None, status_code: int | None = None) -> None:
        super().__init__(f"{err_id}: {message}" if err_id else message)
        #: None if there was no answer, or if it did not come from a gateway.
        self.err_id = err_id
        #: None: no answer.
        self.status_code = status_code
        #: Of `map`: the runs that were accepted although another one was refused.
        self.accepted: RunSet[Any] | None = None


class _NoValue(PyocoError):
    """Base of the reasons why a run has no value."""

    def __init__(self, run_id: str, message: str, err_id: str = _NO_RESULT) -> None:
        super().__init__(f"{err_id}: {message}")
        self.run_id, self.err_id = run_id, err_id


class RunFailed(_NoValue):
    """The run has failed."""

    def __init__(
        self,
        run_id: str,
        *,
        task: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        remote_traceback: str | None = None,
        tries: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        where = f" in task {task}" if task else ""
        why = f" ({reason})" if reason else ""
        super().__init__(run_id, f"run {run_id} is FAILED{why}{where}: {error or 'without an error text'}")
        #: The task that has failed. None: the run failed outside of a task.
        self.task = task
        self.reason, self.error, self.remote_traceback = reason, error, remote_traceback
        #: The failed tries, as in a snapshot.
        self.tries = list(tries)


class RunCancelled(_NoValue):
    """The run was cancelled."""

    def __init__(self, run_id: str, *, reason: str | None = None) -> None:
        super().__init__(run_id, f"run {run_id} is CANCELLED" + (f": {reason}" if reason else ""))
        self.reason = reason


class RunTimeout(PyocoError, TimeoutError):
    """The wait ended before the run did. The run continues."""

    def __init__(self, run_id: str, message: str) -> None:
        super().__init__(message)
        self.run_id = run_id


class ResultUnavailable(_NoValue):
    """The run has completed, and its value cannot be read: it was not kept, or has a form that is unknown here."""
