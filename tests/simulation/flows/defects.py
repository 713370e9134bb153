"""Defects that a queue like this one can have, put into the product for the time of a simulation.

Each is a context manager. The simulator has to find every one of them (`test_defects.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from pyoco_server.actions import beat, claim, submit
from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.claim import FlowAttempt, Spent, claim_run
from pyoco_server.actions.finish import Fenced, Unwritten
from pyoco_server.core.flow_moves import claim as begin
from pyoco_server.core.job import Job, job_of
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.loops import delivery_processor
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.clock import StoreClock
from pyoco_server.ports.queue.port import Reply
from pyoco_server.ports.receipts.jetstream import JetStreamReceipts
from pyoco_server.ports.receipts.port import Receipt
from pyoco_server.ports.runs.port import Lost, Stored
from simulation.process import CURRENT

__all__ = ["DEFECTS"]


@contextmanager
def fenced_worker_acknowledges() -> Iterator[None]:
    """A worker that lost its run acknowledges the delivery, which is the new owner's by then."""
    with patch.dict(delivery_processor.REPLIES, {Fenced: Reply.ACK}):
        yield


@contextmanager
def unwritten_end_is_acknowledged() -> Iterator[None]:
    """The job leaves the queue although the terminal record was not written."""
    with patch.dict(delivery_processor.REPLIES, {Unwritten: Reply.ACK}):
        yield


async def _write_blindly(backend: Backend, run: Run) -> Stored | Lost:
    """Write over whatever is there, as code without compare-and-set does."""
    for _ in range(20):
        found = await backend.runs.find(run.run_id)
        if isinstance(found, Stored):
            written = await backend.runs.replace(run, found.revision)
            if isinstance(written, Stored):
                return written
    raise Unavailable("no write without a condition went through")


@contextmanager
def claim_without_revision() -> Iterator[None]:
    """A claim overwrites whatever was written since the run was read."""
    real: Callable[..., Any] = claim._claim_once

    async def blind(backend: Backend, job: Job, me: Owner, attempt_id: str) -> Any:
        found = await backend.runs.find(job.run_id)
        if not isinstance(found, Stored) or found.run.status is not RunState.PENDING:
            return await real(backend, job, me, attempt_id)
        written = await _write_blindly(backend, begin(found.run, me, attempt_id, backend.clock()))
        assert isinstance(written, Stored)
        return FlowAttempt(written.run, written.revision, attempt_id)

    async def first(backend: Backend, job: Job, me: Owner, *, first_delivery: bool) -> Any:
        return await claim_run(backend, job, me, first_delivery=False)

    with patch.object(claim, "_claim_once", blind), patch.object(delivery_processor, "claim_run", first):
        yield


@contextmanager
def heartbeat_overwrites_cancel() -> Iterator[None]:
    """A heartbeat that lost its write writes again, over the request to cancel that it lost to."""

    async def write(backend: Backend, held: FlowAttempt, run: Run) -> Standing:
        written = await _write_blindly(backend, run)
        assert isinstance(written, Stored)
        held.run, held.revision = written.run, written.revision
        return Standing.OURS

    with patch.object(beat, "_write", write):
        yield


@contextmanager
def processes_trust_their_own_clocks() -> Iterator[None]:
    """This project had it: every process compared heartbeats with the clock of its own machine, so machines whose
    clocks differ took live runs from each other. Since then all of them go by the clock of NATS."""
    with patch.object(StoreClock, "__call__", lambda _: time.time()):
        yield


@contextmanager
def keeper_trusts_its_own_clock() -> Iterator[None]:
    """The same for keepers alone: they end runs whose workers are alive."""
    original = StoreClock.__call__

    def now(self: StoreClock) -> float:
        return time.time() if CURRENT.get().name.startswith("keeper") else original(self)

    with patch.object(StoreClock, "__call__", now):
        yield


@contextmanager
def letter_is_lost_in_a_crash() -> Iterator[None]:
    """This project had it: a worker that was killed between the end of a run and its dead letter left no letter,
    because whoever took the delivery next found the run ended and only acknowledged it."""
    real = claim_run

    async def forgetful(backend: Backend, job: Job, me: Owner, *, first_delivery: bool) -> Any:
        taken = await real(backend, job, me, first_delivery=first_delivery)
        return Spent(taken.why) if isinstance(taken, Spent) else taken

    with patch.object(delivery_processor, "claim_run", forgetful):
        yield


@contextmanager
def claim_ignores_signs_of_life() -> Iterator[None]:
    """A second delivery takes a run over although its worker shows signs of life; and the old one is not told."""
    with (
        patch.object(claim, "alive_seconds", lambda *_: 0.0),
        patch.dict(delivery_processor.REPLIES, {Fenced: Reply.ACK}),
    ):
        yield


@contextmanager
def submit_ignores_a_failed_publish() -> Iterator[None]:
    """A submission is answered with success although its job may not be stored."""

    async def careless(backend: Backend, run: Run, ask: Any) -> Stored | Lost:
        stored = await backend.runs.create(run)
        if isinstance(stored, Stored):
            try:
                await backend.queue.put(job_of(run, ask, stored.revision))
            except Unavailable:
                return stored
        return stored

    with (
        patch.object(submit, "record_and_queue", careless),
        patch("pyoco_server.actions.submit_once.record_and_queue", careless),
    ):
        yield


@contextmanager
def receipt_is_overwritten() -> Iterator[None]:
    """The receipt of an idempotency key is written over the one that was there first."""

    async def claim_receipt(self: JetStreamReceipts, key: str, run_id: str, fingerprint: str) -> Receipt:
        entry = await self._bucket.get(key)
        return await self.replace(key, run_id, Receipt(run_id, fingerprint, entry.revision if entry else 0))

    with patch.object(JetStreamReceipts, "claim", claim_receipt):
        yield


@contextmanager
def next_try_forgets_the_ones_before() -> Iterator[None]:
    """The job of a next try names the revision of the record, so that its claim writes over the failed tries."""

    def naming(run: Run, ask: Any, revision: int) -> Job:
        return job_of(run, ask, revision + 1)

    with patch("pyoco_server.actions.release_run.job_of", naming):
        yield


@contextmanager
def last_try_is_not_the_last() -> Iterator[None]:
    """One more try than the policy allows."""

    def next_try_at(run: Run, policy: Any, failure: Any, now: float, chance: float) -> float | None:
        return None if failure is None or len(run.tries) >= policy.tries else now + policy.delay

    with patch("pyoco_server.core.retries.course.next_try_at", next_try_at):
        yield


#: By name: how to put it back.
DEFECTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        fenced_worker_acknowledges,
        unwritten_end_is_acknowledged,
        claim_without_revision,
        heartbeat_overwrites_cancel,
        processes_trust_their_own_clocks,
        keeper_trusts_its_own_clock,
        letter_is_lost_in_a_crash,
        claim_ignores_signs_of_life,
        submit_ignores_a_failed_publish,
        receipt_is_overwritten,
        next_try_forgets_the_ones_before,
        last_try_is_not_the_last,
    )
}
