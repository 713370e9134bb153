"""What flows and tasks say about their tries, attached to the engine's own objects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyoco.core.models import Flow, Task

from pyoco_server.core.outcome import NO_TERMS, Terms
from pyoco_server.core.retries.task_course import TaskTerms

__all__ = ["check_tasks", "say_of_flow", "task_terms_of", "terms_of", "with_task_terms"]

_ON_FLOW = "_pyoco_server_terms"
#: On the function of a task: the only member that every copy of a task keeps.
_ON_FUNCTION = "_pyoco_server_task_terms"


def say_of_flow(flow: Flow, terms: Terms) -> Flow:
    """Attach the terms, and return the same flow."""
    if terms != NO_TERMS:
        setattr(flow, _ON_FLOW, terms)
    return flow


def terms_of(flow: Flow) -> Terms:
    terms = getattr(flow, _ON_FLOW, NO_TERMS)
    return terms if isinstance(terms, Terms) else NO_TERMS


def with_task_terms(func: Callable[..., Any], terms: TaskTerms) -> Callable[..., Any]:
    """Return a function that does the same and has these terms. Members that are None stay as the function has them."""
    known = _of_function(func)
    if known is not None:
        terms = replace(terms, retry=terms.retry or known.retry, timeout=terms.timeout or known.timeout)

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    setattr(called, _ON_FUNCTION, terms)
    return called


def task_terms_of(task: Task) -> TaskTerms | None:
    return _of_function(task.func)


def _of_function(func: Any) -> TaskTerms | None:
    terms = getattr(func, _ON_FUNCTION, None)
    return terms if isinstance(terms, TaskTerms) else None


def check_tasks(flow: Flow) -> None:
    """Raise ValueError for a task with a policy and retries of the engine (RETRY-12)."""
    for task in flow.tasks:
        terms = task_terms_of(task)
        if terms is not None and terms.retry is not None and task.retries:
            raise ValueError(f"task {task.name} has both `retry` and the engine's `retries`: keep one of them")
