"""`conf.beat_schedule`: each entry is a flow with a schedule, whose task has the arguments of the entry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyoco_server.compat.celery.refusals import SENDING, refuse_all
from pyoco_server.compat.celery.schedules import when_of
from pyoco_server.core.schedules.ids import is_schedule_name
from pyoco_server.executors.flow.own_tasks import OwnTask

if TYPE_CHECKING:
    from pyoco_server.app.flows import AppFlow
    from pyoco_server.compat.celery.app import Celery

__all__ = ["beat_flows"]

_MEMBERS = ("task", "schedule", "args", "kwargs", "options")


def beat_flows(app: Celery, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, AppFlow[..., Any]]:
    """Return the flows by the names of their entries. Raises NotOffered, ValueError, and TypeError for arguments that
    do not fit."""
    return {name: _flow_of(app, name, entry) for name, entry in entries.items()}


def _flow_of(app: Celery, name: str, entry: Mapping[str, Any]) -> AppFlow[..., Any]:
    refuse_all((each for each in entry if each not in _MEMBERS), {"relative": "remove it"}, "beat_schedule")
    options = entry.get("options") or {}
    refuse_all((each for each in options if each != "queue"), SENDING, "beat_schedule.options")
    task = app.tasks.get(entry.get("task", ""))
    if task is None:
        raise ValueError(f"beat_schedule entry {name!r}: there is no task {entry.get('task')!r}")
    flow_name = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
    if not is_schedule_name(f"app-{app.name}-{flow_name}"):
        raise ValueError(f"beat_schedule entry {name!r}: app-{app.name}-{flow_name} is not the name of a schedule")
    arguments = task.params.bind(tuple(entry.get("args") or ()), entry.get("kwargs") or {})

    def step() -> Any:
        return task.step(**arguments)

    node = OwnTask(step, task.step_name, task.terms)

    def scheduled() -> Any:
        return node

    scheduled.__doc__ = f"{task.name}, as the beat schedule says."
    tag = options.get("queue") or app.conf.task_default_queue
    return app.app.flow(name=flow_name, tag=tag, schedule=when_of(entry.get("schedule")), timezone=app.conf.timezone)(
        scheduled
    )
