"""Create, replace, pause, resume and delete schedules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from pyoco_server.actions.check_flow_name import NamedFlow, check_flow_name
from pyoco_server.actions.schedules.handle import complete_starts
from pyoco_server.actions.schedules.reach import find_schedule, scheduling_of
from pyoco_server.core.fingerprint import receipt_key
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.ids import schedule_key
from pyoco_server.core.schedules.record import Definition, Kind, Schedule, etag_of
from pyoco_server.errors import (
    KeyReused,
    ScheduleNameTaken,
    ScheduleNotFound,
    TooManySchedules,
    VersionMismatch,
    VersionRequired,
)
from pyoco_server.ports.backend import Backend, GatewayBackend
from pyoco_server.ports.schedules.port import Kept

__all__ = [
    "Condition",
    "Written",
    "add_schedule",
    "create_schedule",
    "delete_schedule",
    "pause_schedule",
    "put_schedule",
    "replace_schedule",
    "resume_schedule",
]


@dataclass(frozen=True)
class Condition:
    """Which version a change means (SCHED-24)."""

    #: `If-None-Match: *`
    is_new: bool = False
    #: The tags of `If-Match`; `*` matches every version. None: not given.
    matches: frozenset[str] | None = None

    def check(self, schedule: Schedule) -> None:
        """Raises VersionMismatch."""
        if self.is_new or not self.allows(schedule):
            raise VersionMismatch

    def allows(self, schedule: Schedule) -> bool:
        return self.matches is None or not self.matches.isdisjoint({"*", etag_of(schedule)})


@dataclass(frozen=True)
class Written:
    schedule: Schedule
    is_new: bool = False
    #: An earlier request under the same idempotency key had created it.
    replayed: bool = False
    #: Why its runs may fail: see `check_flow_name`.
    warning: str | None = None


async def create_schedule(
    backend: GatewayBackend, caller: Caller, definition: Definition, key: str | None = None
) -> Written:
    """Store a new schedule; a keeper sets its alarm. Under an idempotency key the same request creates it once.

    Raises FlowNotOffered, ScheduleNameTaken, TooManySchedules, KeyReused, Unavailable.
    """
    schedule_id = backend.new_id()
    place = None if key is None else receipt_key(caller.tenant_id, key)
    warning = await _check_flow(backend, definition, place)
    if place is not None:
        receipt = await backend.receipts.claim(place, schedule_id, mark := _mark(definition))
        if receipt.fingerprint != mark:
            raise KeyReused
        schedule_id = receipt.run_id
        kept = await scheduling_of(backend).schedules.find(schedule_key(caller.tenant_id, definition.name))
        if kept is not None and kept.schedule.id == schedule_id:
            return Written(kept.schedule, replayed=True, warning=warning)
    return Written(await add_schedule(backend, caller, definition, schedule_id), is_new=True, warning=warning)


async def _check_flow(backend: GatewayBackend, definition: Definition, place: str | None = None) -> str | None:
    """As `check_flow_name`."""
    if definition.kind != Kind.FLOW:
        return None
    tag = definition.what.get("tag") or backend.config.default_tag
    return await check_flow_name(
        backend, NamedFlow(definition.what["flow_name"], tag, ("body", "what", "flow_name")), place
    )


def _mark(definition: Definition) -> str:
    text = json.dumps(["schedule", asdict(definition)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


async def add_schedule(backend: Backend, caller: Caller, definition: Definition, schedule_id: str) -> Schedule:
    """Store a new schedule. Raises ScheduleNameTaken, TooManySchedules, Unavailable."""
    schedules = scheduling_of(backend).schedules
    key = schedule_key(caller.tenant_id, definition.name)
    own = [each for each in schedules.known() if each.tenant_id == caller.tenant_id]
    if len(own) >= backend.config.schedules_max and all(each.key != key for each in own):
        raise TooManySchedules(f"a tenant may have {backend.config.schedules_max} schedules (PYOCO_SCHEDULES_MAX)")
    now = backend.clock()
    schedule = Schedule(id=schedule_id, tenant_id=caller.tenant_id, api_key_id=caller.api_key_id, definition=definition)
    kept = await schedules.create(progress.added(schedule, now))
    if kept is None:
        raise ScheduleNameTaken(f"there is a schedule {definition.name!r}")
    return kept.schedule


async def put_schedule(
    backend: GatewayBackend, caller: Caller, definition: Definition, condition: Condition
) -> Written:
    """Create or replace a schedule as `condition` says (SCHED-24). Equal content changes nothing.

    A schedule that keeps its flow and tag may be changed whatever workers offer by now. Raises FlowNotOffered,
    VersionMismatch, VersionRequired, TooManySchedules, Unavailable.
    """

    def edit(found: Schedule) -> Schedule:
        return progress.edited(found, definition, caller.api_key_id, backend.clock())

    rounds = Rounds(f"the schedule {definition.name}")
    while True:
        rounds.begin()
        kept = await scheduling_of(backend).schedules.find(schedule_key(caller.tenant_id, definition.name))
        if kept is None:
            if condition.matches is not None:
                raise VersionMismatch("there is no schedule of this name")
            warning = await _check_flow(backend, definition)
            try:
                created = await add_schedule(backend, caller, definition, backend.new_id())
                return Written(created, is_new=True, warning=warning)
            except ScheduleNameTaken:  # a moment ago
                continue
        condition.check(kept.schedule)
        if condition.matches is None:
            raise VersionRequired("the schedule exists: send If-Match with its ETag, or with *")
        warning = None
        if _flow_of(definition) != _flow_of(kept.schedule.definition):
            warning = await _check_flow(backend, definition)
        written = await replace_schedule(backend, kept, edit)
        if written is not None:
            return Written(written.schedule, warning=warning)


def _flow_of(definition: Definition) -> tuple[object, ...]:
    return tuple(definition.what.get(member) for member in ("kind", "flow_name", "tag"))


async def replace_schedule(backend: Backend, kept: Kept, change: Callable[[Schedule], Schedule]) -> Kept | None:
    """Write the change. None: the record has changed meanwhile.

    Runs that are decided are submitted first, as the schedule says until then.
    """
    changed = change(kept.schedule)
    if changed is kept.schedule:
        return kept
    if kept.schedule.starting:
        completed = await complete_starts(backend, kept)
        if completed is None:
            return None
        kept, changed = completed, change(completed.schedule)
    return await scheduling_of(backend).schedules.replace(changed, kept)


async def pause_schedule(backend: GatewayBackend, caller: Caller, name: str, reason: str | None) -> Schedule:
    """SCHED-26. Raises ScheduleNotFound, Unavailable."""
    return await _change(backend, caller, name, lambda found: progress.paused(found, reason, backend.clock()))


async def resume_schedule(backend: GatewayBackend, caller: Caller, name: str) -> Schedule:
    """SCHED-26. Raises ScheduleNotFound, Unavailable."""
    return await _change(backend, caller, name, lambda found: progress.resumed(found, backend.clock()))


async def _change(
    backend: GatewayBackend, caller: Caller, name: str, change: Callable[[Schedule], Schedule]
) -> Schedule:
    rounds = Rounds(f"the schedule {name}")
    while True:
        rounds.begin()
        written = await replace_schedule(backend, await find_schedule(backend, caller, name), change)
        if written is not None:
            return written.schedule


async def delete_schedule(backend: GatewayBackend, caller: Caller, name: str, condition: Condition) -> None:
    """Delete it with its history and its waiting ticks; its runs stay (SCHED-25).

    Raises ScheduleNotFound, VersionMismatch, Unavailable.
    """
    rounds = Rounds(f"the schedule {name}")
    while True:
        rounds.begin()
        try:
            kept = await find_schedule(backend, caller, name)
        except ScheduleNotFound:
            if rounds.lost:  # another request has deleted it meanwhile
                return
            raise
        condition.check(kept.schedule)
        if await scheduling_of(backend).schedules.delete(kept):
            return
