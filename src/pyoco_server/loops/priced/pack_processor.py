"""One message of a priced run, from hand to acknowledgement (contract section 13)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.actions.priced import facts, intents
from pyoco_server.actions.priced.finalize import Finished, Unfinished, claim_end, finish
from pyoco_server.actions.priced.patience import PATIENT, Patience
from pyoco_server.actions.priced.send import send
from pyoco_server.actions.priced.start import NotHere, PutBack, Skip, Started, start_run
from pyoco_server.core.priced.constants import QUEUE_MAX_RECEIVE_COUNT
from pyoco_server.core.priced.envelope import BadPackResult, Cover, Sealed, seal, seal_failed
from pyoco_server.core.priced.instants import SECOND_US, iso
from pyoco_server.core.priced.message import BadMessage, PackMessage, decode
from pyoco_server.core.priced.money import charge_on_success
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import Intent, PricedRun
from pyoco_server.core.states.priced import Actor, At, Basis, Money, Stage, Status
from pyoco_server.errors import DependencyUnavailable, NoRoom
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
from pyoco_server.loops.priced.heartbeat import Heartbeat
from pyoco_server.loops.priced.staging import NotStaged, Tries, prefix_of, stage, stage_once
from pyoco_server.ports.ledger.port import Lost
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["Live", "PackProcessor"]

log = get_logger(__name__)

#: PRICED-112: also for a message that met a defect of ours.
_LATER_SECONDS = 30
#: A message nobody can act on becomes a dead letter soon.
_BAD_SECONDS = 1
#: A pack of other workers: they have this long to take it.
_NOT_MINE_SECONDS = 5
#: How long a started run waits for a process, should its own have died: one takes half a second to start.
_BEGIN_SECONDS = 60.0
#: A result of this size is sealed in a thread: the heartbeats of other runs do not wait for it.
_LARGE_BYTES = 262_144
#: For the envelope of a failed run, which nothing will point to.
_FAILED_ENVELOPE_SECONDS = 5.0

_WAITS = At(Status.QUEUED, Money.RESERVED, Stage.OPEN)


@dataclass(eq=False)
class Live:
    """One message in hand, and what it has become."""

    run: PricedRun | None = None
    execution: Execution | None = None
    #: The task that carries it.
    lane: asyncio.Task[None] | None = None
    when_started: Callable[[], None] = lambda: None
    #: The end is being claimed or made: it is soon over, and better not cut short.
    is_ending: bool = False


def _now_us() -> int:
    return time.time_ns() // 1000


class PackProcessor:
    """Carries one message after another from hand to acknowledgement.

    What the queue hears: an ack after a won commit, after a lost guard and for what is not to be started; a nack for
    what could not even be started; nothing after an error whose effect is unknown (PRICED-120). A redelivery of a run
    that was started is always skipped.
    """

    def __init__(
        self,
        priced: Priced,
        abilities: Abilities,
        fitness: Fitness,
        *,
        files: Files,
        tries: Tries,
        patience: Patience = PATIENT,
        now_us: Callable[[], int] = _now_us,
    ) -> None:
        self._priced, self._abilities, self._fitness = priced, abilities, fitness
        self._files, self._tries, self._patience, self._now_us = files, tries, patience, now_us

    async def work(self, delivery: Delivery, seat: WarmProcess, live: Live) -> Status | None:
        """Each step adds one fact; nothing is decided twice. How the run ended, if it ended here.

        Raises DependencyUnavailable when a store did not answer; then nothing was acknowledged.
        """
        held_at = time.monotonic()
        started = await self._start(delivery)
        if started is None:
            return None
        live.run = started.run
        live.when_started()
        await self._priced.reached("worker.after_start")
        async with Heartbeat(self._priced, started.run, delivery, held_at) as heartbeat:
            intent = await heartbeat.while_mine(self._intend(started, seat, live))
            await heartbeat.stop()
        if intent is not None and not heartbeat.is_lost:
            live.is_ending = True
            return await self._end(started.run, intent, delivery)
        log.warning("the run is not this worker's any more", **facts.about(started.run))
        await self._ack(delivery)  # PRICED-123: nothing more is done for it
        return None

    async def _start(self, delivery: Delivery) -> Started | None:
        """None: nothing is to be executed, and the queue has heard why."""
        try:
            message = decode(delivery.body)
        except BadMessage as error:  # PRICED-106
            log.error("a message nobody can act on was received", count=delivery.count, why=str(error))
            await self._put_back(delivery, _BAD_SECONDS)
            return None
        if message.pack_type not in self._abilities.packs:
            await self._pass_on(message, delivery)
            return None
        if not await self._fitness.is_well_now():  # rather a receive too many than a run that cannot be ended
            await self._put_back(delivery, _LATER_SECONDS)
            return None
        started = await start_run(self._priced, message, delivery, self._covers)
        if isinstance(started, NotHere):
            await self._pass_on(message, delivery)
        elif isinstance(started, PutBack):
            # Not for a strange message: a doubt ends the receives of all lanes, and each may burn one of a good run.
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
        except Exception as error:  # noqa: BLE001 - a plug-in's own code: it fails in the pack, where it is told
            log.error("a pack cannot tell what it needs", **facts.about(run), cause=type(error).__name__)
            return True
        return self._abilities.covers(run.pack_type, needs)

    async def _end(self, run: PricedRun, intent: Intent, delivery: Delivery) -> Status | None:
        """PRICED-116, PRICED-117"""
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
        await self._priced.reached("worker.before_ack")
        await self._ack(delivery)
        return ended.run.status if isinstance(ended, Finished) else None

    async def _intend(self, started: Started, seat: WarmProcess, live: Live) -> Intent | None:
        """Execute the pack and store what it made; what is to become of the run. None: it was stopped by us."""
        outcome = await self._execute(started, seat, live)
        if isinstance(outcome, Stopped):
            return None
        intent = await self._success(started.run, outcome) if isinstance(outcome, Executed) else None
        if intent is None:
            intent = _failure(started.run, outcome)
            if intent.reason_code == Reason.PACK_UNAVAILABLE:
                self._abilities.nudge()
        if intent.status is Status.FAILED:
            await self._store_failed(started.run, intent)
        await self._priced.reached("worker.after_upload")
        return intent

    async def _execute(self, started: Started, seat: WarmProcess, live: Live) -> Outcome:
        """With the files that its inputs name, which are there for as long as it runs."""
        spec = self._priced.packs.get(started.run.pack_type)
        try:
            keys = spec.files(started.inputs) if spec is not None else ()
        except Exception as error:  # noqa: BLE001 - a plug-in's own code: it costs the one run, and now
            log.error("a pack cannot tell which files it needs", **facts.about(started.run), cause=type(error).__name__)
            return Faulted("INPUT_REFUSED: the pack cannot tell which files it needs")
        if not keys:
            return await self._execute_with({}, started, seat, live)
        try:
            async with self._files.scratch.room() as room:
                files = await fetch_files(self._priced, started.run, keys, room, self._files.tries)
                return await self._execute_with(files, started, seat, live)
        except Unfetched as error:
            log.warning("the files of a run were not fetched", **facts.about(started.run), why=error.fault.detail)
            if error.is_outage:
                self._fitness.doubt()
            return error.fault
        except NoRoom as error:
            log.error("the files of a run have no place", **facts.about(started.run), error=error)
            return Faulted("INPUT_UNAVAILABLE: the worker has no room for the files of the run", is_unavailable=True)

    async def _execute_with(self, files: Mapping[str, str], started: Started, seat: WarmProcess, live: Live) -> Outcome:
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
                live.execution = await seat.begin(call)
        except TimeoutError:
            return Faulted("no process could be started for the pack", is_unavailable=True)
        began = time.monotonic()
        outcome = await live.execution.outcome()
        log.info(
            "a pack was executed",
            **facts.about(run),
            pack_type=run.pack_type,
            outcome=type(outcome).__name__,
            seconds=round(time.monotonic() - began, 3),
            where=outcome.where if isinstance(outcome, Faulted) else None,
        )
        return outcome

    async def _success(self, run: PricedRun, executed: Executed) -> Intent:
        """Or a failure, when what it made cannot be stored."""
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
        """PRICED-133: for whoever looks into the store; the run does not point to it, and does not wait for it."""
        sealed = seal_failed(self._cover(run, intent.charge_usd_micros))
        await stage_once(self._priced, run, sealed, _FAILED_ENVELOPE_SECONDS)

    def _cover(self, run: PricedRun, charge_usd_micros: int) -> Cover:
        return Cover(
            run_id=run.run_id,
            pack_type=run.pack_type,
            trace_id=run.trace_id,
            profile_version=run.profile_version,
            prefix=prefix_of(run),
            generated_at=iso(self._now_us() // SECOND_US * SECOND_US),
            reserved_usd_micros=run.reserved_usd_micros,
            charge_usd_micros=charge_usd_micros,
            minimum_fee_usd_micros=run.minimum_fee_usd_micros,
            min_reliability_e4=run.min_reliability_e4,
        )

    async def _pass_on(self, message: PackMessage, delivery: Delivery) -> None:
        """For another worker. Before its receives are used up a fresh copy takes its place, so that a fleet in which
        not everyone serves every pack makes no dead letters of good runs. A run that waits no more gets no copy."""
        if delivery.count < QUEUE_MAX_RECEIVE_COUNT - 1:
            return await self._put_back(delivery, _NOT_MINE_SECONDS)
        row, now_us = await self._priced.ledger.read(lambda tx: (tx.runs.get(message.run_id), tx.now_us()))
        if row is None or (row.tenant_id, row.pack_type) != (message.tenant_id, message.pack_type):
            return await self._put_back(delivery, _BAD_SECONDS)
        if row.at == _WAITS:
            log.info(
                "a run of a pack that is not served here is passed on", **facts.about(row), pack_type=row.pack_type
            )
            await send(self._priced, row, now_us)
        return await self._ack(delivery)

    async def _ack(self, delivery: Delivery) -> None:
        """A lost ack is a redelivery, which is skipped (PRICED-120)."""
        try:
            await self._priced.queue.ack(delivery)
        except DependencyUnavailable as error:
            log.warning("an acknowledgement was not sent; the message comes again", cause=error)

    async def _put_back(self, delivery: Delivery, delay_seconds: int) -> None:
        try:
            await self._priced.queue.nack(delivery, delay_seconds)
        except DependencyUnavailable as error:
            log.warning("a message was not given back; it comes again by itself", cause=error)


def _failure(run: PricedRun, outcome: Outcome) -> Intent:
    """PRICED-118: the minimum fee; nothing where the operator is at fault (SAFE-3)."""
    assert isinstance(outcome, Faulted | TimedOut)
    if isinstance(outcome, TimedOut):
        return intents.failure(run, Reason.TIMEBOX_EXCEEDED, f"the pack took longer than {run.timebox_sec} s")
    if outcome.is_unavailable:
        return intents.unavailable(outcome.detail)
    return intents.failure(run, Reason.PACK_FAILED, outcome.detail)
