"""The lane of packs: executes as many priced runs at once as it has slots."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from pyoco_server.actions.priced.patience import PATIENT, RetryLimit
from pyoco_server.core.priced.constants import RECEIVE_WAIT_SECONDS
from pyoco_server.core.worker_description import LaneMembers, LaneReport, LastEnd
from pyoco_server.core.worker_record import PACKS
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.executors.packs.port import PackExecutor, WarmProcess
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.cancelling import cancelled, unless
from pyoco_server.loops.priced.abilities import Abilities, Probe
from pyoco_server.loops.priced.fetching import Files
from pyoco_server.loops.priced.fitness import Fitness
from pyoco_server.loops.priced.pack_processor import PackProcessor, TakenMessage
from pyoco_server.loops.priced.staging import StagingTries
from pyoco_server.loops.pulse import Pulse
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["PackLane"]

log = get_logger(__name__)

T = TypeVar("T")

#: A message that hit an outage or a defect of ours is redelivered after this time.
_LATER_SECONDS = 30
#: After a receive that failed.
_PAUSE_SECONDS = 1.0
#: Runs that are being ended when the drain time is over get this long: ending takes a transaction or two.
_ENDING_SECONDS = 5.0


class PackLane:
    """Executes priced runs until it is stopped.

    Each slot receives one message once a process is ready for it, and the next one when that is done: a message that
    waits in a worker uses up its visibility timeout (PRICED-110). While a store does not answer, nothing is received.

    `start` returns once the lane takes work, `stop` once nothing of it runs; both may be called twice and
    concurrently.
    """

    def __init__(
        self,
        priced: Priced,
        executor: PackExecutor,
        slots: int,
        packs: Collection[str] = (),
        *,
        files: Files,
        tries: StagingTries | None = None,
        patience: RetryLimit = PATIENT,
    ) -> None:
        """`packs`: the packs to take; empty: all that the executor has."""
        self._priced, self._executor, self._slots, self._packs = priced, executor, slots, frozenset(packs)
        self._outage = Outage(log)
        self._files, self._tries, self._patience = files, tries or StagingTries(), patience
        self._fitness = Fitness(priced)
        #: Reports what is missing for its packs; None: nothing ever is. Set it before the start.
        self.probe: Probe | None = None
        self._abilities: Abilities | None = None
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._slot_tasks: set[asyncio.Task[None]] = set()
        self._pulse = Pulse()
        self._taken: dict[TakenMessage, None] = {}
        self._last_end: LastEnd | None = None
        #: Called whenever `report` has changed.
        self.when_changed: Callable[[], None] = lambda: None

    @property
    def packs(self) -> tuple[str, ...]:
        """The packs that it executes now: those it takes that could be loaded and lack nothing. Empty while it does
        not run."""
        return () if self._abilities is None else tuple(sorted(self._abilities.packs))

    @property
    def last_status(self) -> str | None:
        """The final status of the last run that was ended here."""
        return None if self._last_end is None else self._last_end.status

    def report(self) -> LaneReport:
        return LaneReport(
            lane=PACKS,
            slots=self._slots,
            running=self.running,
            last_end=self._last_end,
            restarts=self.restarts,
            members=self.facts,
        )

    @property
    def facts(self) -> LaneMembers:
        abilities = self._abilities
        if abilities is None:
            return {"packs": ()}
        return {"packs": self.packs, "packs_missing": abilities.missing, "packs_provide": abilities.provides}

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the runs in progress."""
        return tuple(taken.run.run_id for taken in self._taken if taken.run is not None)

    @property
    def restarts(self) -> int:
        """The number of processes that were replaced because they crashed or were killed."""
        return self._executor.restarts

    async def start(self) -> None:
        """Start the worker. Raises UsageError if the executor cannot start.

        If the executor has none of the packs to take, the worker logs a warning and takes nothing.
        """
        async with self._gate:
            if self._slot_tasks:
                return
            self._stopping.clear()
            await self._executor.start()
            served = self._executor.packs & (self._packs or self._executor.packs)
            if not served:  # it could only pass on what it receives
                log.warning("none of the packs is known here: taking no priced runs", packs=sorted(self._packs))
                return
            abilities = await self._checked(served)
            processor = PackProcessor(
                self._priced,
                abilities,
                self._fitness,
                self._pulse,
                files=self._files,
                tries=self._tries,
                patience=self._patience,
            )
            await self._files.scratch.start()
            await self._fitness.start()
            await self._pulse.start()
            self._slot_tasks = {
                asyncio.create_task(self._run_slot(processor), name=f"packs {n}") for n in range(self._slots)
            }
            self._abilities = abilities
            self._notify()
            log.info("taking priced runs", packs=self.packs, slots=self._slots)

    async def _checked(self, served: frozenset[str]) -> Abilities:
        """Return what this worker can execute, after a first check."""
        probe = self.probe
        abilities = Abilities(served, probe or (lambda _: {}))
        if probe is not None:
            abilities.when_changed = self._notify
            await abilities.start()
            await abilities.checked.wait()
        return abilities

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Receive nothing more, and let running packs finish.

        A run that is unfinished after `drain_seconds` (None: no limit) is killed and left without a claim: the reaper
        ends it (PRICED-125).
        """
        async with self._gate:
            self._stopping.set()
            abilities, self._abilities = self._abilities, None
            if abilities is not None:
                await abilities.stop()
            if self._slot_tasks:
                if self.running:
                    log.info("finishing priced runs", running=len(self.running))
                await asyncio.wait(self._slot_tasks, timeout=drain_seconds)
                await self._give_up()
                self._slot_tasks = set()
            await self._pulse.stop()
            await self._fitness.stop()
            await self._executor.stop()
            await self._files.scratch.stop()

    async def _give_up(self) -> None:
        """Kill the runs that are unfinished when the drain time is over."""
        for taken in [each for each in self._taken if not each.is_ending]:
            if taken.run is not None:
                log.warning("priced run did not finish in time; it is left to the reaper", run_id=taken.run.run_id)
            if taken.execution is not None:
                taken.execution.kill()
        spared = self._slot_tasks & {taken.task for taken in self._taken if taken.is_ending}
        await cancelled(self._slot_tasks - spared)
        if spared:
            await asyncio.wait(spared, timeout=_ENDING_SECONDS)
            await cancelled(spared)

    async def _run_slot(self, processor: PackProcessor) -> None:
        while not self._stopping.is_set():
            try:
                process = await self._unless_stopped(self._executor.reserve_process())
                if process is not None:
                    await self._take_one(processor, process)
                self._outage.worked()
            except DependencyUnavailable as error:
                self._outage.failed("no priced run could be received", error)
                await self._unless_stopped(asyncio.sleep(_PAUSE_SECONDS))
            except Exception:  # top level of a loop: without its task a slot receives nothing
                log.exception("a slot of priced runs failed; it continues")
                await self._unless_stopped(asyncio.sleep(_PAUSE_SECONDS))

    async def _take_one(self, processor: PackProcessor, process: WarmProcess) -> None:
        taken = TakenMessage(task=asyncio.current_task(), when_started=self._notify)
        try:
            delivery = await self._received()
            if delivery is not None:
                self._taken[taken] = None
                await self._work(processor, delivery, process, taken)
        finally:
            self._taken.pop(taken, None)
            try:
                if taken.execution is not None:  # over already, unless the lease was lost: then it gets five seconds
                    taken.execution.cancel()
                    await taken.execution.outcome()
            finally:
                process.leave()
            self._notify()

    def _notify(self) -> None:
        self.when_changed()

    async def _work(
        self, processor: PackProcessor, delivery: Delivery, process: WarmProcess, taken: TakenMessage
    ) -> None:
        try:
            status = await processor.work(delivery, process, taken)
        except DependencyUnavailable as error:
            log.warning("a store did not answer; the message will be redelivered", count=delivery.count, cause=error)
            self._fitness.doubt()
        except Exception:  # top level of one message: a defect of ours must not end the slot
            log.exception("failed to process a message of a priced run; it will be redelivered", count=delivery.count)
        else:
            if status is not None:
                self._last_end = LastEnd(status.value, time.monotonic())
            return
        if taken.run is None:  # after the start a redelivery is useless: another start is skipped
            with contextlib.suppress(DependencyUnavailable):
                await self._priced.queue.nack(delivery, _LATER_SECONDS)

    async def _received(self) -> Delivery | None:
        """Receive one message. Returns None on a stop, if a store does not answer, or if there was no message for a
        while."""
        if await self._unless_stopped(self._fitness.well.wait()) is None:
            return None
        receiving = self._priced.queue.receive(1, RECEIVE_WAIT_SECONDS)
        deliveries: Sequence[Delivery] | None = await unless(receiving, self._stopping, self._fitness.unwell)
        return deliveries[0] if deliveries else None

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        return await unless(work, self._stopping)
