"""Builds the flow of a canvas from the params of its run, in a host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyoco.core.models import Flow
from pyoco.core.models import Task as EngineTask

from pyoco_server.compat.celery.tasks import Task
from pyoco_server.core.retries.task_course import TaskTerms
from pyoco_server.errors import ParamsRefused
from pyoco_server.executors.flow.terms import with_task_terms

__all__ = ["flow_of"]


def flow_of(name: str, tasks: Mapping[str, Task], document: Any) -> Flow:
    """Return the flow of one run. Raises ParamsRefused: any client may have sent the document."""
    building = _Building(tasks)
    building.add(document, None)
    return Flow(name=name, tasks=set(building.steps.values()))


class _Building:
    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._tasks = tasks
        self.steps: dict[str, EngineTask] = {}
        #: What the steps of this run have returned.
        self._outputs: dict[str, Any] = {}

    def add(self, document: Any, before: str | None) -> str:
        """Add the steps of one part after the step `before`, and return the step whose output is the part's."""
        match document:
            case {"task": str(name), "params": dict(params), "before": str() | None as into}:
                return self._add_task(name, params, into, before)
            case {"chain": list(parts)} if parts:
                for part in parts:
                    before = self.add(part, before)
                assert before is not None
                return before
            case {"group": list(parts)}:
                return self._add_list([self.add(part, before) for part in parts], before)
        raise ParamsRefused(f"not a part of a canvas: {str(document)[:100]}")

    def _add_task(self, name: str, params: Mapping[str, Any], into: str | None, before: str | None) -> str:
        task = self._tasks.get(name)
        if task is None:
            raise ParamsRefused(f"app has no task {name!r}")
        if into is not None and before is None:
            raise ParamsRefused(f"no task comes before {name!r}")
        values = task.params.read(params, given=() if into is None else (into,))

        def step() -> Any:
            arguments = values if into is None else {**values, into: self._outputs[str(before)]}
            return task.step(**arguments)

        return self._add_step(task.step_name, step, [] if before is None else [before], task.terms)

    def _add_list(self, members: list[str], before: str | None) -> str:
        def listed() -> list[Any]:
            return [self._outputs[member] for member in members]

        return self._add_step("group", listed, members or ([] if before is None else [before]), TaskTerms())

    def _add_step(self, name: str, function: Callable[[], Any], after: list[str], terms: TaskTerms) -> str:
        unique, number = name, 2
        while unique in self.steps:
            unique, number = f"{name}-{number}", number + 1

        def kept() -> Any:
            self._outputs[unique] = value = function()
            return value

        step = self.steps[unique] = EngineTask(func=with_task_terms(kept, terms), name=unique)
        for each in map(self.steps.__getitem__, after):
            step.dependencies.add(each)
            each.dependents.add(step)
        return unique
