"""`AsyncResult`: a run, seen as Celery shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyoco_server.app.failures import RequestFailed, RunCancelled, RunFailed
from pyoco_server.app.handles import RunHandle
from pyoco_server.compat.celery.refusals import RESULT, refusal, refuse_all
from pyoco_server.compat.celery.sending import label_of
from pyoco_server.core.states import TERMINAL, RunState

if TYPE_CHECKING:
    from pyoco_server.compat.celery.app import Celery

__all__ = ["AsyncResult"]

_STATES = {
    RunState.PENDING: "PENDING",
    RunState.RUNNING: "STARTED",
    RunState.CANCELLING: "STARTED",
    RunState.COMPLETED: "SUCCESS",
    RunState.FAILED: "FAILURE",
    RunState.CANCELLED: "REVOKED",
}
_NOT_FOUND = 404


class AsyncResult:
    """The run with this id, or the one that was submitted with this `task_id`.

    Its methods raise RequestFailed if there is none: an unknown id is never PENDING.
    """

    def __init__(self, id: str, *, app: Celery | None = None, handle: RunHandle[Any] | None = None) -> None:  # noqa: A002
        from pyoco_server.compat.celery.app import current_app  # noqa: PLC0415 - it needs this module

        self.id = id
        self._app = app or current_app()
        self._handle = handle

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise refusal(name, RESULT, "AsyncResult")

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED: each access asks the server."""
        snapshot = self._run().snapshot(records=True)
        state = _STATES[RunState(snapshot["status"])]
        if state == "STARTED" and snapshot.get("start_time") is None:  # it is being cancelled
            return "PENDING"
        return "RETRY" if state in {"PENDING", "STARTED"} and _waits_for_a_try(snapshot) else state

    @property
    def traceback(self) -> str | None:
        """The traceback of the task that has failed. None: none has."""
        error = self._failure()
        return error.remote_traceback if isinstance(error, RunFailed) else None

    def ready(self) -> bool:
        return self._run().status in TERMINAL

    def successful(self) -> bool:
        return self._run().status == RunState.COMPLETED

    def failed(self) -> bool:
        return self._run().status == RunState.FAILED

    def get(self, timeout: float | None = None, propagate: bool = True, **other: Any) -> Any:
        """Wait for the end and return the value; asked again, the same one.

        Raises the exception of the task, or RunFailed if that cannot be rebuilt here; `propagate=False`: returns it.
        """
        refuse_all(other, {}, "get")
        try:
            return self._run().result(timeout)
        except (RunFailed, RunCancelled) as ended:
            original, ended.__cause__ = ended.__cause__, None
            error = original or ended
            if not propagate:
                return error
            raise error from (None if error is ended else ended)

    def revoke(self, terminate: bool = False, **other: Any) -> None:
        """Cancel the run if it has not started. `terminate`: also if it has; its process is then ended."""
        refuse_all(other, {"signal": "terminate=True", "wait": "get()"}, "revoke")
        run = self._run()
        if terminate or run.status == RunState.PENDING:
            run.cancel("revoked", now=True)

    def _failure(self) -> Exception | None:
        if self._run().status not in {RunState.FAILED, RunState.CANCELLED}:
            return None
        try:
            self._run().result()
        except (RunFailed, RunCancelled) as ended:
            return ended
        return None

    def _run(self) -> RunHandle[Any]:
        """Return the handle. An id that is not of a run is looked for among the ids of submissions."""
        if self._handle is None:
            handle = self._app.app.run(self.id)
            try:
                handle.snapshot()
            except RequestFailed as error:
                items, _ = handle.list_page({"tag": label_of(self.id), "limit": 1})
                if error.status_code != _NOT_FOUND or not items:
                    raise
                handle = self._app.app.run(items[0]["run_id"])
            self._handle = handle
        return self._handle


def _waits_for_a_try(snapshot: Mapping[str, Any]) -> bool:
    waiting = snapshot.get("waiting")
    if isinstance(waiting, dict) and waiting.get("reason") == "retry":
        return True
    records = snapshot.get("task_records") or {}
    return any(record.get("next_try_at") is not None for record in records.values())
