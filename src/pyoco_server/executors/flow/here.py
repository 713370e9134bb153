"""Runs a flow in the calling thread, without a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco.core.models import Flow, RunContext, RunStatus, TaskState

from pyoco_server.executors.flow.engine import SILENCE, TryingEngine
from pyoco_server.executors.flow.outputs import ends_of
from pyoco_server.executors.flow.straight import straight
from pyoco_server.executors.flow.task_tries import TaskTries
from pyoco_server.executors.flow.terms import check_tasks

__all__ = ["run_here"]


def run_here(flow: Flow, params: Mapping[str, Any]) -> Any:
    """Run the flow and return its value (RES-1). Tasks are tried as their policies say; timeouts do not apply, because
    a thread cannot be stopped. Raises what a task raises."""
    check_tasks(flow)
    context = RunContext(status=RunStatus.RUNNING)
    tries = TaskTries(context, {}, lambda _: None)
    TryingEngine(SILENCE, tries).run(straight(flow), params=dict(params), run_context=context)
    records = context.task_records
    succeeded = {name for name, state in context.tasks.items() if state is TaskState.SUCCEEDED}
    states = {name: str(state.value) for name, state in context.tasks.items()}
    ends = ends_of(flow, states, {name: records[name].ended_at or 0.0 for name in succeeded}) or []
    if len(ends) == 1:
        return records[ends[0]].output if ends[0] in succeeded else None
    return {name: records[name].output for name in ends if name in succeeded} if ends else None
