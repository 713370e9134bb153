"""What the end of a run means for its caller: a value, or an error. No network."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyoco_server.app.failures import ResultUnavailable, RunCancelled, RunFailed
from pyoco_server.app.values import Decoder, revived
from pyoco_server.core.states import RunState, TaskState
from pyoco_server.core.values.decode import Undecodable
from pyoco_server.core.values.encode import JSON_TYPE
from pyoco_server.errors import CATALOGUE, ResultGone, ResultNotEncodable

__all__ = ["FETCH", "content_type_of", "failure_of", "inline_value", "value_of"]

#: The snapshot does not have the value: it is read on its own.
FETCH: Any = object()

_UNKNOWN_FORM = CATALOGUE[ResultNotEncodable.number].err_id
_GONE = CATALOGUE[ResultGone.number].err_id


def inline_value(run_id: str, snapshot: Mapping[str, Any], decoder: Decoder) -> Any:
    """Return the value in the snapshot of a COMPLETED run, or FETCH. Raises ResultUnavailable."""
    result = snapshot.get("result")
    if not isinstance(result, dict):
        return FETCH
    if isinstance(error := result.get("error"), dict):
        detail = f"{error.get('message', '')} {error.get('detail', '')}".strip()
        raise ResultUnavailable(run_id, detail, str(error.get("err_id", _GONE)))
    if "value" not in result:
        return FETCH
    try:
        return decoder.of_document(result["value"])
    except Undecodable as error:
        raise ResultUnavailable(run_id, str(error), _UNKNOWN_FORM) from error


def value_of(run_id: str, data: bytes, content_type: str, decoder: Decoder) -> Any:
    """Return the value of stored bytes. Raises ResultUnavailable."""
    try:
        return decoder.of_bytes(data, content_type)
    except Undecodable as error:
        raise ResultUnavailable(run_id, str(error), _UNKNOWN_FORM) from error


def content_type_of(snapshot: Mapping[str, Any]) -> str:
    """Return the type of the stored value."""
    result = snapshot.get("result")
    found = result.get("content_type") if isinstance(result, dict) else None
    return found if isinstance(found, str) else JSON_TYPE


def failure_of(run_id: str, snapshot: Mapping[str, Any]) -> RunFailed | RunCancelled:
    """Return the error for a run that has not completed. `snapshot` has the task records."""
    if snapshot["status"] == RunState.CANCELLED:
        return RunCancelled(run_id, reason=snapshot.get("cancel_reason") or snapshot.get("error"))
    task, record = _failed_task(snapshot)
    error = RunFailed(
        run_id,
        task=task,
        reason=snapshot.get("reason"),
        error=snapshot.get("error"),
        remote_traceback=record.get("traceback"),
        tries=snapshot.get("tries") or record.get("tries") or (),
    )
    error.__cause__ = _original(record.get("exception"))
    return error


def _failed_task(snapshot: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Return the task that failed first, and its record."""
    records = snapshot.get("task_records") or {}
    failed = {name: record for name, record in records.items() if record.get("state") == TaskState.FAILED}
    if not failed:
        return None, {}
    return min(failed.items(), key=lambda item: item[1].get("ended_at") or 0.0)


def _original(form: Any) -> BaseException | None:
    """Return the exception that a task has raised, if its class can be imported here and takes the same arguments."""
    if not isinstance(form, dict) or "args" not in form:
        return None
    try:
        kind = _class_named(str(form.get("module", "")), str(form.get("name", "")))
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            return None
        args = revived(form["args"])
        return kind(*args) if isinstance(args, list) else None
    except (Exception, SystemExit):  # noqa: BLE001  (an import may raise anything; the remote traceback is still there)
        return None


def _script(module: str) -> Any:
    """Return the program that runs here if that is the module: importing it would run it a second time."""
    program = sys.modules.get("__main__")
    spec, file = getattr(program, "__spec__", None), getattr(program, "__file__", None)
    name = spec.name if spec is not None else Path(file).stem if file else None
    return program if name == module else None


def _class_named(module: str, name: str) -> Any:
    found: Any = _script(module) or sys.modules.get(module) or importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
