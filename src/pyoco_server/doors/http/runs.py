"""`/runs`: submit, read, cancel."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from msgspec import Meta, field
from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.explain_wait import Wait, explain_wait
from pyoco_server.actions.follow_ups import follow_ups
from pyoco_server.actions.read import WorkerFacts, read_run, worker_facts
from pyoco_server.actions.read_output import pack_result
from pyoco_server.actions.release_run import start_now
from pyoco_server.actions.submit_once import submit_once
from pyoco_server.core.run import Caller, Run, Submission
from pyoco_server.core.states import RunState
from pyoco_server.core.values.shown import not_run, shown_records, shown_value
from pyoco_server.core.waiting import waits
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.forms import read_workflow_form
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.reading import read_query
from pyoco_server.doors.http.requests import read_body, wants_records
from pyoco_server.doors.http.shapes import Answer, Body
from pyoco_server.doors.http.shapes import Request as Shape
from pyoco_server.doors.http.shown import shown_run
from pyoco_server.doors.http.state import State, caller_of, state_of
from pyoco_server.doors.http.submissions import (
    KEY_PARAMETER,
    REPLAYED,
    RunAccepted,
    RunCancelRequest,
    RunSubmitRequest,
    RunSubmitYamlRequest,
    defaults_of,
    read_cancel,
    read_delay,
    read_key,
    read_submission,
    warning_of,
)
from pyoco_server.errors import ResultNotReady, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.runs.port import Stored

__all__ = ["OPERATIONS"]

log = get_logger(__name__)


async def submit_run(request: Request) -> Response:
    state = state_of(request)
    key = read_key(request)
    ask = read_submission(await read_body(request), defaults_of(state.backend))
    return await _accept(state, caller_of(request), ask, key)


async def submit_run_yaml(request: Request) -> Response:
    state = state_of(request)
    config = state.backend.config
    key = read_key(request)
    form = await read_workflow_form(request, config.workflow_yaml_max_bytes)
    tag = config.default_tag if form.tag is None else form.tag
    delay = read_delay(form.delay, form.not_before, defaults_of(state.backend))
    # Parsing YAML takes up to tens of milliseconds of CPU time, so it runs in a thread.
    file = await asyncio.to_thread(state.backend.flow_files.read, form.workflow)
    ask = Submission(
        flow_name=form.flow_name,
        tag=tag,
        tags=(tag,),  # FLOW-86
        params=file.defaults,
        workflow_yaml=file.text,
        workflow_yaml_sha256=file.sha256,
        workflow_yaml_bytes=file.size,
        delay=delay,
        retry=form.retry,
        timeout=form.timeout,
    )
    return await _accept(state, caller_of(request), ask, key)


async def _accept(state: State, caller: Caller, ask: Submission, key: str | None) -> Response:
    accepted = await submit_once(state.backend, caller, ask, key)
    state.note_revision(accepted.stored.revision)
    headers = REPLAYED if accepted.replayed else None
    answer = RunAccepted(run_id=accepted.stored.run.run_id, status="PENDING", warning=warning_of(accepted))
    return json_answer(answer, headers=headers)


class RunQuery(Shape):
    include: Annotated[list[str], Meta(description="`records`, `full` or `all`: with task records.")] = field(
        default_factory=list
    )


async def get_run(request: Request) -> Response:
    state, asked = state_of(request), read_query(RunQuery, request.query_params).checked()
    found = await read_run(state.backend, caller_of(request), request.path_params["run_id"])
    state.note_revision(found.revision)
    facts = await worker_facts(state.backend, found.run)
    wait = await _wait(state, caller_of(request), found.run)
    bytes_max = state.backend.config.result_inline_max_bytes
    snapshot = _public(found, facts, wait, bytes_max, records=wants_records(asked.include))
    if found.run.is_pack and found.run.status is RunState.COMPLETED:
        snapshot |= await _pack_result(state, found.run, bytes_max)
    snapshot |= await _follow_ups(state, caller_of(request), found.run)
    return json_answer(snapshot)


async def _follow_ups(state: State, caller: Caller, run: Run) -> dict[str, Any]:
    """Best effort, as FLOW-93."""
    try:
        found = await follow_ups(state.backend, caller, run)
    except Unavailable as error:
        log.warning("could not read what became of a failed run", run_id=run.run_id, error=error)
        return {}
    if found is None:
        return {}
    dead_letter = {} if found.letter_id is None else {"letter_id": str(found.letter_id)}
    return {**dead_letter, "rerun_ids": found.rerun_ids}


async def _pack_result(state: State, run: Run, bytes_max: int) -> dict[str, Any]:
    """Best effort: the run can be read although the store of results does not answer."""
    try:
        value = await pack_result(state.backend, run)
    except (Unavailable, ResultNotReady) as error:
        log.warning("could not read the result of a pack to show it", run_id=run.run_id, error=error)
        return {}
    return {"result": shown_value(f"/runs/{run.run_id}/result", value, bytes_max)}


async def _wait(state: State, caller: Caller, run: Run) -> Wait | None:
    """Best effort, as FLOW-93. An index that is still being built does not cover all runs ahead."""
    if not waits(run) or not (run.waits_for_time or await state.feeder.caught_up(0)):
        return None
    return await explain_wait(state.backend, caller, run)


async def get_run_tasks(request: Request) -> Response:
    found = await read_run(state_of(request).backend, caller_of(request), request.path_params["run_id"])
    run = found.run
    tasks: dict[str, Any] = {
        "run_id": run.run_id,
        "flow_name": run.flow_name,
        "status": run.status,
        "tasks": run.tasks,
        "task_records": shown_records(run) if run.is_flow else run.task_records,
        "task_records_truncated": run.task_records_truncated,
    }
    if run.status is RunState.FAILED:
        tasks["not_run"] = not_run(run)
    return json_answer(tasks)


async def start_run(request: Request) -> Response:
    state = state_of(request)
    stored = await start_now(state.backend, caller_of(request), request.path_params["run_id"])
    state.note_revision(stored.revision)
    return json_answer(shown_run(stored.run))


async def cancel_run(request: Request) -> Response:
    state = state_of(request)
    asked = read_cancel(await read_body(request))
    run_id = request.path_params["run_id"]
    stored = await cancel(state.backend, caller_of(request), run_id, asked.reason, asked.grace_sec)
    state.note_revision(stored.revision)
    snapshot = shown_run(stored.run)
    del snapshot["task_records"]
    return json_answer(snapshot)


def _public(
    found: Stored, facts: WorkerFacts | None, wait: Wait | None, result_bytes_max: int, *, records: bool
) -> dict[str, Any]:
    """FLOW-88 to FLOW-93."""
    snapshot = shown_run(found.run, result_bytes_max)
    if not records:
        del snapshot["task_records"]
    if facts is not None:
        snapshot["worker_alive"] = facts.alive
        snapshot["worker_heartbeat_at"] = facts.heartbeat_at
        snapshot["worker_tags"] = facts.tags
        snapshot["worker_state"] = facts.state
    if wait is not None:
        snapshot["waiting"] = _waiting(wait)
    return snapshot


def _waiting(wait: Wait) -> dict[str, Any]:
    """Leave out what the caller may not see; `oldest_ahead` is null if no run is ahead."""
    oldest = wait.oldest_ahead
    ahead = {name: value for name, value in vars(oldest).items() if value is not None} if oldest is not None else None
    shown = {**vars(wait), "oldest_ahead": ahead}
    if wait.until is None:
        del shown["until"]
    return shown


_RUN = schemas.json_response(schemas.ref("RunSnapshot"), "The latest state of the run.")
_ACCEPTED = Answer(RunAccepted, "Recorded and queued.")

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/runs",
        endpoint=submit_run,
        summary="Submit a run of a named flow",
        description="200 means that the run is recorded and its job is queued; both survive a crash of the gateway.",
        parameters=(KEY_PARAMETER,),
        body=Body(RunSubmitRequest),
        answer=_ACCEPTED,
        errors=(409, 413, 422),
    ),
    Operation(
        method="POST",
        path="/runs/yaml",
        endpoint=submit_run_yaml,
        summary="Submit a run of an uploaded flow.yaml",
        parameters=(KEY_PARAMETER,),
        body=Body(RunSubmitYamlRequest, media="multipart/form-data"),
        answer=_ACCEPTED,
        errors=(409, 413, 422),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}",
        endpoint=get_run,
        summary="Read a run",
        description=(
            "For a run that no worker has taken, `waiting` gives the reason if it is known. `last_change` is the last "
            "event of the run and who caused it."
        ),
        parameters=(schemas.path_run_id,),
        query=RunQuery,
        answer=_RUN,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}/tasks",
        endpoint=get_run_tasks,
        summary="Read the tasks of a run",
        parameters=(schemas.path_run_id,),
        answer=schemas.json_response(schemas.ref("RunTasks"), "States and records of the tasks."),
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/start",
        endpoint=start_run,
        summary="Start a delayed run now",
        description="Makes a run that waits for its time due at once: a delayed one, or one that waits for its next "
        "try. 409 for any other run.",
        parameters=(schemas.path_run_id,),
        answer=_RUN,
        errors=(404, 409, 422),
    ),
    Operation(
        method="POST",
        path="/runs/{run_id}/cancel",
        endpoint=cancel_run,
        summary="Cancel a run",
        description="Requests the cancellation. A run that has ended, or is being cancelled already, is not "
        "changed, but a shorter `grace_sec` moves `cancel_deadline_at` forward. "
        "A priced run cannot be cancelled (409): it ends within its timebox.",
        parameters=(schemas.path_run_id,),
        body=Body(RunCancelRequest, required=False),
        answer=_RUN,
        errors=(404, 409, 413, 422),
    ),
)
