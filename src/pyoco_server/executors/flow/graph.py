"""What follows what in a flow: each task, and those it waits for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyoco.core.models import Flow
from pyoco.dsl.nodes import ForEachNode, RepeatNode, SubFlowNode, SwitchNode, TaskNode, UntilNode

from pyoco_server.core.outcome import GRAPH_BYTES_MAX, GRAPH_TASKS_MAX

__all__ = ["graph_of"]

#: More of them never fit: each takes a name of a character, two quotes and a comma.
_EDGES_MAX = GRAPH_BYTES_MAX // 4
#: Steps of a program that are walked through. Branches may share what follows them, and a walk meets it each time:
#: that doubles with every branch, though the program is small.
_STEPS_MAX = 4_000

Graph = dict[str, tuple[str, ...]]


class _TooLarge(Exception):
    """Nobody will be shown this graph."""


def graph_of(flow: Flow) -> Graph:
    """Every task of the flow by its name, which is the one it has in the run, and the names of those it waits for.

    Empty when it takes more than 16 KiB in its encoded form or has more than 500 tasks. Never raises: a flow may be
    somebody else's object, and a picture is no reason to fail its run. O(tasks and edges), bounded.
    """
    try:
        if len(flow.tasks) > GRAPH_TASKS_MAX:
            return {}
        graph = _of_program(flow) if flow.has_control_flow() else _of_dependencies(flow)
        return graph if _is_plain(graph) and _size(graph) <= GRAPH_BYTES_MAX else {}
    except Exception:  # noqa: BLE001  (too large, nested too deep, or no flow as we know it)
        return {}


def _is_plain(graph: Graph) -> bool:
    return all(type(name) is str for name in graph)  # what a task waits for is a task


def _size(graph: Graph) -> int:
    return len(json.dumps(graph, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def _of_dependencies(flow: Flow) -> Graph:
    """By name: the engine keeps tasks in sets, in no order. What a task waits for outside of its flow is left out: task
    objects are shared, and remember other flows."""
    left = _EDGES_MAX
    graph: Graph = {}
    for task in sorted(flow.tasks, key=lambda task: task.name):
        graph[task.name] = tuple(sorted(other.name for other in task.dependencies if other in flow.tasks))
        left -= len(graph[task.name])
        if left < 0:
            raise _TooLarge
    return graph


def _of_program(flow: Flow) -> Graph:
    """In the order of the program; what does not stand in it is never begun, and waits for nothing."""
    walk = _Walk()
    walk.pass_through(flow.build_program(), ())
    return walk.graph | {name: () for name in sorted(task.name for task in flow.tasks) if name not in walk.graph}


class _Walk:
    """Through a program, step by step. With loops and branches the engine goes by that and not by `dependencies`.

    A task waits for what comes before the first place where it stands. So there are no circles: the way from the end of
    a loop back to its beginning is not shown, nor is a task's second place.
    """

    def __init__(self) -> None:
        self.graph: Graph = {}
        self._left = _EDGES_MAX
        self._steps_left = _STEPS_MAX

    def pass_through(self, node: Any, after: tuple[str, ...]) -> tuple[str, ...]:
        """The last tasks of the node; `after`: those before it."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _TooLarge
        if isinstance(node, TaskNode):
            return self._meet(node.task.name, after)
        if isinstance(node, SubFlowNode):
            for step in node.steps:
                after = self.pass_through(step, after)
            return after
        if isinstance(node, SwitchNode):
            return _unique(name for case in node.cases for name in self.pass_through(case.target, after))
        if isinstance(node, RepeatNode | ForEachNode | UntilNode):
            return self.pass_through(node.body, after)
        raise TypeError(f"{type(node).__name__} is no step of a program")

    def _meet(self, name: str, after: tuple[str, ...]) -> tuple[str, ...]:
        if name not in self.graph:
            self._left -= len(after)
            if self._left < 0:
                raise _TooLarge
            self.graph[name] = after
        return (name,)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
