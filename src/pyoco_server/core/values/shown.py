"""The values of a run in its public form, and where a reader finds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState, TaskState
from pyoco_server.core.values.encode import JSON_TYPE
from pyoco_server.core.values.kept import InRecord, InStore, NotKept, Where, in_record, read_entry
from pyoco_server.errors import CATALOGUE

__all__ = [
    "RESULT_BYTES_MAX",
    "not_run",
    "output_of",
    "program_result",
    "result_of",
    "shown_records",
    "shown_result",
    "shown_value",
]

#: The default of PYOCO_RESULT_INLINE_MAX_BYTES.
RESULT_BYTES_MAX = 16_384
#: A value is missing in its record: the run had too many of them, or ended without a report.
_NOT_KEPT = NotKept(55, "the run has more outputs than its record can list")
_LEFT_OUT = NotKept(55, "it was left out of the record for its size")
_NEVER_REPORTED = NotKept(56, "the process that executed the task ended before it could report the value")


def result_of(run: Run) -> Where | None:
    """Return the result of a COMPLETED run. None: it has none, because a worker of an earlier version ended it."""
    if run.status is not RunState.COMPLETED:
        return None
    if run.is_exec:
        return program_result(run)
    entry = run.kept_values.get("result")
    if isinstance(entry, dict) and isinstance(name := entry.get("task"), str):
        return output_of(run, name)
    return read_entry(entry)


def program_result(run: Run) -> Where | None:
    """RES-2: what a program has printed, and the files it has left."""
    program = run.program
    if program is None:
        return None
    artifacts = [
        {
            "name": each.name,
            "size": each.size,
            "sha256": each.sha256,
            "href": f"/runs/{run.run_id}/artifacts/{each.name}",
        }
        for each in program.artifacts
    ]
    return in_record(
        {
            "exit_code": program.exit_code,
            "stdout_tail": program.stdout_tail or "",
            "stderr_tail": program.stderr_tail or "",
            "artifacts": artifacts,
        }
    )


def output_of(run: Run, task: str) -> Where | None:
    """Return the output of a task that has succeeded. None: its run has not ended, and the record does not hold it."""
    entries = run.kept_values.get("outputs")
    entry = read_entry(entries.get(task)) if isinstance(entries, dict) else None
    if entry is not None:
        return entry
    record = run.task_records.get(task)
    if isinstance(record, dict) and "output" in record and not record.get("output_truncated"):
        return in_record(record["output"])
    if not run.is_terminal:
        return None
    if run.kept_values:
        return _NOT_KEPT
    return _LEFT_OUT if run.task_records_truncated else _NEVER_REPORTED


def not_run(run: Run) -> list[str]:
    """Return the tasks of a FAILED run that were never reached (CLI-17)."""
    return [name for name, state in run.tasks.items() if state == TaskState.PENDING]


def shown_result(run: Run, bytes_max: int) -> dict[str, Any] | None:
    """RES-3. None: the run has no result, or it is that of a pack, which only its owner may read."""
    found = result_of(run)
    return shown_value(f"/runs/{run.run_id}/result", found, bytes_max) if found is not None else None


def shown_value(href: str, found: Where, bytes_max: int) -> dict[str, Any]:
    if isinstance(found, NotKept):
        return {"href": href, "truncated": True, "error": _error(found)}
    shown = _reference(href, found)
    if isinstance(found, InRecord) and found.content_type == JSON_TYPE and found.size <= bytes_max:
        try:
            return shown | {"value": _exact(found.data), "truncated": False}
        except (ValueError, RecursionError):  # a number of thousands of digits, or half of a surrogate pair
            pass
    return shown | {"preview": found.preview, "truncated": True}


def _exact(data: bytes) -> Any:
    """Decode JSON that can be written as UTF-8 again. Raises ValueError."""
    value = json.loads(data)
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _reference(href: str, found: InRecord | InStore) -> dict[str, Any]:
    return {"href": href, "content_type": found.content_type, "bytes": found.size, "sha256": found.sha256}


def _error(found: NotKept) -> dict[str, Any]:
    text = CATALOGUE.get(found.number, CATALOGUE[56])
    return {"err_id": text.err_id, "message": f"{text.en} {found.detail}", "message_ja": text.ja}


def shown_records(run: Run) -> Mapping[str, Any]:
    """RES-4: mark each incomplete output, and say where it is or why it was not kept. O(tasks)."""
    return {name: _shown_record(run, name, record) for name, record in run.task_records.items()}


def _shown_record(run: Run, name: str, record: Any) -> Any:
    if not isinstance(record, dict) or record.get("state") != TaskState.SUCCEEDED:
        return record
    if "output" in record and not record.get("output_truncated"):
        return record
    shown = record | {"output_truncated": True}
    found = output_of(run, name)
    if isinstance(found, NotKept):
        return shown | {"output_error": _error(found)}
    if found is not None:
        shown["output_ref"] = _reference(f"/runs/{run.run_id}/outputs/{quote(name, safe='')}", found)
        shown.setdefault("output", found.preview)
    return shown
