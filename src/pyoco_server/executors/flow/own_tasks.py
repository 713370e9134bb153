"""`task`: the engine's decorator with a retry policy and a timeout."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from pyoco.core.models import Task
from pyoco.dsl.nodes import TaskNode
from pyoco.dsl.syntax import FlowFragment, TaskWrapper, ensure_fragment

from pyoco_server.core.retries.policy import RetryPolicy
from pyoco_server.core.retries.reading import read_policy, read_policy_text, read_task_timeout
from pyoco_server.core.retries.task_course import TaskTerms
from pyoco_server.executors.flow.building import building
from pyoco_server.executors.flow.terms import with_task_terms

__all__ = ["OwnTask", "policy_of", "task"]

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

if TYPE_CHECKING:
    # The engine is not typed, and a class with an unknown base would fit every annotation.
    _Wrapper = object
else:
    _Wrapper = TaskWrapper


class OwnTask(_Wrapper, Generic[P, R]):
    """A task of a flow, usable wherever the engine's are. Called, it is the function itself.

    While the graph of a flow is built, it stands for the copy in that graph; called then, it returns itself. To a type
    checker, an expression of tasks has the type of the value of its last task.
    """

    def __init__(self, function: Callable[P, R], name: str, terms: TaskTerms) -> None:
        self._function = function
        plain = terms == TaskTerms()
        self._task = Task(func=function if plain else with_task_terms(function, terms), name=name)
        functools.update_wrapper(self, function, updated=())

    @property
    def task(self) -> Any:
        """The task of the engine."""
        made = building()
        return self._task if made is None else made.copy_of(self._task)

    @property
    def _nodes(self) -> Any:
        return (TaskNode(self.task),)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        made = building()
        if made is None:
            return self._function(*args, **kwargs)
        node: R = made.call(self, self._function, args, kwargs)
        return node

    if TYPE_CHECKING:

        @overload
        def __rshift__(self, other: OwnTask[..., S]) -> S: ...
        @overload
        def __rshift__(self, other: list[Any]) -> list[Any]: ...
        @overload
        def __rshift__(self, other: Any) -> Any: ...
        def __rshift__(self, other: Any) -> Any: ...
        def __rrshift__(self, other: Any) -> R: ...
        def __and__(self, other: Any) -> Any: ...
        def __or__(self, other: Any) -> Any: ...
        def __getitem__(self, selector: Any) -> R: ...
        def __mod__(self, until: Any) -> R: ...

    else:

        def __rshift__(self, other):
            if not isinstance(other, list):
                return super().__rshift__(other)
            for each in other:
                self._link_to(ensure_fragment(each))
            return other

        def __rrshift__(self, other):
            """Join this task to what comes before it. The engine's own meaning, a case, is left to other values."""
            if isinstance(other, FlowFragment):
                return FlowFragment.__rshift__(other, self)
            if not isinstance(other, list):
                return super().__rrshift__(other)
            for each in other:
                ensure_fragment(each)._link_to(self)
            return self


@overload
def task(function: Callable[P, R], /) -> OwnTask[P, R]: ...


@overload
def task(
    *,
    name: str | None = None,
    retry: str | Mapping[str, Any] | None = None,
    timeout: float | str | None = None,
) -> Callable[[Callable[P, R]], OwnTask[P, R]]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: str | Mapping[str, Any] | None = None,
    timeout: float | str | None = None,
) -> Any:
    """Make a task of a function: `@task`, or `@task(retry="3 times, exponential, 2s", timeout="5m")`.

    `retry` is a policy, as an object or as the short text; `timeout` bounds each try, in seconds or as text. Raises
    ValueError if one of them is not valid. In a flow.yaml the task may have others, which take precedence.
    """
    terms = TaskTerms(
        retry=None if retry is None else policy_of(retry), timeout=None if timeout is None else _timeout(timeout)
    )

    def made(function: Callable[..., Any]) -> OwnTask[..., Any]:
        return OwnTask(function, name or function.__name__, terms)

    return made if function is None else made(function)


def policy_of(value: str | Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that an object or the short text stands for. Raises ValueError."""
    problems: list[str] = []

    def report(loc: tuple[str | int, ...], message: str, _: str) -> None:
        problems.append(f"{'.'.join(map(str, loc))} {message}")

    if isinstance(value, str):
        policy = read_policy_text(value, ("retry",), report)
    else:
        policy = read_policy(value, ("retry",), report)
    if policy is None:
        raise ValueError("; ".join(problems))
    return policy


def _timeout(value: float | str) -> float:
    try:
        return read_task_timeout(value)
    except ValueError as error:
        raise ValueError(f"timeout {error}") from error
