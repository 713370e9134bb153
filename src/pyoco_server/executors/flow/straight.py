"""Linear flows, which can run in the calling thread."""

from __future__ import annotations

from collections.abc import Sequence

from pyoco.core.models import Flow, Task
from pyoco.dsl.nodes import SubFlowNode, TaskNode

from pyoco_server.executors.flow.of_app import keep_app
from pyoco_server.executors.flow.terms import say_of_flow, terms_of

__all__ = ["straight"]

#: Longer flows hardly benefit.
_TASKS_MAX = 50


class _Straight(Flow):  # type: ignore[misc]  # the engine is not typed
    """A flow that the engine executes step by step (ENG-35), as it does for flows with loops and branches."""

    def __init__(self, name: str, steps: Sequence[Task]) -> None:
        super().__init__(name=name, tasks=set(steps))
        self._steps = steps

    def has_control_flow(self) -> bool:
        return True

    def build_program(self) -> SubFlowNode:
        return SubFlowNode([TaskNode(task) for task in self._steps])


def straight(flow: Flow) -> Flow:
    """Return an equivalent flow that runs without its own threads, if that makes no difference: no two of its tasks
    could ever run concurrently, and none has a policy that the engine implements only in its threads (ENG-28, ENG-31,
    ENG-35).

    The engine creates a thread pool for each run, which costs three times as much as everything else it does for a
    small task. O(tasks squared), bounded.
    """
    if type(flow) is not Flow or flow.has_control_flow() or not 0 < len(flow.tasks) <= _TASKS_MAX:
        return flow
    if not all(map(_is_plain, flow.tasks)):
        return flow
    steps, left = dict[Task, None](), set(flow.tasks)
    while left:
        next_ones = [task for task in left if task.dependencies <= steps.keys()]
        if len(next_ones) != 1:  # two can run concurrently; or none: the engine reports the error
            return flow
        steps[next_ones[0]] = None
        left.discard(next_ones[0])
    return keep_app(say_of_flow(_Straight(flow.name, tuple(steps)), terms_of(flow)), flow)


def _is_plain(task: Task) -> bool:
    return type(task) is Task and task.fail_policy == "stop" and not task.timeout_sec and task.trigger_policy == "ALL"
