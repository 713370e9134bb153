"""Readable views of a run: how it ended, and all that is known of it (CLI-3, CLI-4)."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from pyoco_server.core.run_log.text import text_of
from pyoco_server.core.states import TERMINAL
from pyoco_server.doors.cli.client.output import coloured, has_colour, instant, print_fields, safe, span

if TYPE_CHECKING:
    from pyoco_server.http_client import LogLine

__all__ = [
    "NOT_RUN",
    "failure_lines",
    "print_accepted",
    "print_outcome",
    "print_run",
    "shown_line",
    "task_rows",
    "task_states",
]

NOT_RUN = "not run"
#: The innermost frame that belongs to the flow, not to the libraries below it.
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_LIBRARY = "site-packages"
_RESULT_LINES_MAX = 40
_PARAM_LENGTH_MAX = 200


def print_accepted(answer: Mapping[str, Any]) -> None:
    """Print that a run was accepted, and how to follow it."""
    run_id = str(answer["run_id"])
    click.echo(f"{coloured(str(answer['status']), sys.stdout)}  {run_id}")
    if answer.get("warning"):
        click.echo(f"  {safe(answer['warning'])}")
    click.echo(f"  to follow it: pyoco-client watch {run_id[:8]}")


def print_outcome(run: Mapping[str, Any]) -> None:
    """Print the status of a run, then its result, or its error with the task and the line in its source."""
    click.echo(_headline(run))
    for line in (*_result(run), *failure_lines(run)):
        click.echo(safe_lines(line))


def print_run(run: Mapping[str, Any]) -> None:
    """Print all that is known of a run, the most important first."""
    click.echo(_headline(run))
    print_fields(dict(_facts(run, time.time())))
    rows = list(task_rows(run))
    if rows:
        width = max(len(name) for name, _, _ in rows)
        click.echo("  tasks")
        for name, state, took in rows:
            click.echo(f"    {name:<{width}}  {coloured(state, sys.stdout)}{took}")
    for line in (*_result(run), *failure_lines(run)):
        click.echo(safe_lines(line))


def shown_line(line: LogLine) -> str:
    """Return a line of a log as text for stdout, without anything that a terminal would execute (LOG-4)."""
    return text_of(
        ts=line["ts"],
        task=line["task"],
        stream=line["stream"],
        text=line["text"],
        exc=line.get("exc"),
        cut_bytes=line["cut_bytes"],
        is_terminal=has_colour(sys.stdout),
    )


def safe_lines(text: str) -> str:
    """Return the text with control characters escaped; its lines stay lines."""
    return "\n".join(safe(line) for line in text.split("\n"))


def _headline(run: Mapping[str, Any]) -> str:
    parts = [coloured(str(run["status"]), sys.stdout), safe(run.get("flow_name", "")), str(run["run_id"])]
    began, ended = run.get("start_time"), run.get("end_time")
    if began is not None and ended is not None:
        parts.append(span(ended - began))
    return "  ".join(part for part in parts if part)


def _facts(run: Mapping[str, Any], now: float) -> Iterator[tuple[str, Any]]:
    submitted = run.get("submitted_at")
    if submitted is not None:
        yield "submitted", f"{instant(submitted)} ({span(now - submitted)} ago)"
    waiting = run.get("waiting")
    if waiting is not None:
        yield "waiting", waiting["message"]
    yield from _cancelling(run, now)
    yield "worker", run.get("worker_id")
    if (run.get("attempt") or 0) > 1:
        yield "attempt", run["attempt"]
    yield "tag", run.get("tag")
    yield "labels", [label for label in run.get("tags") or () if label != run.get("tag")]
    yield "params", " ".join(_param(name, value) for name, value in (run.get("params") or {}).items())
    yield "re-run as", run.get("rerun_ids")
    for name in ("rerun_of", "letter_id", "job_id", "client_id", "exit_code", "money_state", "artifacts"):
        value = run.get(name)
        if name == "artifacts" and isinstance(value, list):
            value = [each["name"] for each in value if isinstance(each, dict) and "name" in each]
        yield name.replace("_", " "), value


def _cancelling(run: Mapping[str, Any], now: float) -> Iterator[tuple[str, Any]]:
    """Yield the time that a cancelled run has left (CLI-10)."""
    if run.get("cancel_reason"):
        yield "cancel reason", run["cancel_reason"]
    deadline = run.get("cancel_deadline_at")
    if deadline is not None and run["status"] not in TERMINAL:
        left = deadline - now
        yield "cancelling", f"it is killed in {span(left)} unless it stops before" if left > 0 else "it is killed now"


def _param(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > _PARAM_LENGTH_MAX:
        text = text[:_PARAM_LENGTH_MAX] + "…"
    return shlex.quote(f"{name}={text}") if isinstance(value, str) else f"{name}={text}"


def task_rows(run: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield each task with its state and the time it took."""
    records = run.get("task_records") or {}
    for name, state in task_states(run).items():
        record = records.get(name) or {}
        began, ended = record.get("started_at"), record.get("ended_at")
        took = f"  {span(ended - began)}" if began is not None and ended is not None else ""
        yield safe(name), safe(state), took


def task_states(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the state of each task; those that a failed run never reached are NOT_RUN (CLI-17). O(tasks)."""
    not_run = frozenset(run.get("not_run") or ())
    return {name: NOT_RUN if name in not_run else state for name, state in (run.get("tasks") or {}).items()}


def _result(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the result of a completed run, as far as the snapshot holds it."""
    result = run.get("result")
    if run["status"] != "COMPLETED" or not isinstance(result, Mapping):
        return
    if "value" in result:
        value = result["value"]
        lines = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)).split("\n")
        shown = lines[:_RESULT_LINES_MAX] if len(lines) > _RESULT_LINES_MAX + 1 else lines
        yield "\n".join(shown)
        if len(lines) > len(shown):
            yield f"… {len(lines) - len(shown)} more lines: pyoco-client result {str(run['run_id'])[:8]}"
    elif isinstance(result.get("error"), Mapping):
        yield f"The result is not available: {result['error'].get('message')}"
    elif result.get("preview") is not None:
        yield str(result["preview"])
        yield f"… the complete result, {result.get('bytes')} bytes: pyoco-client result {str(run['run_id'])[:8]}"


def failure_lines(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the error of a run, with the task that failed and the line of its source."""
    if run["status"] != "FAILED":
        return
    reason = f" ({run['reason']})" if run.get("reason") else ""
    yield f"error{reason}: {run.get('error') or 'no error was reported'}"
    records = run.get("task_records") or {}
    for name, state in (run.get("tasks") or {}).items():
        if state == "FAILED":
            record = records.get(name) or {}
            yield f"  task {name}{_place(record)}"


def _place(record: Mapping[str, Any]) -> str:
    """Return ` at FILE:LINE in FUNCTION`, or nothing if the record has no traceback."""
    frames = _FRAME.findall(str(record.get("traceback") or ""))
    if not frames:
        return f": {record['error']}" if record.get("error") else ""
    own = [frame for frame in frames if _LIBRARY not in frame[0]]
    file, line, function = (own or frames)[-1]
    return f" at {file}:{line} in {function}"
