"""Schedules in a file, and the difference between them and those of the server (SCHED-32)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from pyoco_server.client.schedule_calls import with_policy
from pyoco_server.core.schedules.reading import READ_ONLY, read_schedule
from pyoco_server.core.schedules.record import Definition
from pyoco_server.core.schedules.what import Offer
from pyoco_server.errors import InvalidSchedule, TriedOnce, UsageError

__all__ = ["SchedulePlan", "ScheduleReplacement", "plan_of", "read_schedules", "write_plan"]

_OFFER = Offer(checks_packs=False)
_KEPT = ("paused", "pause_reason")


@dataclass(frozen=True)
class ScheduleReplacement:
    """A schedule that is to be replaced."""

    name: str
    document: dict[str, Any]
    #: Each member that differs: what it is, and what it will be.
    members: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class SchedulePlan:
    created: list[dict[str, Any]] = field(default_factory=list)
    replaced: list[ScheduleReplacement] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)

    @property
    def is_change(self) -> bool:
        return bool(self.created or self.replaced or self.deleted)

    @property
    def summary(self) -> dict[str, Any]:
        return {
            "created": [each["name"] for each in self.created],
            "replaced": [each.name for each in self.replaced],
            "deleted": self.deleted,
            "unchanged": self.unchanged,
        }


class _Loader(yaml.SafeLoader):
    """Dates stay text: their time zone is the schedule's."""


_Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_schedules(text: str, path: str) -> list[dict[str, Any]]:
    """Return the schedules of a file. Raises UsageError with every problem and its place."""
    try:
        document = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    schedules = document.get("schedules") if isinstance(document, dict) else None
    if not isinstance(schedules, list) or set(document) != {"schedules"}:
        raise UsageError(f'{path} must hold {{"schedules": [...]}} and nothing else')
    problems, names = [], set()
    for index, each in enumerate(schedules):
        try:
            schedules[index] = with_policy(each) if isinstance(each, dict) else each
            name = _read(schedules[index]).name
        except ValueError as error:
            problems.append(f"schedules.{index}.what.{error}")
            continue
        except (InvalidSchedule, TriedOnce) as error:
            problems += [f"schedules.{index}.{'.'.join(map(str, item.loc))}: {item.msg}" for item in error.problems]
            continue
        if name in names:
            problems.append(f"schedules.{index}.name: {name} is there twice")
        names.add(name)
    if problems:
        raise UsageError(f"{path}: " + "\n".join(problems))
    return schedules


def _read(document: Mapping[str, Any]) -> Definition:
    return read_schedule(document, time.time(), _OFFER, ())


def plan_of(wanted: Sequence[dict[str, Any]], existing: Sequence[dict[str, Any]], *, prune: bool) -> SchedulePlan:
    """Compare what both mean, not how they are written."""
    plan, there = SchedulePlan(), {each["name"]: each for each in existing}
    for each in wanted:
        found = there.get(each["name"])
        if found is None:
            plan.created.append(each)
            continue
        document = each if "paused" in each else each | {name: found.get(name) for name in _KEPT}
        old, new = asdict(_read(_authored(found))), asdict(_read(document))
        members = {name: (old[name], new[name]) for name in old if old[name] != new[name]}
        if members:
            plan.replaced.append(ScheduleReplacement(document["name"], document, members))
        else:
            plan.unchanged.append(document["name"])
    if prune:
        names = {each["name"] for each in wanted}
        plan.deleted.extend(name for name in there if name not in names)
    return plan


def _authored(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name not in READ_ONLY}


def write_plan(plan: SchedulePlan, write: Callable[[str], None]) -> None:
    """Write a line for each schedule that changes, and one for each member."""
    for document in plan.created:
        write(f"+ {document['name']}: {_text(document.get('when'))}")
    for change in plan.replaced:
        write(f"~ {change.name}")
        for name, (old, new) in change.members.items():
            write(f"    {name}: {_text(old)} -> {_text(new)}")
    for name in plan.deleted:
        write(f"- {name}")
    if not plan.is_change:
        write("nothing to change")


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
