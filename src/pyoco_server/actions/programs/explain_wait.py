"""Explain why a job has not begun."""

from __future__ import annotations

import asyncio

from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.show_cap import show_cap
from pyoco_server.actions.wait import AHEAD_MAX, SECONDS_MAX, Wait, oldest_of
from pyoco_server.core.programs.moves import client_of
from pyoco_server.core.programs.offers import may_handle, offers
from pyoco_server.core.programs.record import Program
from pyoco_server.core.programs.waiting import ProgramQueueing, tell_program, why_program
from pyoco_server.core.run import Caller, Run
from pyoco_server.core.waiting import WaitReason
from pyoco_server.core.worker_record import PROGRAMS, WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.index.port import Ahead

__all__ = ["explain_program_wait"]

log = get_logger(__name__)


async def explain_program_wait(backend: GatewayBackend, caller: Caller, run: Run) -> Wait | None:
    """Return why a job waits. None: unknown. No round trip: reads the index, the registry and the slots in memory.

    O(workers + slots of the client + log runs + jobs ahead, at most 1,000). The answer may lag slightly.
    """
    program = run.program
    if program is None:
        return None
    try:
        async with asyncio.timeout(SECONDS_MAX):
            ahead = await backend.index.programs_ahead(run, AHEAD_MAX)
            workers = [
                each
                for each in await backend.registry.all()
                if offers(each, program.group, program.exec_name) and may_handle(each, run.tenant_id)
            ]
        facts = _facts(backend, run, program, ahead, workers)
    except (Unavailable, TimeoutError) as error:
        log.debug("cannot explain why a job waits", run_id=run.run_id, error=error)
        return None
    reason = why_program(facts)
    message, message_ja = tell_program(reason, facts)
    return Wait(
        reason=reason,
        message=message,
        message_ja=message_ja,
        position=ahead.count + 1,
        position_capped=facts.ahead_capped,
        workers_alive=facts.workers_alive,
        slots=facts.places,
        slots_busy=facts.places_busy,
        oldest_ahead=oldest_of(ahead, caller, backend.clock()),
        until=program.not_before if reason is WaitReason.RETRY else None,
    )


def _facts(
    backend: GatewayBackend, run: Run, program: Program, ahead: Ahead, workers: list[WorkerRecord]
) -> ProgramQueueing:
    now, silence = backend.clock(), backend.config.worker_disconnect_timeout_sec
    alive = [worker for worker in workers if worker.is_alive(now, silence)]
    cap = show_cap(programs_of(backend), program.group, client_of(run))
    places = sum(worker.max_parallel or 0 for worker in alive)
    # The credits that a worker reports may be fewer than its slots, because the CPUs of its machine are busy.
    free = sum(worker.credits or 0 for worker in alive)
    return ProgramQueueing(
        exec_name=program.exec_name,
        client_id=program.client_id,
        waited_seconds=now - run.updated_at,
        retry_seconds=0.0 if program.not_before is None else program.not_before - now,
        ahead=ahead.count,
        ahead_capped=ahead.count >= AHEAD_MAX,
        cap=cap.cap,
        inflight=cap.inflight,
        workers_alive=len(alive),
        workers_gone=len(workers) - len(alive),
        places=places,
        places_busy=max(0, places - free),
        running=min(places, sum(worker.load_of(PROGRAMS).busy for worker in alive)),
    )
