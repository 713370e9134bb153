"""`task`: the engine's decorator with a retry policy and a timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pyoco.core.models import Task
from pyoco.dsl.syntax import TaskWrapper

from pyoco_server.core.retries.policy import RetryPolicy
from pyoco_server.core.retries.reading import read_policy, read_policy_text, read_task_timeout
from pyoco_server.core.retries.task_course import TaskTerms
from pyoco_server.executors.flow.terms import with_task_terms

__all__ = ["OwnTask", "task"]

P = ParamSpec("P")
R = TypeVar("R")


class OwnTask(TaskWrapper, Generic[P, R]):  # type: ignore[misc]  # the engine is not typed
    """A task of a flow, usable wherever the engine's are. Called, it is the function itself."""

    def __init__(self, function: Callable[P, R], name: str, terms: TaskTerms) -> None:
        self._function = function
        plain = terms == TaskTerms()
        super().__init__(Task(func=function if plain else with_task_terms(function, terms), name=name))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)


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
    terms = TaskTerms(retry=_policy(retry), timeout=None if timeout is None else _timeout(timeout))

    def made(function: Callable[..., Any]) -> OwnTask[..., Any]:
        return OwnTask(function, name or function.__name__, terms)

    return made if function is None else made(function)


def _policy(value: str | Mapping[str, Any] | None) -> RetryPolicy | None:
    if value is None:
        return None
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
