"""`/runs`: submit, read, list, cancel."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pyoco_server.actions.cancel import cancel
from pyoco_server.actions.list_runs import list_runs, list_whole_runs
from pyoco_server.actions.read import WorkerFacts, read_run, worker_facts
from pyoco_server.actions.submit import submit
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.snapshot import to_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.doors.http import schemas
from pyoco_server.doors.http.answers import json_answer
from pyoco_server.doors.http.forms import read_workflow_form
from pyoco_server.doors.http.operations import Operation
from pyoco_server.doors.http.requests import (
    check_flow_name,
    check_tag,
    read_body,
    read_list_query,
    read_reason,
    read_submission,
    wants_records,
)
from pyoco_server.doors.http.state import State, caller_of, state_of
from pyoco_server.ports.index.port import Summary
from pyoco_server.ports.runs.port import Stored

__all__ = ["OPERATIONS"]


async def submit_run(request: Request) -> Response:
    state = state_of(request)
    ask = read_submission(await read_body(request), state.backend.config.default_tag)
    return await _accept(state, caller_of(request), ask)


async def submit_run_yaml(request: Request) -> Response:
    state = state_of(request)
    config = state.backend.config
    form = await read_workflow_form(request, config.workflow_yaml_max_bytes)
    tag = config.default_tag if form.tag is None else form.tag
    check_flow_name(form.flow_name)
    check_tag(tag)
    # Reading YAML is processor work of up to tens of milliseconds: not on the event loop.
    file = await asyncio.to_thread(state.backend.flow_files.read, form.workflow)
    ask = Submission(
        flow_name=form.flow_name,
        tag=tag,
        tags=(tag,),  # FLOW-86
        params=file.defaults,
        workflow_yaml=file.text,
        workflow_yaml_sha256=file.sha256,
        workflow_yaml_bytes=file.size,
    )
    return await _accept(state, caller_of(request), ask)


async def _accept(state: State, caller: Caller, ask: Submission) -> Response:
    stored = await submit(state.backend, caller, ask)
    state.written(stored.revision)
    return json_answer({"run_id": stored.run.run_id, "status": "PENDING"})


async def get_run(request: Request) -> Response:
    state = state_of(request)
    found = await read_run(state.backend, caller_of(request), request.path_params["run_id"])
    facts = await worker_facts(state.backend, found.run)
    return json_answer(_public(found, facts, records=wants_records(request.query_params)))


async def get_run_tasks(request: Request) -> Response:
    found = await read_run(state_of(request).backend, caller_of(request), request.path_params["run_id"])
    run = found.run
    return json_answer(
        {
            "run_id": run.run_id,
            "flow_name": run.flow_name,
            "status": run.status,
            "tasks": run.tasks,
            "task_records": run.task_records,
            "task_records_truncated": run.task_records_truncated,
        }
    )


async def get_runs(request: Request) -> Response:
    state = state_of(request)
    asked = read_list_query(request.query_params)
    await state.settled()
    if asked.whole:
        runs = await list_whole_runs(state.backend, caller_of(request), asked.wanted, asked.limit)
        return json_answer([to_snapshot(run) for run in runs])
    lines = await list_runs(state.backend, caller_of(request), asked.wanted, asked.limit)
    return json_answer([_line(line) for line in lines])


async def cancel_run(request: Request) -> Response:
    state = state_of(request)
    reason = read_reason(await read_body(request))
    stored = await cancel(state.backend, caller_of(request), request.path_params["run_id"], reason)
    state.written(stored.revision)
    snapshot = to_snapshot(stored.run)
    del snapshot["task_records"]
    return json_answer(snapshot)


def _public(found: Stored, facts: WorkerFacts | None, *, records: bool) -> dict[str, Any]:
    """FLOW-88 to FLOW-93."""
    snapshot = to_snapshot(found.run)
    if not records:
        del snapshot["task_records"]
    if facts is not None:
        snapshot["worker_alive"] = facts.alive
        snapshot["worker_heartbeat_at"] = facts.heartbeat_at
        snapshot["worker_tags"] = facts.tags
        snapshot["worker_state"] = facts.state
    return snapshot


def _line(summary: Summary) -> dict[str, Any]:
    """FLOW-109: what is not known is left out."""
    return {name: value for name, value in asdict(summary).items() if value is not None}


_RUN = schemas.json_response(schemas.ref("RunSnapshot"), "The latest state of the run.")
_ACCEPTED = schemas.json_response(schemas.ref("RunAccepted"), "Recorded and queued.")
_TEXT = {"type": "string"}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/runs",
        endpoint=submit_run,
        summary="Submit a run of a named flow",
        description="200 means that the run is recorded and its job is queued; both survive a crash of the gateway.",
        body=schemas.json_body(schemas.ref("RunSubmitRequest")),
        answer=_ACCEPTED,
        errors=(413, 422),
    ),
    Operation(
        method="POST",
        path="/runs/yaml",
        endpoint=submit_run_yaml,
        summary="Submit a run of an uploaded flow.yaml",
        body={
            "required": True,
            "content": {"multipart/form-data": {"schema": schemas.ref("RunSubmitYamlRequest")}},
        },
        answer=_ACCEPTED,
        errors=(413, 422),
    ),
    Operation(
        method="GET",
        path="/runs",
        endpoint=get_runs,
        summary="List runs, newest update first",
        parameters=(
            schemas.query("status", {"type": "string", "enum": list(RunState)}, "Exact status."),
            schemas.query("flow", _TEXT, "Exact flow name."),
            schemas.query("tag", _TEXT, "The routing tag, or one of the labels."),
            schemas.query("kind", {"type": "string", "enum": ["flow", "exec", "pack"]}, "Kind of run."),
            schemas.query(
                "workflow_yaml_sha256", {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"}, "Runs of this flow.yaml."
            ),
            schemas.query("limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}, "How many."),
            schemas.query(
                "include",
                {"type": "array", "items": _TEXT},
                "`full`, `all` or `records`: whole snapshots instead of summaries.",
            ),
        ),
        answer=schemas.json_response(
            schemas.array_of({"anyOf": [schemas.ref("RunSummary"), schemas.ref("RunSnapshot")]}), "The newest runs."
        ),
        errors=(422,),
    ),
    Operation(
        method="GET",
        path="/runs/{run_id}",
        endpoint=get_run,
        summary="Read a run",
        parameters=(
            schemas.path_run_id,
            schemas.query(
                "include", {"type": "array", "items": _TEXT}, "`records`, `full` or `all`: with task records."
            ),
        ),
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
        path="/runs/{run_id}/cancel",
        endpoint=cancel_run,
        summary="Ask for a run to be stopped",
        description="A run that has ended, or is being cancelled already, stays as it is.",
        parameters=(schemas.path_run_id,),
        body=schemas.json_body(schemas.ref("RunCancelRequest"), required=False),
        answer=_RUN,
        errors=(404, 413, 422),
    ),
)
