"""Explain why a run has not started."""

from __future__ import annotations

import asyncio

from pyoco_server.actions.measure import Crowd, crowd_of
from pyoco_server.actions.programs.explain_wait import explain_program_wait
from pyoco_server.actions.wait import AHEAD_MAX, SECONDS_MAX, OldestAhead, Wait, oldest_of, wait_for_time
from pyoco_server.core.packs.ability import offer_of
from pyoco_server.core.run import Caller, Run
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
from pyoco_server.core.worker_record import FLOWS, PACKS, WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import Ahead

__all__ = ["OldestAhead", "Wait", "explain_wait"]

log = get_logger(__name__)

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
    """Return why the run waits. Returns None if it does not wait, or if the reason cannot be determined in time.

    No round trip: the index and the registry are in memory. O(workers + log runs + runs ahead, at most 1,000). Costs
    nothing for a run that is being executed or has ended. The result may lag by one worker heartbeat and by changes
    that have not reached the index yet.
    """
    if not waits(run):
        return None
    if is_disputed(run):
        return _DISPUTED
    if run.waits_for_time:
        return wait_for_time(run)
    if run.is_exec:
        return await explain_program_wait(backend, caller, run)
    try:
        async with asyncio.timeout(SECONDS_MAX):
            ahead = await _ahead(backend, run)
            workers = [each for each in await backend.registry.all() if run.is_pack or run.tag in each.tags]
    except (Unavailable, TimeoutError) as error:
        log.debug("cannot determine why the run waits", run_id=run.run_id, error=error)
        return None
    now = backend.clock()
    lane = PACKS if run.is_pack else FLOWS
    crowd = crowd_of(workers, now, backend.config.worker_disconnect_timeout_sec, lane)
    if run.is_pack:
        reason, (message, message_ja) = _judge_pack(backend, run, ahead, workers, now)
    else:
        reason, (message, message_ja) = _judge(run, ahead, crowd, now - run.updated_at)
    return Wait(
        reason=reason,
        message=message,
        message_ja=message_ja,
        position=ahead.count + 1,
        position_capped=ahead.count >= AHEAD_MAX,
        workers_alive=crowd.alive,
        slots=crowd.slots,
        slots_busy=crowd.slots_busy,
        oldest_ahead=oldest_of(ahead, caller, now),
    )


def _judge_pack(
    backend: GatewayBackend, run: Run, ahead: Ahead, workers: list[WorkerRecord], now: float
) -> tuple[WaitReason, tuple[str, str]]:
    silence, pack = backend.config.worker_disconnect_timeout_sec, run.flow_name
    crowd = crowd_of(workers, now, silence)
    serving = [each for each in workers if each.packs is None or pack in each.packs]
    facts = PackQueueing(
        pack_type=pack,
        waited_seconds=now - run.updated_at,
        ahead=ahead.count,
        ahead_capped=ahead.count >= AHEAD_MAX,
        workers_alive=crowd.alive,
        workers_gone=crowd.gone,
        workers_serving=crowd_of(serving, now, silence).alive,
        missing=offer_of(pack, [each for each in workers if each.is_alive(now, silence)]).missing,
    )
    return why_pack(facts), tell_pack(why_pack(facts), facts)


def _judge(run: Run, ahead: Ahead, crowd: Crowd, waited_seconds: float) -> tuple[WaitReason, tuple[str, str]]:
    facts = Queueing(
        tag=run.tag,
        waited_seconds=waited_seconds,
        ahead=ahead.count,
        ahead_capped=ahead.count >= AHEAD_MAX,
        workers_alive=crowd.alive,
        workers_gone=crowd.gone,
        slots=crowd.slots,
        slots_busy=crowd.slots_busy,
    )
    return why(facts), tell(why(facts), facts)


async def _ahead(backend: GatewayBackend, run: Run) -> Ahead:
    if run.is_pack:
        return await backend.index.packs_ahead(run.submitted_at, run.run_id, AHEAD_MAX)
    if run.attempt > 0:
        return Ahead(0, None)  # put back: the queue redelivers a job before it delivers a new one
    return await backend.index.ahead(run.tag, run.submitted_at, run.run_id, AHEAD_MAX)
