"""End jobs whose program no worker has (FIND-14)."""

from __future__ import annotations

from pyoco_server.actions.programs.complete_end import complete_end, complete_found_end, write_end
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.message import decode_job
from pyoco_server.core.programs.offers import judge_unoffered
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt, InvalidJob, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.runs.port import Stored

__all__ = ["end_unoffered", "verdict_on"]

log = get_logger(__name__)

#: The process that claims it after this delay finds and reports what is wrong.
_LATER_SECONDS = 5.0


async def verdict_on(backend: Backend, exec_name: str, *, but: str | None = None) -> ErrorCode | None:
    """Return how jobs of this program end now.

    None: they wait, since a worker of the group offers it, or this is unknown.

    `but` is a worker to ignore, because it has just reported that it lacks the program. O(workers), no round trip once
    the registry is followed.
    """
    group = programs_of(backend).config.exec_group
    try:
        await backend.registry.start()
        workers = [each for each in await backend.registry.all() if each.worker_id != but]
    except Unavailable as error:
        log.warning("cannot read which workers offer a program; its jobs wait", exec_name=exec_name, error=error)
        return None
    return judge_unoffered(workers, group, exec_name, backend.clock(), backend.config.worker_disconnect_timeout_sec)


async def end_unoffered(backend: Backend, delivery: Delivery, code: ErrorCode) -> Run | None:
    """Fail a run without an attempt, with a dead letter. The caller has judged that no worker offers its program.

    Returns the ended run. None: it was not PENDING, and the message is redelivered or removed.

    Costs a read and a write, then as `complete_end`. A crash after the write leaves a message whose run has ended: the
    next delivery completes the end. Raises Unavailable.
    """
    try:
        job = decode_job(delivery.data)
        found = await backend.runs.find(job.run_id)
    except (InvalidJob, Corrupt):
        await delivery.answer(Reply.LATER, _LATER_SECONDS)
        return None
    config = programs_of(backend).config
    if not isinstance(found, Stored):  # GRID-53 step 2: never discard the message of a missing record
        run = moves.accept(job, job.max_attempts or config.exec_max_attempts)
    elif found.run.is_terminal:
        await complete_found_end(backend, found, delivery)
        return None
    elif found.run.status is not RunState.PENDING:
        await delivery.answer(Reply.LATER, _LATER_SECONDS)
        return None
    else:
        run = found.run
    ended = await write_end(backend, moves.fail_unoffered(run, code, backend.clock()), found.revision)
    if not isinstance(ended, Stored):
        await delivery.answer(Reply.LATER, 1.0)
        return None
    log.warning("no worker has the program of a job", run_id=job.run_id, exec_name=job.exec_name, code=code)
    await complete_end(backend, ended, delivery)
    return ended.run
