"""The `why` command: what a run waits for, what it is doing, or why it ended as it did."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from pyoco_server.client.connection import Asked
from pyoco_server.doors.cli.client import arguments
from pyoco_server.doors.cli.client.calling import calling
from pyoco_server.doors.cli.client.output import coloured, print_json, safe, span
from pyoco_server.doors.cli.client.run_ids import full_run_id
from pyoco_server.doors.cli.shell import Command

__all__ = ["explain", "why"]

_FIELDS = (
    "run_id",
    "status",
    "reason",
    "error",
    "error_code",
    "exit_code",
    "lost",
    "not_before",
    "waiting",
    "worker_id",
    "worker_alive",
    "attempt",
    "try",
    "max_tries",
    "tries",
    "cancel_reason",
    "earlier_attempts",
    "last_change",
)

_BECAME = {"handed_back": "was released", "task_timeout": "was stopped, because a task took too long"}
#: How much of the output of a program is shown.
_TAIL_LINES = 10


@click.command("why", cls=Command, example="pyoco-client why RUN_ID")
@arguments.run_id
@arguments.output_option("text")
@click.pass_obj
def why(asked: Asked, run_id: str, output: str) -> None:
    """Explain why a run has not started, what it is doing, or why it failed."""
    with calling(asked) as client:
        run_id = full_run_id(client, run_id)
        snapshot = client.get_run(run_id, ["records"])
    sentences = list(explain(snapshot, time.time()))
    if output == "json":
        known = {name: value for name, value in snapshot.items() if name in _FIELDS and value is not None}
        print_json({**known, "explanation": sentences})
    else:
        click.echo(f"{coloured(str(snapshot['status']), sys.stdout)}  {safe(snapshot.get('flow_name', ''))}  {run_id}")
        for sentence in sentences:
            click.echo("\n".join(f"  {safe(line)}" for line in sentence.splitlines()))


def explain(snapshot: Mapping[str, Any], now: float) -> Iterator[str]:
    """Yield sentences, the most important one first. O(tasks)."""
    status = snapshot["status"]
    if snapshot.get("kind") == "pack":
        yield from _priced(snapshot)
    elif snapshot.get("kind") == "exec" and status in {"COMPLETED", "FAILED"}:
        yield from _program(snapshot)
    elif status == "FAILED":
        yield from _failure(snapshot)
    elif status == "CANCELLED":
        yield f"It was cancelled: {snapshot.get('cancel_reason') or 'no reason was given'}."
    elif status == "COMPLETED":
        yield "It is done: all tasks that had to run have succeeded."
    elif snapshot.get("waiting") is not None:
        yield str(snapshot["waiting"]["message"])
    else:
        yield from _activity(snapshot, now)
    yield from _history(snapshot, now)


def _priced(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """Explain a priced run, which has no tasks, is never retried, and leaves no dead letter."""
    words = {"PENDING": "It waits.", "RUNNING": "A worker executes it.", "COMPLETED": "It is done."}
    waiting = snapshot.get("waiting") or {}
    failed = f"It failed: {snapshot.get('error') or 'no error was reported'}"
    if not waiting and snapshot.get("money_state") == "DISPUTED":
        words = dict.fromkeys(words, "Its money is disputed: it waits for an operator.")
    yield str(waiting.get("message") or words.get(snapshot["status"], failed))
    cost = snapshot.get("cost") or {}
    if snapshot.get("money_state") and "used_usd" in cost:
        money = str(snapshot["money_state"]).lower()
        yield f"Its money is {money}: {cost['used_usd']} USD charged, {cost.get('reserved_usd')} USD at most."


def _program(snapshot: Mapping[str, Any]) -> Iterator[str]:
    """Explain the outcome of a program, whose record has more details than its single task."""
    run_id, took = snapshot["run_id"], snapshot.get("run_seconds")
    if snapshot["status"] == "COMPLETED":
        yield "It is done" + (f", after {span(took)}." if took is not None else ".")
    else:
        code = f" ({snapshot['error_code']})" if snapshot.get("error_code") else ""
        yield f"It failed{code}: {snapshot.get('error') or 'no error was reported'}"
        lines = str(snapshot.get("stderr_tail") or "").rstrip().splitlines()[-_TAIL_LINES:]
        if lines:
            yield "The last lines of its standard error:\n" + "\n".join(f"  {line}" for line in lines)
        yield f"Its dead letter, if there is one: pyoco-client dlq list --run-id {run_id}"
        yield f"To try again: pyoco-client rerun {run_id}"
    if snapshot.get("artifacts"):
        yield f"Its files: pyoco-client program artifacts {run_id} --out DIR"


def _history(snapshot: Mapping[str, Any], now: float) -> Iterator[str]:
    """Yield the fate of earlier attempts and the last change. Older servers report neither."""
    for failed in snapshot.get("tries") or ():
        kind, error = failed.get("kind"), failed.get("error") or "no error was reported"
        yield f"Try {failed.get('try')} of {snapshot.get('max_tries')} failed ({kind}): {error}"
    earlier = [past for past in snapshot.get("earlier_attempts") or () if past.get("why") != "failed_try"]
    for past in earlier:
        ended_at = past.get("ended_at")
        ago = f", {span(now - ended_at)} ago" if ended_at is not None else ""
        became = _BECAME.get(str(past.get("why")), "was lost; last heartbeat")
        yield f"Attempt {past.get('attempt')} on {past.get('worker_id') or 'a worker'} {became}{ago}."
    if not earlier and not snapshot.get("tries") and (snapshot.get("attempt") or 0) > 1:
        yield f"This is attempt {snapshot['attempt']}: earlier ones were lost with their worker or its host."
    change = snapshot.get("last_change")
    if change is not None:
        what = str(change["what"]).replace("_", " ")
        yield f"Last change: {what} {span(now - change['at'])} ago by {_name(change['by'])}."


def _name(doer: Mapping[str, Any]) -> str:
    kind, name = doer["kind"], doer["id"]
    if kind in ("keeper", "gateway", "operator"):
        return f"the {kind}"
    if kind == "caller":
        return "a caller"
    return f"key {name}" if kind == "api_key" else str(name or "a worker")


def _failure(snapshot: Mapping[str, Any]) -> Iterator[str]:
    reason = f" ({snapshot['reason']})" if snapshot.get("reason") else ""
    yield f"It failed{reason}: {snapshot.get('error') or 'no error was reported'}"
    records = snapshot.get("task_records") or {}
    for name, state in (snapshot.get("tasks") or {}).items():
        if state == "FAILED":
            yield f"Task {name} failed: {(records.get(name) or {}).get('error') or 'no error was reported'}"
    run_id = snapshot["run_id"]
    yield f"Its dead letter, if there is one: pyoco-client dlq list --run-id {run_id}"
    yield f"To try again: pyoco-client rerun {run_id}"


def _activity(snapshot: Mapping[str, Any], now: float) -> Iterator[str]:
    worker = snapshot.get("worker_id")
    if snapshot["status"] == "CANCELLING":
        asked_at = snapshot.get("cancel_requested_at")
        since = f" {span(now - asked_at)} ago" if asked_at is not None else ""
        yield f"Its cancellation was requested{since}; " + (
            f"{worker} is stopping it." if worker else "no worker runs it."
        )
    elif worker:
        began = snapshot.get("start_time")
        yield f"{worker} runs it" + (f" since {span(now - began)}." if began is not None else ".")
    else:
        yield "No worker has taken it yet, and the server reports no reason."
    if worker and snapshot.get("worker_alive") is False:
        yield f"{worker} sends no heartbeats; another worker takes over when its claim expires."
    if snapshot.get("error"):
        yield f"Last error: {snapshot['error']}"
    for name, record in (snapshot.get("task_records") or {}).items():
        if isinstance(record, dict) and record.get("next_try_at"):
            wait = span(max(0.0, record["next_try_at"] - now))
            yield f"Task {name} waits for its try {record.get('try')}, in {wait}."
    running = [name for name, state in (snapshot.get("tasks") or {}).items() if state == "RUNNING"]
    if running:
        yield f"Running tasks: {', '.join(running)}"
