"""The dependency graph of a flow: each task, and the tasks it waits for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyoco.core.models import Flow
from pyoco.dsl.nodes import ForEachNode, RepeatNode, SubFlowNode, SwitchNode, TaskNode, UntilNode

from pyoco_server.core.outcome import GRAPH_BYTES_MAX, GRAPH_TASKS_MAX

__all__ = ["graph_of"]

#: More edges never fit: each takes at least a name of one character, two quotes and a comma.
_EDGES_MAX = GRAPH_BYTES_MAX // 4
#: The maximum number of visited steps. Branches may share their successors, which are visited once per branch: their
#: number doubles with every branch, even in a small program.
_STEPS_MAX = 4_000

Graph = dict[str, tuple[str, ...]]


class _TooLarge(Exception):
    """The graph is too large to be shown."""


def graph_of(flow: Flow) -> Graph:
    """Return all tasks of the flow by their names in the run, each with the names of the tasks it waits for.

    Empty if the graph is larger than 16 KiB when encoded, or has more than 500 tasks. Never raises: a flow may be a
    third-party object, and a missing graph must not fail its run. O(tasks and edges), bounded.
    """
    try:
        if len(flow.tasks) > GRAPH_TASKS_MAX:
            return {}
        graph = _of_program(flow) if flow.has_control_flow() else _of_dependencies(flow)
        return graph if _is_plain(graph) and _size(graph) <= GRAPH_BYTES_MAX else {}
    except Exception:  # noqa: BLE001  (too large, nested too deep, or not the engine's type of flow)
        return {}


def _is_plain(graph: Graph) -> bool:
    return all(type(name) is str for name in graph)  # dependencies are tasks, too


def _size(graph: Graph) -> int:
    return len(json.dumps(graph, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def _of_dependencies(flow: Flow) -> Graph:
    """Sort by name: the engine keeps tasks in sets, which have no order. Dependencies outside of the flow are omitted,
    because task objects are shared and keep those of other flows."""
    left = _EDGES_MAX
    graph: Graph = {}
    for task in sorted(flow.tasks, key=lambda task: task.name):
        graph[task.name] = tuple(sorted(other.name for other in task.dependencies if other in flow.tasks))
        left -= len(graph[task.name])
        if left < 0:
            raise _TooLarge
    return graph


def _of_program(flow: Flow) -> Graph:
    """Return the tasks in the order of the program. A task that is not part of the program never runs, and waits for
    nothing."""
    walk = _Walk()
    walk.pass_through(flow.build_program(), ())
    return walk.graph | {name: () for name in sorted(task.name for task in flow.tasks) if name not in walk.graph}


class _Walk:
    """Walks through a program step by step. With loops and branches, the engine follows it instead of `dependencies`.

    A task waits for the tasks before its first occurrence. So the graph is acyclic: the edge from the end of a loop
    back to its start, and further occurrences of a task, are not shown.
    """

    def __init__(self) -> None:
        self.graph: Graph = {}
        self._left = _EDGES_MAX
        self._steps_left = _STEPS_MAX

    def pass_through(self, node: Any, after: tuple[str, ...]) -> tuple[str, ...]:
        """Visit a node that follows the tasks `after`, and return its last tasks."""
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
