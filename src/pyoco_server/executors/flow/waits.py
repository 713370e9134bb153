"""Whether a run waits for next tries of its tasks, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Set

from pyoco.core.models import Flow, Task, TaskState

__all__ = ["only_waits"]

#: The threads of the engine for one run: a task beyond them has none before another one ends.
_THREADS = 8


def only_waits(flow: Flow, states: Mapping[str, TaskState], waits: Set[str]) -> bool:
    """Return whether all tasks that could go on are among `waits`, which wait for their next tries.

    False while a task is executed, or is about to be. O(tasks and dependencies).
    """
    if not waits or flow.has_control_flow():  # such a flow executes one task at a time
        return bool(waits)
    return len(waits) >= _THREADS or not any(
        _is_active(task, flow, states) for task in flow.tasks if task.name not in waits
    )


def _is_active(task: Task, flow: Flow, states: Mapping[str, TaskState]) -> bool:
    state = states.get(task.name)
    if state is TaskState.FAILED:
        return bool(task.fail_policy == "stop")  # which ends the run
    if state is not TaskState.PENDING:
        return state is TaskState.RUNNING
    needed = [states.get(each.name) is TaskState.SUCCEEDED for each in task.dependencies if each in flow.tasks]
    return any(needed) or not needed if task.trigger_policy == "ANY" else all(needed)
