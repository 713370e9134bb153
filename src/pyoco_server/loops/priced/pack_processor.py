"""Processes one message of a priced run, from delivery to acknowledgement (contract section 13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.actions.priced import facts, intents
from pyoco_server.actions.priced.finalize import Finished, Unfinished, claim_end, finish
from pyoco_server.actions.priced.patience import PATIENT, RetryLimit
from pyoco_server.actions.priced.send import send
from pyoco_server.actions.priced.start import NotHere, PutBack, Skip, Started, start_run
from pyoco_server.core.packs.spec import PackCheckFailed
from pyoco_server.core.priced.constants import QUEUE_MAX_RECEIVE_COUNT
from pyoco_server.core.priced.envelope import BadPackResult, Cover, Sealed, seal, seal_failed
from pyoco_server.core.priced.instants import SECOND_US, iso
from pyoco_server.core.priced.message import BadMessage, PackMessage, decode
from pyoco_server.core.priced.money import charge_on_success, usd_up
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import Intent, PricedRun
from pyoco_server.core.states.priced import Actor, At, Basis, Money, Stage, Status
from pyoco_server.errors import BelowPrice, DependencyUnavailable, NoRoom
from pyoco_server.executors.packs.port import (
    Call,
    Executed,
    Execution,
    Faulted,
    Outcome,
    Stopped,
    TimedOut,
    WarmProcess,
)
from pyoco_server.logs import get_logger
from pyoco_server.loops.priced.abilities import Abilities
from pyoco_server.loops.priced.fetching import Files, Unfetched, fetch_files
from pyoco_server.loops.priced.fitness import Fitness
from pyoco_server.loops.priced.lease import Lease
from pyoco_server.loops.priced.staging import NotStaged, StagingTries, prefix_of, stage, stage_once
from pyoco_server.loops.pulse import Pulse
from pyoco_server.ports.ledger.port import Lost
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["PackProcessor", "TakenMessage"]

log = get_logger(__name__)

#: PRICED-112: also for a message that hit a defect of ours.
_LATER_SECONDS = 30
#: A message that no worker can process should become a dead letter soon.
_BAD_SECONDS = 1
#: For a pack that this worker does not serve: other workers have this long to take it.
_NOT_MINE_SECONDS = 5
#: How long a started run waits for a process if its own has crashed: starting one takes half a second.
_BEGIN_SECONDS = 60.0
#: A result of this size is sealed in a thread, so that it does not delay the heartbeats of other runs.
_LARGE_BYTES = 262_144
#: For the envelope of a failed run, to which no row points.
_FAILED_ENVELOPE_SECONDS = 5.0

_WAITS = At(Status.QUEUED, Money.RESERVED, Stage.OPEN)


@dataclass(eq=False)
class TakenMessage:
    """One message in processing, and what it has become."""

    run: PricedRun | None = None
    execution: Execution | None = None
    #: The task that processes it.
    task: asyncio.Task[None] | None = None
    when_started: Callable[[], None] = lambda: None
    #: The end is being claimed or made: it takes only a moment, and should not be interrupted.
    is_ending: bool = False


def _now_us() -> int:
    return time.time_ns() // 1000


class PackProcessor:
    """Processes one message after another, from delivery to acknowledgement.

    Sends an ack after a successful commit, after a lost guard and for a run that must not be started; a nack for a run
    that could not even be started; nothing after an error whose effect is unknown (PRICED-120). A redelivery of a run
    that was started is always skipped.
    """

    def __init__(
        self,
        priced: Priced,
        abilities: Abilities,
        fitness: Fitness,
        pulse: Pulse,
        *,
        files: Files,
        tries: StagingTries,
        patience: RetryLimit = PATIENT,
    ) -> None:
        self._priced, self._abilities, self._fitness, self._pulse = priced, abilities, fitness, pulse
        self._files, self._tries, self._patience = files, tries, patience

    async def work(self, delivery: Delivery, process: WarmProcess, taken: TakenMessage) -> Status | None:
        """Process one message; each step adds one fact, and nothing is decided twice. Returns the run's final status if
        it ended here.

        Raises DependencyUnavailable if a store did not answer; then nothing was acknowledged.
        """
        held_at = time.monotonic()
        started = await self._start(delivery)
        if started is None:
            return None
        taken.run = started.run
        taken.when_started()
        async with Lease(self._pulse, self._priced, started.run, delivery, held_at) as lease:
            intent = await lease.while_mine(self._intend(started, process, taken))
            await lease.stop()
        if intent is not None and not lease.is_lost:
            taken.is_ending = True
            return await self._end(started.run, intent, delivery)
        log.warning("lease lost; doing nothing more for the run", **facts.about(started.run))
        await self._ack(delivery)  # PRICED-123: nothing more is done for it
        return None

    async def _start(self, delivery: Delivery) -> Started | None:
        """Start the run of a message. Returns None if there is nothing to execute; the message was then acked or put
        back."""
        try:
            message = decode(delivery.body)
        except BadMessage as error:  # PRICED-106
            log.error("received a message that no worker can process", count=delivery.count, why=str(error))
            await self._put_back(delivery, _BAD_SECONDS)
            return None
        if message.pack_type not in self._abilities.packs:
            await self._pass_on(message, delivery)
            return None
        if not await self._fitness.is_well_now():  # rather one receive too many than a run that cannot be ended
            await self._put_back(delivery, _LATER_SECONDS)
            return None
        started = await start_run(self._priced, message, delivery, self._covers)
        if isinstance(started, NotHere):
            await self._pass_on(message, delivery)
        elif isinstance(started, PutBack):
            # Not for a bad message: a doubt interrupts the receives of all slots, and each may use up one of a good
            # run's receives.
            if started.is_outage:
                self._fitness.doubt()
            await self._put_back(delivery, started.delay_seconds)
        elif isinstance(started, Skip):
            await self._ack(delivery)
        return started if isinstance(started, Started) else None

    def _covers(self, run: PricedRun, inputs: Mapping[str, Any]) -> bool:
        """Whether this worker has what the inputs need, such as data for their language (SAFE-3)."""
        spec = self._priced.packs.get(run.pack_type)
        try:
            needs = spec.needs(inputs) if spec is not None else ()
        except Exception as error:  # noqa: BLE001 - third-party code; the pack reports the error when it runs
            log.error("pack failed to determine what it needs", **facts.about(run), cause=type(error).__name__)
            return True
        return self._abilities.covers(run.pack_type, needs)

    async def _end(self, run: PricedRun, intent: Intent, delivery: Delivery) -> Status | None:
        """Claim the end of the run, make it, and acknowledge the message (PRICED-116, PRICED-117)."""
        claimed = await claim_end(
            self._priced, run, Basis.LEASE, Actor.WORKER, intent, run.lease_token, patience=self._patience
        )
        if isinstance(claimed, Lost):
            await self._ack(delivery)
            return None
        ended = await finish(self._priced, claimed, Actor.WORKER, self._patience)
        if isinstance(ended, Unfinished):
            self._fitness.doubt()
            return None
        await self._ack(delivery)
        return ended.run.status if isinstance(ended, Finished) else None

    async def _intend(self, started: Started, process: WarmProcess, taken: TakenMessage) -> Intent | None:
        """Execute the pack, store its result, and return the intent for the run. Returns None if this worker stopped
        the execution."""
        outcome = self._below_price(started) or await self._execute(started, process, taken)
        if isinstance(outcome, Stopped):
            return None
        intent = await self._success(started.run, outcome) if isinstance(outcome, Executed) else None
        if intent is None:
            intent = _failure(started.run, outcome)
            if intent.reason_code == Reason.PACK_UNAVAILABLE:
                self._abilities.nudge()
        if intent.status is Status.FAILED:
            await self._store_failed(started.run, intent)
        return intent

    def _below_price(self, started: Started) -> Faulted | None:
        """Refuse a tick whose reservation does not cover the price, if its keeper was without the plug-in (SAFE-1).

        Runs that a gateway has accepted keep their reservation, whatever the prices are by now.
        """
        run, spec = started.run, self._priced.packs.get(started.run.pack_type)
        if run.schedule is None or spec is None or not spec.executor:
            return None
        try:
            least = spec.least_reservation(started.inputs, self._priced.config.pack.prices)
        except PackCheckFailed as error:
            return Faulted(f"PRICE_UNKNOWN: {error}", is_unavailable=True)
        if run.reserved_usd_micros >= least:
            return None
        log.warning("refused a tick below the price; install the pack beside the keepers", **facts.about(run))
        return Faulted(f"RESERVATION_BELOW_PRICE: {BelowPrice(usd_up(least))}", is_unavailable=True)

    async def _execute(self, started: Started, process: WarmProcess, taken: TakenMessage) -> Outcome:
        """Execute the pack with the files that its inputs name, which are kept for as long as it runs."""
        spec = self._priced.packs.get(started.run.pack_type)
        try:
            keys = spec.files(started.inputs) if spec is not None else ()
        except Exception as error:  # noqa: BLE001 - third-party code; only this run fails
            log.error(
                "pack failed to determine which files it needs", **facts.about(started.run), cause=type(error).__name__
            )
            return Faulted("INPUT_REFUSED: the pack cannot tell which files it needs")
        if not keys:
            return await self._execute_with({}, started, process, taken)
        try:
            async with self._files.scratch.room() as room:
                files = await fetch_files(self._priced, started.run, keys, room, self._files.tries)
                return await self._execute_with(files, started, process, taken)
        except Unfetched as error:
            log.warning("could not fetch the files of a run", **facts.about(started.run), why=error.fault.detail)
            if error.is_outage:
                self._fitness.doubt()
            return error.fault
        except NoRoom as error:
            log.error("no room for the files of a run", **facts.about(started.run), error=error)
            return Faulted("INPUT_UNAVAILABLE: the worker has no room for the files of the run", is_unavailable=True)

    async def _execute_with(
        self, files: Mapping[str, str], started: Started, process: WarmProcess, taken: TakenMessage
    ) -> Outcome:
        run = started.run
        call = Call(
            pack_type=run.pack_type,
            inputs=started.inputs,
            run_id=run.run_id,
            tenant_id=run.tenant_id,
            trace_id=run.trace_id,
            timebox_seconds=run.timebox_sec,
            min_reliability_e4=run.min_reliability_e4,
            reserved_usd_micros=run.reserved_usd_micros,
            artifacts=run.artifacts,
            files=files,
        )
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                taken.execution = await process.begin(call)
        except TimeoutError:
            return Faulted("no process could be started for the pack", is_unavailable=True)
        began = time.monotonic()
        outcome = await taken.execution.outcome()
        log.info(
            "pack executed",
            **facts.about(run),
            pack_type=run.pack_type,
            outcome=type(outcome).__name__,
            seconds=round(time.monotonic() - began, 3),
            where=outcome.where if isinstance(outcome, Faulted) else None,
        )
        return outcome

    async def _success(self, run: PricedRun, executed: Executed) -> Intent:
        """Seal and stage the result. Returns the intent of a success, or of a failure if the result cannot be
        stored."""
        result = executed.result
        charge = charge_on_success(result.actual_cost_usd_micros, run.reserved_usd_micros)
        try:
            sealed = await self._sealed(self._cover(run, charge), executed)
        except BadPackResult as error:
            return intents.failure(run, Reason.PACK_FAILED, f"the result cannot be stored: {error}")
        pointer = await stage(self._priced, run, sealed, self._tries)
        if isinstance(pointer, NotStaged):
            if pointer.is_outage:
                self._fitness.doubt()
                return intents.unavailable(pointer.why)
            return intents.failure(run, Reason.RESULT_STORE_FAILED, pointer.why)
        return intents.success(run, result.actual_cost_usd_micros, pointer, result.tokens_consumed)

    async def _sealed(self, cover: Cover, executed: Executed) -> Sealed:
        if executed.size_bytes < _LARGE_BYTES:
            return seal(cover, executed.result)
        return await asyncio.to_thread(seal, cover, executed.result)

    async def _store_failed(self, run: PricedRun, intent: Intent) -> None:
        """Store the envelope of a failed run (PRICED-133). For people who inspect the store; no row points to it,
        and the run does not wait for it."""
        sealed = seal_failed(self._cover(run, intent.charge_usd_micros))
        await stage_once(self._priced, run, sealed, _FAILED_ENVELOPE_SECONDS)

    def _cover(self, run: PricedRun, charge_usd_micros: int) -> Cover:
        return Cover(
            run_id=run.run_id,
            pack_type=run.pack_type,
            trace_id=run.trace_id,
            profile_version=run.profile_version,
            prefix=prefix_of(run),
            generated_at=iso(_now_us() // SECOND_US * SECOND_US),
            reserved_usd_micros=run.reserved_usd_micros,
            charge_usd_micros=charge_usd_micros,
            minimum_fee_usd_micros=run.minimum_fee_usd_micros,
            min_reliability_e4=run.min_reliability_e4,
        )

    async def _pass_on(self, message: PackMessage, delivery: Delivery) -> None:
        """Leave a message to another worker.

        Before its receives are used up a new copy replaces it, so that a fleet in which not every worker serves every
        pack does not turn good runs into dead letters. A run that no longer waits gets no copy.
        """
        if delivery.count < QUEUE_MAX_RECEIVE_COUNT - 1:
            return await self._put_back(delivery, _NOT_MINE_SECONDS)
        row, now_us = await self._priced.ledger.read(lambda tx: (tx.runs.get(message.run_id), tx.now_us()))
        if row is None or (row.tenant_id, row.pack_type) != (message.tenant_id, message.pack_type):
            return await self._put_back(delivery, _BAD_SECONDS)
        if row.at == _WAITS:
            log.info(
                "passing on a run whose pack this worker does not serve", **facts.about(row), pack_type=row.pack_type
            )
            await send(self._priced, row, now_us)
        return await self._ack(delivery)

    async def _ack(self, delivery: Delivery) -> None:
        """Acknowledge a message. If the ack is lost, the message is redelivered and skipped (PRICED-120)."""
        try:
            await self._priced.queue.ack(delivery)
        except DependencyUnavailable as error:
            log.warning("could not acknowledge a message; it will be redelivered", cause=error)

    async def _put_back(self, delivery: Delivery, delay_seconds: int) -> None:
        try:
            await self._priced.queue.nack(delivery, delay_seconds)
        except DependencyUnavailable as error:
            log.warning("could not put a message back; it will be redelivered", cause=error)


def _failure(run: PricedRun, outcome: Outcome) -> Intent:
    """Return the intent of a failed execution (PRICED-118): the minimum fee; nothing if the operator is at fault
    (SAFE-3)."""
    assert isinstance(outcome, Faulted | TimedOut)
    if isinstance(outcome, TimedOut):
        return intents.failure(run, Reason.TIMEBOX_EXCEEDED, f"the pack took longer than {run.timebox_sec} s")
    if outcome.is_unavailable:
        return intents.unavailable(outcome.detail)
    return intents.failure(run, Reason.PACK_FAILED, outcome.detail)
