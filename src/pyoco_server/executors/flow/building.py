"""Builds the graph of a flow by calling its function (APP-4).

Each build has copies of the tasks: the engine stores the edges of a graph in its task objects, and one task may be part
of many flows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from pyoco.core.models import Flow, Task
from pyoco.dsl.syntax import FlowFragment, ensure_fragment

__all__ = ["Building", "Ends", "FlowParam", "build_graph", "building", "ends"]


class FlowParam:
    """A param of a flow while its graph is built: it has no value yet, and can only be passed to tasks."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<param {self.name}>"

    def _why(self) -> str:
        return (
            f"param {self.name!r} has no value while the graph of the flow is built: "
            "use it in a task, which receives it by its name"
        )

    def _no_value(self, *_: object) -> Any:
        raise TypeError(self._why())

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._why())

    def __eq__(self, other: object) -> bool:
        raise TypeError(self._why())

    __hash__ = None  # type: ignore[assignment]
    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = __str__ = __format__ = _no_value
    __int__ = __float__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _no_value
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _no_value


class Ends(list[Any]):
    """The ends of a flow whose value is an object from their names to their values."""

    def __rshift__(self, other: Any) -> Any:
        for each in self:
            ensure_fragment(each)._link_to(ensure_fragment(other))
        return other


def ends(*tasks: Any) -> dict[str, Any]:
    """Return several ends from a flow function: the value of the flow has the output of each, by the task's name."""
    return Ends(tasks)  # type: ignore[return-value]  # to a type checker it is the value


class Building:
    """The graph that is being built."""

    def __init__(self) -> None:
        #: The original and its copy, by name.
        self._tasks: dict[str, tuple[Task, Task]] = {}

    def copy_of(self, task: Task) -> Task:
        """Return this graph's copy. Raises ValueError if another task has its name."""
        known = self._tasks.get(task.name)
        if known is None:
            inputs, outputs = dict(task.inputs), list(task.outputs)
            copied = replace(task, dependencies=set(), dependents=set(), inputs=inputs, outputs=outputs)
            self._tasks[task.name] = known = (task, copied)
        if known[0] is not task:
            raise ValueError(f"two tasks of the flow are named {task.name!r}; name one of them with @task(name=...)")
        return known[1]

    def call(self, task: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the task itself, with what it was called with as its inputs. Other tasks among them come before it."""
        node = task.task
        for name, value in inspect.signature(function).bind_partial(*args, **kwargs).arguments.items():
            given = self._input(task, name, value)
            if given is not _BY_NAME and node.inputs.setdefault(name, given) != given:
                raise ValueError(f"task {node.name!r} is called twice, with different values of {name!r}")
        return task

    @staticmethod
    def _input(task: Any, name: str, value: Any) -> Any:
        if isinstance(value, FlowParam):
            return _BY_NAME if value.name == name else f"$ctx.params.{value.name}"
        if isinstance(value, FlowFragment):
            value._link_to(task)
            before = value._last_task().name
            return _BY_NAME if before == name else f"$node.{before}.output"
        if isinstance(value, str) and value.startswith("$"):
            raise ValueError(f"{name}={value!r}: a text that begins with '$' cannot be an input of a task")
        if _has_open_part(value):
            raise TypeError(
                f"{name}={value!r}: params and tasks are passed to a task alone, not inside of other values"
            )
        return value

    def check_used(self, tasks: Iterable[Task], name: str) -> None:
        """Raise ValueError if the function has used a task that does not lead to an end of the flow."""
        used = {task.name for task in tasks}
        lost = sorted(each for each in self._tasks if each not in used)
        if lost:
            raise ValueError(
                f"flow {name!r} uses {', '.join(map(repr, lost))}, which no returned task needs: "
                "return all ends, as in `return ends(a, b)`"
            )


#: An input that the engine finds by its name.
_BY_NAME: Any = object()
_current: ContextVar[Building | None] = ContextVar("pyoco_server_building", default=None)


def _has_open_part(value: Any) -> bool:
    """Whether a value has a param or a task in it, which only the engine could fill in."""
    if isinstance(value, dict):
        return any(map(_has_open_part, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_open_part, value))
    return isinstance(value, FlowParam | FlowFragment)


def building() -> Building | None:
    """Return the graph that this thread or asyncio task is building."""
    return _current.get()


def build_graph(name: str, function: Callable[..., Any]) -> Flow:
    """Call a flow function and return its flow. Raises ValueError, TypeError, and whatever the function raises."""
    made = Building()
    arguments = {
        each.name: FlowParam(each.name)
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    token = _current.set(made)
    try:
        returned = function(**arguments)
        flow = _flow_of(name, returned)
    finally:
        _current.reset(token)
    made.check_used(flow.tasks, name)
    return flow


def _flow_of(name: str, returned: Any) -> Flow:
    if isinstance(returned, Flow):
        named = copy.copy(returned)
        named.name = name
        return named
    if isinstance(returned, Task | FlowFragment):
        returned = [returned]
    if not isinstance(returned, list | tuple) or not returned:
        raise TypeError(
            f"the function of flow {name!r} returned {type(returned).__name__}; it returns a task, tasks joined by "
            "`>>`, `ends(a, b)`, a list of ends, or a Flow"
        )
    parts = [ensure_fragment(part) for part in returned]
    if any(part.has_control_flow() for part in parts):
        if len(parts) > 1:
            raise ValueError(f"flow {name!r} has loops or branches: it can only have one end")
        return Flow(name=name) >> parts[0]
    last = [part._last_task() for part in parts]
    flow = Flow(name=name, tasks=_with_dependencies(task for part in parts for task in part.task_nodes()))
    for task in last:
        if needing := sorted(other.name for other in flow.tasks if task in other.dependencies):
            raise ValueError(f"flow {name!r} returns {task.name!r} as an end, but {needing[0]!r} comes after it")
    if isinstance(returned, Ends) and len(set(last)) < 2:
        raise ValueError(f"flow {name!r} returns ends() with less than two tasks: return the task itself")
    return flow


def _with_dependencies(tasks: Iterator[Task]) -> set[Task]:
    """Return the tasks and all that come before them. O(tasks and edges)."""
    found: set[Task] = set()
    left = list(tasks)
    while left:
        task = left.pop()
        if task not in found:
            found.add(task)
            left.extend(task.dependencies)
    return found
