"""Submit the run of one tick, with the rights of the schedule's writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.actions.authenticate import check_payer
from pyoco_server.actions.priced.submit import submit as submit_pack
from pyoco_server.actions.programs.admit import admit_client
from pyoco_server.actions.programs.inputs import Inline
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.submit import submit_job
from pyoco_server.actions.schedules.reach import scheduling_of
from pyoco_server.actions.submit_promised import find_promised, submit_promised
from pyoco_server.core.api_key import is_open
from pyoco_server.core.delays import NO_DELAY, Delay
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.packs.spec import Here, PackCheckFailed
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.names import run_id_of
from pyoco_server.core.run import Caller
from pyoco_server.core.schedules.ids import jitter_of, pack_key_of_tick, tick_id
from pyoco_server.core.schedules.progress import previous_tick
from pyoco_server.core.schedules.record import Kind, Schedule, Source
from pyoco_server.core.schedules.templates import TemplateContext
from pyoco_server.core.schedules.what import Offer, Ticket, flow_ask, job_ask, pack_ask
from pyoco_server.core.schedules.zones import zone_of
from pyoco_server.errors import (
    Corrupt,
    DependencyUnavailable,
    KeyBusy,
    KeyMissing,
    KeyRefused,
    PyocoError,
    Refused,
    Unavailable,
)
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.runs.port import Absent, Stored

__all__ = ["Cause", "has_run", "may_succeed_later", "start_tick"]


@dataclass(frozen=True)
class Cause:
    """Why a run is submitted."""

    tick: int
    source: Source
    #: The id of the tick or of the trigger: it decides the id of the run.
    id: str
    #: What the templates call `scheduled_time`.
    scheduled_time: float
    #: Params laid over those of the schedule (SCHED-27).
    over: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_tick(cls, schedule: Schedule, tick: int, source: Source) -> Cause:
        return cls(tick, source, tick_id(schedule.id, tick), tick)


def may_succeed_later(error: PyocoError) -> bool:
    """Return whether the submission has to be repeated; otherwise the tick is refused."""
    if isinstance(error, GridRefused):
        return error.code is Code.UNAVAILABLE
    return isinstance(error, Unavailable | KeyBusy | Corrupt)


async def start_tick(backend: Backend, schedule: Schedule, cause: Cause) -> str:
    """Submit the run and return its id. However often and by whomever it is repeated, there is one run (SCHED-13).

    A crash leaves behind what a crash of the submission leaves; the repeat completes it. Raises what the submission
    raises: see `may_succeed_later`.
    """
    submit = {Kind.FLOW: _start_flow, Kind.EXEC: _start_job, Kind.PACK: _start_pack}[Kind(schedule.definition.kind)]
    return await submit(backend, schedule, cause)


def _ticket(schedule: Schedule, cause: Cause, run_id: str) -> Ticket:
    definition = schedule.definition
    context = TemplateContext(
        zone_of(definition.timezone),
        cause.scheduled_time,
        lambda: previous_tick(definition, cause.scheduled_time),
        schedule.name,
        run_id,
    )
    delay = NO_DELAY
    if definition.jitter and cause.source is not Source.TRIGGER:
        delay = Delay(until=cause.tick + jitter_of(schedule.id, cause.tick, definition.jitter))
    mark = {"id": schedule.id, "name": schedule.name, "tick": cause.tick, "source": cause.source.value}
    return Ticket(context=context, mark=mark, delay=delay, over=cause.over)


async def _writer(backend: Backend, schedule: Schedule) -> Caller:
    """Return whose run it will be (SCHED-14). Raises KeyRefused, Unavailable."""
    if schedule.api_key_id is not None:
        record = await scheduling_of(backend).keys.find(schedule.api_key_id)
        if record is None or not is_open(record, backend.clock()):
            raise KeyRefused("the API key of the schedule's last writer was revoked or has expired")
    return Caller(schedule.tenant_id, schedule.api_key_id)


async def _start_flow(backend: Backend, schedule: Schedule, cause: Cause) -> str:
    ask = flow_ask(schedule.definition.what, _ticket(schedule, cause, cause.id), backend.config.default_tag)
    try:
        caller = await _writer(backend, schedule)
    except KeyRefused:
        if await find_promised(backend, cause.id, ask):  # submitted while the key was valid
            return cause.id
        raise
    await submit_promised(backend, accept(ask, caller, cause.id, backend.clock()), ask)
    return cause.id


async def _start_job(backend: Backend, schedule: Schedule, cause: Cause) -> str:
    programs = programs_of(backend)
    what = schedule.definition.what
    group = what.get("group") or programs.config.exec_group
    ticket = _ticket(schedule, cause, run_id_of(cause.id, group))
    ask = job_ask(what, ticket, cause.id, group, schedule.api_key_id)
    caller = Caller(schedule.tenant_id, schedule.api_key_id)
    try:
        await _writer(backend, schedule)
        admit_client(programs, caller, ask.client_id, ask.exec_name, ask.group)
    except (KeyRefused, GridRefused):
        if isinstance(await backend.runs.find(ask.run_id), Absent):
            raise
    try:
        return (await submit_job(backend, caller, ask, Inline({}))).run.run_id
    except GridRefused as error:
        if error.code is Code.JOB_ID_CONFLICT and await _is_ours(backend, schedule, ask.run_id):
            return ask.run_id  # submitted before the schedule was edited, or as an earlier trigger of the same key
        raise


async def _is_ours(backend: Backend, schedule: Schedule, run_id: str) -> bool:
    found = await backend.runs.find(run_id)
    mark = found.run.schedule if isinstance(found, Stored) else None
    return mark is not None and mark.get("id") == schedule.id


async def _start_pack(backend: Backend, schedule: Schedule, cause: Cause) -> str:
    priced, tenant_id = _priced_of(backend), schedule.tenant_id
    if tenant_id is None:
        raise KeyMissing("a priced run needs the API key of its tenant")
    key = _pack_key(cause)
    row, tenant = await priced.ledger.read(lambda tx: (tx.runs.find_by_key(tenant_id, key), tx.tenants.get(tenant_id)))
    if row is not None:
        return row.run_id
    caller = await _writer(backend, schedule)
    check_payer(tenant)
    run_id = priced.new_id()
    offer = Offer(packs=priced.packs, here=_here_of(priced, tenant_id))
    try:
        ask = pack_ask(schedule.definition.what, _ticket(schedule, cause, run_id), key, offer)
        trace_id = ask.trace_id or f"t_{cause.id.replace('-', '')}"
        return (await submit_pack(priced, ask.new_run(run_id, caller, trace_id, backend.clock()))).run.run_id
    except PackCheckFailed as error:
        raise Refused(f"the pack {schedule.definition.what['pack_type']!r} cannot tell: {error}") from error


def _pack_key(cause: Cause) -> str:
    return f"trigger-{cause.id}" if cause.source is Source.TRIGGER else pack_key_of_tick(cause.id)


def _priced_of(backend: Backend) -> Priced:
    if backend.priced is None:
        raise DependencyUnavailable("this process has no ledger")
    return backend.priced


def _here_of(priced: Priced, tenant_id: str) -> Here:
    return Here(
        tenant_id=tenant_id,
        input_bucket=priced.config.pack_input_bucket,
        allow_http=priced.config.pack.url_pack_allow_http,
    )


async def has_run(backend: Backend, schedule: Schedule, tick: int) -> bool:
    """Return whether the tick has a run (SCHED-28)."""
    id_of_tick, what = tick_id(schedule.id, tick), schedule.definition.what
    match schedule.definition.kind:
        case Kind.PACK:
            tenant_id, key = schedule.tenant_id or "", pack_key_of_tick(id_of_tick)
            priced = _priced_of(backend)
            return await priced.ledger.read(lambda tx: tx.runs.find_by_key(tenant_id, key)) is not None
        case Kind.EXEC:
            group = what.get("group") or programs_of(backend).config.exec_group
            return not isinstance(await backend.runs.find(run_id_of(id_of_tick, group)), Absent)
        case _:
            return not isinstance(await backend.runs.find(id_of_tick), Absent)
