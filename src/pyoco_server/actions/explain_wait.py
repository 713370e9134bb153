"""Say why a run has not begun."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pyoco_server.actions.measure import Crowd, crowd_of
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.states import RunState
from pyoco_server.core.waiting import (
    PackQueueing,
    Queueing,
    WaitReason,
    is_disputed,
    tell,
    tell_disputed,
    tell_pack,
    waits,
    why,
    why_pack,
)
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import Ahead

__all__ = ["OldestAhead", "Wait", "explain_wait"]

log = get_logger(__name__)

#: Places further back are not counted out: each of them costs 0.1 µs of the one thread that reads the index, at every
#: look at every run that waits.
_AHEAD_MAX = 1_000
#: The explanation is a kindness: the answer does not wait longer for it.
_SECONDS_MAX = 0.5


@dataclass(frozen=True)
class OldestAhead:
    """The run that has waited longest before this one. Of another tenant's, only the age is told."""

    age_seconds: float
    run_id: str | None = None
    submitted_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Why a run waits, and what that was concluded from."""

    reason: WaitReason
    message: str
    message_ja: str
    #: 1: it is next. An estimate: jobs are taken by time of submission, unless they have to be repeated.
    position: int
    #: It is further back than `position` says: counting was stopped there.
    position_capped: bool
    #: Workers with the run's tag, and their slots together. Of a pack: all workers; of a disputed one: 0.
    workers_alive: int
    slots: int
    slots_busy: int
    oldest_ahead: OldestAhead | None


_DISPUTED = Wait(
    reason=WaitReason.DISPUTED,
    message=tell_disputed()[0],
    message_ja=tell_disputed()[1],
    position=1,
    position_capped=False,
    workers_alive=0,
    slots=0,
    slots_busy=0,
    oldest_ahead=None,
)


async def explain_wait(backend: GatewayBackend, caller: Caller, run: Run) -> Wait | None:
    """None: the run does not wait, or it cannot be told. No round trip: index and registry are at hand.

    O(workers + log runs + runs ahead, at most 1,000). Costs nothing for a run that somebody executes or that has
    ended. It may lag by a moment: by a heartbeat of a worker, and by what the index has not heard yet.
    """
    if not waits(run):
        return None
    if is_disputed(run):
        return _DISPUTED
    try:
        async with asyncio.timeout(_SECONDS_MAX):
            ahead = await _ahead(backend, run)
            workers = [each for each in await backend.registry.all() if run.is_pack or run.tag in each.tags]
    except (Unavailable, TimeoutError) as error:
        log.debug("cannot tell why the run waits", run_id=run.run_id, error=error)
        return None
    now = backend.clock()
    crowd = crowd_of(workers, now, backend.config.worker_disconnect_timeout_sec)
    serving = (
        [each for each in workers if each.packs is None or run.flow_name in each.packs] if run.is_pack else workers
    )
    fit = crowd_of(serving, now, backend.config.worker_disconnect_timeout_sec)
    reason, (message, message_ja) = _judge(run, ahead, crowd, fit, now - run.updated_at)
    return Wait(
        reason=reason,
        message=message,
        message_ja=message_ja,
        position=ahead.count + 1,
        position_capped=ahead.count >= _AHEAD_MAX,
        workers_alive=crowd.alive,
        slots=crowd.slots,
        slots_busy=crowd.slots_busy,
        oldest_ahead=_oldest(ahead, caller, now),
    )


def _judge(
    run: Run, ahead: Ahead, crowd: Crowd, fit: Crowd, waited_seconds: float
) -> tuple[WaitReason, tuple[str, str]]:
    if run.is_pack:
        pack = PackQueueing(
            pack_type=run.flow_name,
            waited_seconds=waited_seconds,
            ahead=ahead.count,
            ahead_capped=ahead.count >= _AHEAD_MAX,
            workers_alive=crowd.alive,
            workers_gone=crowd.gone,
            workers_serving=fit.alive,
        )
        return why_pack(pack), tell_pack(why_pack(pack), pack)
    facts = Queueing(
        tag=run.tag,
        waited_seconds=waited_seconds,
        ahead=ahead.count,
        ahead_capped=ahead.count >= _AHEAD_MAX,
        workers_alive=crowd.alive,
        workers_gone=crowd.gone,
        slots=crowd.slots,
        slots_busy=crowd.slots_busy,
    )
    return why(facts), tell(why(facts), facts)


async def _ahead(backend: GatewayBackend, run: Run) -> Ahead:
    if run.is_pack:
        return await backend.index.packs_ahead(run.submitted_at, run.run_id, _AHEAD_MAX)
    if run.status is RunState.RUNNING:
        return Ahead(0, None)  # handed back: the queue repeats a job before it delivers a new one
    return await backend.index.ahead(run.tag, run.submitted_at, run.run_id, _AHEAD_MAX)


def _oldest(ahead: Ahead, caller: Caller, now: float) -> OldestAhead | None:
    oldest = ahead.oldest
    if oldest is None:
        return None
    age = max(0.0, now - oldest.submitted_at)
    if caller.tenant_id is not None and caller.tenant_id != ahead.oldest_tenant_id:  # FLOW-273, FLOW-275
        return OldestAhead(age)
    return OldestAhead(age, oldest.run_id, oldest.submitted_at)
