"""End a job with the report of an attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import release
from pyoco_server.actions.programs.complete_end import complete_end, write_end
from pyoco_server.actions.programs.history import event_of
from pyoco_server.actions.programs.put_back import Why, complete_retry, put_back_held
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.actions.programs.slots import free_slot_of
from pyoco_server.actions.programs.unoffered import verdict_on
from pyoco_server.core.programs import moves
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.record import Artifact, artifact_object
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.programs.tails import TAIL_BYTES
from pyoco_server.core.retries.course import has_failed_a_try
from pyoco_server.core.rounds import Rounds
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Corrupt
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import EventName
from pyoco_server.ports.runs.port import Stored

__all__ = ["STDERR", "STDOUT", "Output", "Settlement", "finish_job", "finish_reported"]

log = get_logger(__name__)

STDOUT, STDERR = "stdout.txt", "stderr.txt"


@dataclass(frozen=True)
class Output:
    """A file produced by an attempt: `output.zip`, `stdout.txt` or `stderr.txt`."""

    name: str
    size: int
    sha256: str
    #: Opens its bytes, if they are not stored yet. May be called again after a failure.
    open: Callable[[], AsyncIterator[bytes]] | None = None
    #: Its name in the object store, if they are.
    object: str | None = None


class Settlement(Enum):
    """What a report led to."""

    #: It is the result of the job.
    RECORDED = "recorded"
    #: A newer attempt has begun, or the run has ended: the report is dropped.
    STALE = "stale"
    #: It is not a result: the job is retried (GRID-79, RETRY-18), or has ended because its retry budget is spent.
    PUT_BACK = "put_back"
    #: The worker lacks the program and another one offers it: the job waits again, and this was no attempt (FIND-14).
    DECLINED = "declined"


async def finish_job(
    backend: Backend,
    attempt: ProgramAttempt,
    report: Report,
    outputs: Sequence[Output],
    on_closed: Callable[[], None] = lambda: None,
) -> Settlement:
    """Store the outputs, write the terminal record, the dead letter if due and the event, then answer the delivery.

    In that order (GRID-54). Costs one write, one event and the answer for a program without outputs. Frees no slot.
    Unless it raises, it closes the attempt and calls `on_closed`: the slot may be reused from then on, while letter,
    event and answer are still being written.

    The token decides: the result of an attempt that was put back, or that another process has taken over, is still the
    result as long as no newer attempt has begun (GRID-55).

    What a crash leaves behind:
      before the record  a RUNNING record: the next delivery takes over when its lease has expired;
      after it           a message whose run has ended: the next delivery, or the sweeper, writes what is missing.

    Raises Unavailable: the write may or may not have happened, and the attempt is still owned; report again. A write
    that did happen is then found, and counts (GRID-11).
    """
    if attempt.closed:
        worker_id = attempt.run.worker_id or ""
        return await finish_reported(backend, attempt.run.run_id, attempt.attempt_id, worker_id, report, outputs)
    if await _is_declined(backend, attempt.run, report, attempt.run.worker_id):
        await release(backend, attempt)
        on_closed()
        return Settlement.DECLINED
    async with attempt.ending:
        artifacts = None
        if not moves.is_no_result(attempt.run, report) and _next_try(backend, attempt.run, report) is None:
            artifacts = await _store(backend, attempt.run, report, outputs)
        async with attempt.lock:
            settlement, stored = await _finish(backend, attempt, report, outputs, artifacts)
            attempt.closed = True
    if stored is not None:
        attempt.run, attempt.revision = stored.run, stored.revision  # saves the caller a read
    on_closed()
    if stored is not None:
        await complete_end(backend, stored, attempt.delivery)
    return settlement


async def finish_reported(
    backend: Backend,
    run_id: str,
    token: str,
    worker_id: str,
    report: Report,
    outputs: Sequence[Output],
    may_have: Callable[[Run], bool] = lambda _: True,
) -> Settlement:
    """Do the same for an attempt that this process does not hold, as after a change of doors (GRID-27, GRID-55).

    Costs one more read; removes the message by its subject and frees the slot of the attempt. `may_have` returns
    whether this worker may run the job; if not, it is treated as an unknown one. Raises Unavailable.
    """
    try:
        found = await backend.runs.find(run_id)
    except Corrupt as error:
        log.error("result received for an unreadable record", run_id=run_id, error=error)
        return Settlement.STALE
    if not isinstance(found, Stored) or not found.run.is_exec or not may_have(found.run):
        log.warning("result received for an unknown job", run_id=run_id, worker_id=worker_id)
        return Settlement.STALE
    attempt = ProgramAttempt(found.run, found.revision, token, moves.addressed(found.run), None, None)
    if found.run.attempt_id != token:
        await _drop(backend, found.run, worker_id)
        return Settlement.STALE
    if found.run.is_terminal:
        # A repeated report, from a worker that did not receive the confirmation, or a late one. The run has ended
        # either way.
        return await _answer_repeat(backend, found.run, report, worker_id)
    if await _is_declined(backend, found.run, report, worker_id):
        if found.run.status is not RunState.PENDING:
            await release(backend, attempt)
            await free_slot_of(backend, found.run)
        return Settlement.DECLINED
    async with attempt.lock:
        settlement, stored = await _finish(backend, attempt, report, outputs, worker_id=worker_id)
        attempt.closed = True
    await free_slot_of(backend, found.run)
    if stored is not None:
        await complete_end(backend, stored, None)
    return settlement


async def _is_declined(backend: Backend, run: Run, report: Report, worker_id: str | None) -> bool:
    """Return whether the worker lacks the program and another one offers it. Nothing was started then. O(workers)."""
    if report.error_code is not ErrorCode.EXEC_NOT_FOUND:
        return False
    return await verdict_on(backend, program_of(run).exec_name, but=worker_id) is None


async def _finish(
    backend: Backend,
    attempt: ProgramAttempt,
    report: Report,
    outputs: Sequence[Output],
    artifacts: list[Artifact] | None = None,
    worker_id: str | None = None,
) -> tuple[Settlement, Stored | None]:
    """Write the terminal record. Returns it only if this call ended the run. The caller holds the lock.

    `artifacts` are the outputs, if they are stored.
    """
    worker_id = worker_id or attempt.run.worker_id
    is_known = False
    rounds = Rounds(f"run {attempt.run.run_id}")
    settlement = await _try_again(backend, attempt, report, rounds)
    if settlement is not None:
        return settlement, None
    while True:
        rounds.begin()
        if moves.is_no_result(attempt.run, report):
            if report.status is RunState.CANCELLED and not is_known:
                # A cancel may be requested in the record without this process having seen it.
                is_known = True
                if not await _reread(backend, attempt):
                    break
                continue
            return await _no_result(backend, attempt, report), None
        if artifacts is None:
            artifacts = await _store(backend, attempt.run, report, outputs)
        ended = moves.conclude(
            attempt.run,
            report,
            artifacts,
            backend.clock(),
            worker_id=worker_id,
            buries_errors=backend.config.dlq_publish_execution_error,
        )
        written = await write_end(backend, ended, attempt.revision)
        if isinstance(written, Stored):
            return Settlement.RECORDED, written
        if not await _reread(backend, attempt):
            found = await _own_end(backend, attempt, ended)
            if found is not None:
                return Settlement.RECORDED, found
            break
    await _drop(backend, attempt.run, worker_id)
    return Settlement.STALE, None


async def _no_result(backend: Backend, attempt: ProgramAttempt, report: Report) -> Settlement:
    """Put the attempt back (GRID-79). One already put back waits for its next attempt, so there is nothing to do."""
    if attempt.run.status is RunState.PENDING or await put_back_held(backend, attempt, Why.WORKER_ERROR, report.error):
        return Settlement.PUT_BACK
    return Settlement.STALE


async def _reread(backend: Backend, attempt: ProgramAttempt) -> bool:
    """Return whether the record still accepts a result of this attempt, whichever process holds it now."""
    try:
        found = await backend.runs.find(attempt.run.run_id)
    except Corrupt:
        return False
    if not isinstance(found, Stored) or found.run.is_terminal or found.run.attempt_id != attempt.attempt_id:
        return False
    attempt.run, attempt.revision = found.run, found.revision
    return True


async def _own_end(backend: Backend, attempt: ProgramAttempt, ended: Run) -> Stored | None:
    """Return the record if it equals the one this call tried to write: an earlier try succeeded (GRID-11)."""
    try:
        found = await backend.runs.find(attempt.run.run_id)
    except Corrupt:
        return None
    if isinstance(found, Stored) and found.run.attempt_id == attempt.attempt_id and _facts(found.run) == _facts(ended):
        return found
    return None


def _next_try(backend: Backend, run: Run, report: Report) -> Run | None:
    """Return the run waiting for its next try, if its policy allows one (RETRY-18)."""
    return moves.retry(run, report, backend.clock(), programs_of(backend).chance())


async def _try_again(backend: Backend, attempt: ProgramAttempt, report: Report, rounds: Rounds) -> Settlement | None:
    """Make the run wait for its next try. None: no other try is allowed, or the report is not that of this run."""
    while (again := _next_try(backend, attempt.run, report)) is not None:
        rounds.begin()
        written = await backend.runs.replace(again, attempt.revision)
        retried = written if isinstance(written, Stored) else None
        if retried is None and not await _reread(backend, attempt):
            retried = await _own_retry(backend, attempt)
            if retried is None:
                return None
        if retried is not None:
            await complete_retry(backend, attempt, retried)
            attempt.run, attempt.revision = retried.run, retried.revision
            return Settlement.PUT_BACK
    return None


async def _own_retry(backend: Backend, attempt: ProgramAttempt) -> Stored | None:
    """Return the record if an earlier try of this call has made it wait for its next try (GRID-11)."""
    try:
        found = await backend.runs.find(attempt.run.run_id)
    except Corrupt:
        return None
    if not isinstance(found, Stored) or not found.run.waits_for_time:
        return None
    return found if has_failed_a_try(found.run, attempt.run.attempt) else None


def _facts(run: Run) -> tuple[object, ...]:
    program = program_of(run)
    return run.status, program.exit_code, program.error_code, program.artifacts


async def _answer_repeat(backend: Backend, run: Run, report: Report, worker_id: str) -> Settlement:
    program = program_of(run)
    if (run.status, program.exit_code) == (report.status, report.exit_code):
        return Settlement.RECORDED
    await _drop(backend, run, worker_id)
    return Settlement.STALE


async def _drop(backend: Backend, run: Run, worker_id: str | None) -> None:
    log.warning(
        "result dropped: a newer attempt started or the run has ended",
        run_id=run.run_id,
        attempt=run.attempt,
        worker_id=worker_id,
    )
    event = event_of(run, EventName.STALE_RESULT, backend.clock(), detail=worker_id)
    await programs_of(backend).events.tell(event)


async def _store(backend: Backend, run: Run, report: Report, outputs: Sequence[Output]) -> list[Artifact]:
    """Store an archive always, and output only if it is too long for the record (GRID-145). Raises Unavailable."""
    given = {output.name for output in outputs}
    artifacts = [await _store_one(backend, run, output) for output in outputs]
    for name, data in ((STDOUT, report.stdout), (STDERR, report.stderr)):
        if len(data) > TAIL_BYTES and name not in given:
            printed = Output(name, len(data), "", lambda data=data: _pieces(data))  # type: ignore[misc]
            artifacts.append(await _store_one(backend, run, printed))
    return artifacts


async def _store_one(backend: Backend, run: Run, output: Output) -> Artifact:
    if output.open is None:
        return Artifact(output.name, output.object or "", output.size, output.sha256)
    name = artifact_object(run.run_id, run.attempt, output.name)
    info = await programs_of(backend).artifacts.put(name, output.open(), output.size)
    return Artifact(output.name, name, info.size_bytes, info.sha256_hex)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data
