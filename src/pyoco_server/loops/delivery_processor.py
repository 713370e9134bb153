"""Processes one delivery, from receipt to acknowledgement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from pyoco_server.actions.bury import bury, bury_run
from pyoco_server.actions.claim import Busy, FlowAttempt, Spent, claim_run
from pyoco_server.actions.finish import Ended, Fenced, Retried, Unwritten, end_unclaimed, finish
from pyoco_server.actions.keep_outputs import TenantUse, keep_outputs
from pyoco_server.actions.put_back import put_back_run
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.job import Job, decode_job, run_of
from pyoco_server.core.outcome import NO_TERMS, Cancelled, DeadReason, Failed, Outcome, TaskTimedOut
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.values.kept import Kept
from pyoco_server.errors import CATALOGUE, Corrupt, InvalidJob, PyocoError, SnapshotTooLargeError, Unavailable
from pyoco_server.executors.port import Executor, Work
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.flow_live import FlowLive
from pyoco_server.loops.pulse import Pulse
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.queue.port import Delivery, Reply
from pyoco_server.ports.runs.port import Absent

__all__ = ["DeliveryProcessor", "QueueTerms", "Worked"]

log = get_logger(__name__)

#: FLOW-321
LATER_SECONDS = 2.0
#: Another worker owns the run: check again when its last heartbeat would be stale, or after this at the latest.
BUSY_SECONDS = 15.0
#: An operator may repair an unreadable record; until then the job waits.
CORRUPT_SECONDS = 10.0

#: The reply sent to the queue. A fenced worker replies nothing: its ack would affect the new owner's delivery.
REPLIES: dict[type, Reply] = {
    Ended: Reply.ACK,
    Retried: Reply.ACK,
    Spent: Reply.ACK,
    Busy: Reply.LATER,
    Unwritten: Reply.LATER,
    Fenced: Reply.NOTHING,
}


@dataclass(frozen=True)
class Worked:
    """The result of one delivery."""

    run_id: str | None
    #: The terminal status, if this delivery ended the run.
    ended: str | None = None


class QueueTerms(Protocol):
    """What the queue allows, as an `Intake` reports it."""

    @property
    def ack_wait_seconds(self) -> float: ...
    @property
    def max_deliver(self) -> int: ...


class _Once:
    """A callable that calls its target at most once."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class DeliveryProcessor:
    """Processes deliveries from receipt to acknowledgement. Used by both the worker loop and the library."""

    def __init__(
        self,
        backend: Backend,
        executor: Executor,
        me: Owner,
        pulse: Pulse,
        terms: QueueTerms,
        when_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`when_changed` is called whenever `running` has one more."""
        self._backend, self._executor, self._me, self._pulse = backend, executor, me, pulse
        self._terms, self._when_changed = terms, when_changed
        self._outage = Outage(log)
        self._outputs_use = TenantUse()
        #: Deliveries in flight, in order of receipt.
        self._lives: dict[FlowLive, None] = {}
        # FLOW-313: an existing consumer may have a shorter timer than the settings say.
        self._hold_seconds = min(backend.config.ack_progress_interval_sec, terms.ack_wait_seconds / 2)
        # The last deliveries end the run instead of executing it: if this worker crashes too, the next delivery can
        # still end the run.
        spare = 2 if terms.max_deliver > 5 else 0
        self._last_count = terms.max_deliver - spare if terms.max_deliver > 1 else sys.maxsize
        #: When set, no new execution begins and claimed runs are put back.
        self.is_closing = False

    @property
    def lives(self) -> tuple[FlowLive, ...]:
        return tuple(self._lives)

    @property
    def running(self) -> tuple[str, ...]:
        """The runs that are being executed."""
        return tuple(live.run_id for live in self._lives if live.run_id is not None and live.is_executing)

    async def work(self, delivery: Delivery, when_free: Callable[[], None]) -> Worked:
        """Process one delivery, from receipt to acknowledgement. Each step adds one fact; nothing is decided twice.

        `when_free` is called once, as soon as there is capacity for another delivery. Never raises for an error in the
        job.
        """
        free = _Once(when_free)
        try:
            return await self._work(delivery, free)
        except Unavailable as error:  # FLOW-319
            _log_error("NATS failed while a job was in flight; the job will be redelivered", error, delivery)
            await delivery.answer(Reply.LATER, LATER_SECONDS)
        except Corrupt as error:
            self._outage.failed("could not read the run's record; the job will be redelivered", error, tag=delivery.tag)
            await delivery.answer(Reply.LATER, CORRUPT_SECONDS)
        except SnapshotTooLargeError as error:
            return await self._give_up(delivery, error)
        finally:
            free()
        return Worked(_run_id_of(delivery))

    async def _give_up(self, delivery: Delivery, error: SnapshotTooLargeError) -> Worked:
        """End a run whose record is so full that no worker can claim it."""
        _log_error("the run's record is too large to be claimed", error, delivery)
        job = decode_job(delivery.data)  # decoding succeeded before
        ended = await end_unclaimed(self._backend, job.run_id, str(error), DeadReason.EXECUTION_ERROR)
        if isinstance(ended, Run):
            await self._bury(ended, delivery)
        elif isinstance(ended, Absent):  # from a foreign producer: the dead letter is the only trace
            run = replace(run_of(job), tag=delivery.tag, error=str(error), reason=DeadReason.EXECUTION_ERROR)
            await self._bury(run, delivery)
        await delivery.answer(Reply.ACK)
        return Worked(job.run_id, ended.status if isinstance(ended, Run) else None)

    async def _bury(self, run: Run, delivery: Delivery) -> None:
        await bury_run(self._backend, run, num_delivered=delivery.count, subject=delivery.subject)

    async def _work(self, delivery: Delivery, free: _Once) -> Worked:
        live = FlowLive(self._backend, delivery, self._hold_seconds)
        self._lives[live] = None
        self._pulse.begin(live)
        try:
            try:
                job = decode_job(delivery.data)
            except InvalidJob as error:
                return await self._refuse(delivery, error)
            if job.tag != delivery.tag:  # a foreign producer's mistake: the subject is authoritative
                job = replace(job, tag=delivery.tag)
            taken = await claim_run(self._backend, job, self._me, first_delivery=delivery.count == 1)
            if isinstance(taken, Spent) and taken.run is not None:
                await self._bury(taken.run, delivery)  # its worker may have crashed before this, or before its ack
            if not isinstance(taken, FlowAttempt):
                delay = taken.seconds + 0.5 if isinstance(taken, Busy) else 0.0
                await delivery.answer(REPLIES[type(taken)], min(delay, BUSY_SECONDS))
                return Worked(job.run_id)
            outcome = await self._perform(delivery, job, taken, live, free)
            if outcome is None:
                await put_back_run(self._backend, taken)
                # Not released: the run was cancelled, or this worker no longer owns it. `_end` finds out which.
                outcome = Cancelled()
            return await self._end(delivery, taken, live, outcome)
        finally:
            self._pulse.end(live)
            del self._lives[live]

    async def _perform(
        self, delivery: Delivery, job: Job, held: FlowAttempt, live: FlowLive, free: _Once
    ) -> Outcome | None:
        """Execute the job. Never raises: every result is an outcome. Returns None if there was no capacity to begin."""
        # RETRY-15: over all tries of the run, each of which has a job of its own.
        lost = held.run.attempts_lost + 1
        count = lost if held.run.tries else max(lost, delivery.count)
        if count >= self._last_count:
            message = f"the job was delivered {count} times and no worker could end its run"
            return Failed(message=message, why=DeadReason.MAX_DELIVER)
        if self.is_closing:
            return None
        run = held.run
        work = Work(job, delivery.data, run.attempt, timeout=run.timeout, task_tries=run.task_tries)
        execution = await self._executor.begin(work, free)
        if execution is None:
            return None
        live.execute(held, execution)
        self._when_changed()  # FLOW-197: the registry lists the run too
        outcome = await execution.outcome()
        live.execution = None
        if job.workflow_yaml is not None and job.workflow_yaml_sha256 is None:
            outcome = _for_good(outcome)
        if outcome.kept is not None:
            outcome = replace(outcome, kept=await self._kept(outcome.kept, held, live))
        return outcome

    async def _kept(self, kept: Kept, held: FlowAttempt, live: FlowLive) -> Kept:
        """Store what the tasks have returned, before the record refers to it. A fenced attempt stores nothing."""
        try:
            return kept if live.is_fenced else await keep_outputs(self._backend, held.run, kept, self._outputs_use)
        finally:
            if kept.file is not None:
                kept.file.close()

    async def _end(self, delivery: Delivery, held: FlowAttempt, live: FlowLive, outcome: Outcome) -> Worked:
        async with held.lock:  # a put back in progress decides first
            is_put_back = held.is_put_back
        if is_put_back and not live.is_fenced:
            # Increasing delay, so that a worker without hosts does not use up a job's deliveries within a minute.
            await delivery.answer(Reply.LATER, min(LATER_SECONDS * (delivery.count - 1), BUSY_SECONDS))
            return Worked(held.run.run_id)
        result: Ended | Retried | Fenced | Unwritten = Fenced()
        if not live.is_fenced:
            result = await finish(self._backend, held, outcome)
        if isinstance(result, Retried):
            _log_retry(result.run)
        if not isinstance(result, Ended):
            await delivery.answer(REPLIES[type(result)], LATER_SECONDS)
            return Worked(held.run.run_id)
        run = result.run
        if run.reason is not None:
            _log_failure(run)
            await self._bury(run, delivery)
        dropped = run.reason == DeadReason.INVALID_JOB
        await delivery.answer(Reply.DROP if dropped else REPLIES[Ended])
        return Worked(run.run_id, run.status)

    async def _refuse(self, delivery: Delivery, error: InvalidJob) -> Worked:
        """FLOW-316: end the run if it is known, write the dead letter, then drop the job."""
        _log_error("an invalid job was received", error, delivery, reason=DeadReason.INVALID_JOB)
        run = None
        if error.run_id is not None:
            ended = await end_unclaimed(self._backend, error.run_id, str(error), DeadReason.INVALID_JOB)
            # A run that had ended for another reason had a different job and has its own dead letter; this one does not
            # belong to it.
            run = ended if isinstance(ended, Run) and ended.reason == DeadReason.INVALID_JOB else None
        dead_letter = DeadLetter(
            timestamp=self._backend.clock(),
            reason=DeadReason.INVALID_JOB,
            error=str(error),
            tag=delivery.tag,
            run_id=error.run_id,
            flow_name=run.flow_name if run else None,
            tags=run.tags if run else None,
            worker_id=self._me.worker_id,
            num_delivered=delivery.count,
            subject=delivery.subject,
            tenant_id=run.tenant_id if run else None,
            api_key_id=run.api_key_id if run else None,
        )
        unknown_run_id = f"{error.run_id or self._backend.new_id()}.dlq.invalid"
        await bury(
            self._backend, dead_letter, f"{run.run_id}.dlq.{run.attempt}" if run else unknown_run_id
        )  # as `bury_run`
        await delivery.answer(Reply.DROP)
        return Worked(error.run_id, run.status if run else None)


def _run_id_of(delivery: Delivery) -> str | None:
    try:
        return decode_job(delivery.data).run_id
    except InvalidJob as error:
        return error.run_id


_NUMBERS = {DeadReason.INVALID_JOB: 12, DeadReason.FLOW_NOT_FOUND: 6}


def _log_failure(run: Run) -> None:
    refused = (run.error or "").startswith(CATALOGUE[31].err_id)  # a refused callable; the reason covers more
    text = CATALOGUE[31 if refused else _NUMBERS.get(DeadReason(run.reason or ""), 7)]
    log.error(
        text.en,
        run_id=run.run_id,
        flow_name=run.flow_name,
        tag=run.tag,
        worker_id=run.worker_id,
        reason=run.reason,
        err_id=text.err_id,
        msg_id=text.msg_id,
        cause=run.error,
    )


def _for_good(outcome: Outcome) -> Outcome:
    """A foreign producer has stored its flow.yaml nowhere but in this job, so no alarm could queue another one."""
    outcome = replace(outcome, progress=replace(outcome.progress, terms=NO_TERMS))
    return replace(outcome, again_after=None) if isinstance(outcome, TaskTimedOut) else outcome


def _log_retry(run: Run) -> None:
    log.warning(
        "a try failed; the run waits for its next one",
        run_id=run.run_id,
        flow_name=run.flow_name,
        tries=len(run.tries),
        not_before=run.not_before,
        cause=run.error,
    )


def _log_error(message: str, error: PyocoError, delivery: Delivery, reason: str | None = None) -> None:
    log.error(message, tag=delivery.tag, reason=reason, deliveries=delivery.count, error=error)
