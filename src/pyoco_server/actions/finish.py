"""Write the terminal state of a run, once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.beat import refresh
from pyoco_server.actions.claim import FlowAttempt
from pyoco_server.core.flow_moves import conclude
from pyoco_server.core.outcome import DeadReason, Failed, Outcome
from pyoco_server.core.retries.course import after, has_failed_a_try
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Run
from pyoco_server.errors import CATALOGUE, SnapshotTooLargeError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.runs.port import Absent, Lost, Stored, Withdrawn

__all__ = [
    "Ended",
    "Fenced",
    "Retried",
    "Unwritten",
    "end_unclaimed",
    "find_unended",
    "finish",
    "write_after",
    "write_terminal",
]

log = get_logger(__name__)

#: FLOW-322: retry the write, because executing a run again costs more than a short wait.
_TRIES = 3
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True)
class Ended:
    """The terminal record is written: the job may be acknowledged."""

    run: Run


@dataclass(frozen=True)
class Retried:
    """The attempt has failed, and the run waits for its next try: the job may be acknowledged. An alarm of the clock
    queues the next one."""

    run: Run


@dataclass(frozen=True)
class Fenced:
    """Another attempt owns the run, or the run has ended: nothing was written, and the job is not acknowledged."""


@dataclass(frozen=True)
class Unwritten:
    """The terminal record could not be written: the job has to be redelivered (FLOW-320)."""


async def finish(backend: Backend, held: FlowAttempt, outcome: Outcome) -> Ended | Retried | Fenced | Unwritten:
    """Write the end of the attempt: one write, before the job is acknowledged (FLOW-307).

    It ends the run, or makes it PENDING for its next try if its policy allows one (RETRY-14). A cancel request that
    came in meanwhile wins (FLOW-20). A crash before the write leaves a RUNNING record and a job that is redelivered; a
    crash after it leaves a job that finds its run ended or waiting.
    """
    async with held.lock:
        held.closed = True  # no heartbeat after this
        for attempt in range(_TRIES):
            try:
                return await _finish(backend, held, outcome)
            except Unavailable as error:
                text = CATALOGUE[8]
                log.error(text.en, run_id=held.run.run_id, err_id=text.err_id, msg_id=text.msg_id, cause=error)
                if attempt + 1 < _TRIES:
                    await asyncio.sleep(_PAUSE_SECONDS)
        return Unwritten()


async def _finish(backend: Backend, held: FlowAttempt, outcome: Outcome) -> Ended | Retried | Fenced:
    rounds = Rounds(f"run {held.run.run_id}")
    while True:
        rounds.begin()
        written = await write_after(backend, held.run, outcome, held.revision)
        if isinstance(written, Stored):
            return Ended(written.run) if written.run.is_terminal else Retried(written.run)
        found = await backend.runs.find(held.run.run_id)
        if isinstance(found, Stored) and found.run.is_terminal and found.run.is_owned_by(held.attempt_id):
            # Either our own earlier write succeeded and its answer was lost, or a keeper considered this worker dead
            # and ended our attempt. In both cases the run has ended and the job may be acknowledged. A dead letter
            # written by either has the same id (`bury_run`).
            return Ended(found.run)
        if isinstance(found, Stored) and has_failed_a_try(found.run, held.run.attempt):
            return Retried(found.run)  # our earlier write succeeded and its answer was lost
        if await refresh(backend, held) is Standing.FENCED:
            log.warning(
                "outcome dropped: another attempt owns the run",
                run_id=held.run.run_id,
                attempt=held.run.attempt,
                outcome=type(outcome).__name__,
            )
            return Fenced()


async def write_after(
    backend: Backend, run: Run, outcome: Outcome, revision: int, ended_by: str | None = None
) -> Stored | Lost:
    """Write what becomes of the run after its attempt (`core.retries.course.after`). A run whose record has no room for
    another try ends."""
    now = backend.clock()
    moved = after(run, outcome, now, backend.chance(), ended_by)
    if moved.is_terminal:
        return await write_terminal(backend, moved, revision)
    try:
        return await backend.runs.replace(moved, revision)
    except SnapshotTooLargeError as error:
        log.error("the record has no room for another try", run_id=run.run_id, error=error)
        return await write_terminal(backend, conclude(run, outcome, now, ended_by), revision)


async def write_terminal(backend: Backend, ended: Run, revision: int) -> Stored | Lost:
    """Write a terminal record, in its smallest form if the full one is too large."""
    try:
        return await backend.runs.replace(ended, revision)
    except SnapshotTooLargeError as error:  # FLOW-363: never repeat a run because its snapshot is too large
        log.error("terminal snapshot too large; storing the smallest form", run_id=ended.run_id, error=error)
        return await backend.runs.replace_smallest(ended, revision)


async def find_unended(backend: Backend, run_id: str) -> Stored | Run | Withdrawn | Absent:
    """Return the record of a flow that has not ended, else the ended run.

    Packs and programs have their own queues: for this one they are Withdrawn.
    """
    found = await backend.runs.find(run_id)
    if not isinstance(found, Stored):
        return found
    if found.run.is_pack or found.run.is_exec:
        return Withdrawn(found.revision)
    return found.run if found.run.is_terminal else found


async def end_unclaimed(backend: Backend, run_id: str, message: str, why: DeadReason) -> Run | Withdrawn | Absent:
    """Fail a run that cannot be executed at all, and return its terminal record, written here or earlier (FLOW-316).

    A run whose cancellation was requested becomes CANCELLED, without a reason.
    """
    rounds = Rounds(f"run {run_id}")
    while True:
        rounds.begin()
        found = await find_unended(backend, run_id)
        if not isinstance(found, Stored):
            return found
        ended = conclude(found.run, Failed(message=message, why=why), backend.clock())
        written = await write_terminal(backend, ended, found.revision)
        if isinstance(written, Stored):
            return written.run
