"""Run a schedule now."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.actions.schedules.reach import find_schedule, scheduling_of
from pyoco_server.actions.schedules.start_tick import Cause, start_tick
from pyoco_server.core.fingerprint import receipt_key
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.ids import trigger_id
from pyoco_server.core.schedules.record import Kind, Outcome, Schedule, Source
from pyoco_server.errors import Conflict, KeyRefused, KeyReused, Problem, Refused
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.schedules.port import Kept

__all__ = ["Triggered", "trigger_schedule"]


@dataclass(frozen=True)
class Triggered:
    run_id: str
    status: str
    #: The member `schedule` of the run.
    mark: Mapping[str, Any]


async def trigger_schedule(
    backend: GatewayBackend, caller: Caller, name: str, params: Mapping[str, Any], key: str | None = None
) -> Triggered:
    """Submit a run now, beside the ticks: paused or not, whatever runs (SCHED-27).

    Under an idempotency key there is one run, whose id follows from the key. The run is submitted before it is noted in
    the history: a crash in between leaves a run without an entry, and the repeat adds it. Raises ScheduleNotFound,
    KeyReused, Refused, and what the submission raises.
    """
    kept = await find_schedule(backend, caller, name)
    schedule = kept.schedule
    if params and schedule.definition.kind == Kind.EXEC:
        message = "a schedule of a program has no params"
        raise Refused(message, problems=(Problem(("body", "params"), message),))
    id_of_trigger = backend.new_id() if key is None else await _promised(backend, caller, schedule, params, key)
    now = backend.clock()
    cause = Cause(math.floor(now), Source.TRIGGER, id_of_trigger, now, params)
    try:
        run_id = await start_tick(backend, schedule, cause)
    except KeyRefused as error:  # not the key of this request
        raise Conflict(str(error)) from error
    found = await backend.runs.find(run_id)
    mark: Mapping[str, Any] | None = found.run.schedule if isinstance(found, Stored) else None
    mark = mark or {"id": schedule.id, "name": name, "tick": cause.tick, "source": cause.source.value}
    tick = mark.get("tick")
    await _note(backend, caller, kept, replace(cause, tick=tick if type(tick) is int else cause.tick), run_id)
    return Triggered(run_id, found.run.status.value if isinstance(found, Stored) else "PENDING", mark)


async def _promised(
    backend: GatewayBackend, caller: Caller, schedule: Schedule, params: Mapping[str, Any], key: str
) -> str:
    id_of_trigger = trigger_id(schedule.id, key)
    text = json.dumps(["trigger", schedule.id, dict(params)], sort_keys=True)
    mark = hashlib.sha256(text.encode()).hexdigest()
    receipt = await backend.receipts.claim(receipt_key(caller.tenant_id, key), id_of_trigger, mark)
    if receipt.fingerprint != mark:
        raise KeyReused
    return id_of_trigger


async def _note(backend: GatewayBackend, caller: Caller, kept: Kept, cause: Cause, run_id: str) -> None:
    schedules = scheduling_of(backend).schedules
    rounds = Rounds(f"the schedule {kept.schedule.name}")
    current: Kept | None = kept
    while current is not None and current.schedule.id == kept.schedule.id:
        rounds.begin()
        entry = progress.entry_of(current.schedule, cause.tick, Source.TRIGGER, Outcome.RUN, backend.clock())
        changed = progress.settled(current.schedule, replace(entry, due_at=float(cause.tick), run_id=run_id))
        if changed is current.schedule or await schedules.replace(changed, current) is not None:
            return
        current = await schedules.find(kept.schedule.key)
