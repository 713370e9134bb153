"""The worker's lane of priced runs: as many at once as it has slots."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from pyoco_server.actions.priced.patience import PATIENT, Patience
from pyoco_server.core.priced.constants import RECEIVE_WAIT_SECONDS
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.executors.packs.port import PackExecutor, WarmProcess
from pyoco_server.logs import get_logger
from pyoco_server.loops.priced.abilities import Abilities, Look
from pyoco_server.loops.priced.cancelling import cancelled, unless
from pyoco_server.loops.priced.fetching import Files
from pyoco_server.loops.priced.fitness import Fitness
from pyoco_server.loops.priced.pack_processor import Live, PackProcessor
from pyoco_server.loops.priced.staging import Tries
from pyoco_server.outages import Outage
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["PackWorker"]

log = get_logger(__name__)

T = TypeVar("T")

#: A message that met an outage or a defect of ours comes again after this.
_LATER_SECONDS = 30
#: After a receive that failed.
_PAUSE_SECONDS = 1.0
#: What is being ended when the time to finish is over has this long: it is a transaction or two.
_ENDING_SECONDS = 5.0


class PackWorker:
    """Executes priced runs until it is told to stop.

    Each slot asks for one message once a process waits for it, and for the next when that one is dealt with: what
    waits in a worker's hand burns its visibility (PRICED-110). While a store does not answer, nobody asks.

    `start` returns once it takes work, `stop` once nothing of it runs; both may be called twice and at once.
    """

    def __init__(
        self,
        priced: Priced,
        executor: PackExecutor,
        slots: int,
        packs: Collection[str] = (),
        *,
        files: Files,
        tries: Tries | None = None,
        patience: Patience = PATIENT,
    ) -> None:
        """`packs`: those it takes; none: all that the executor has."""
        self._priced, self._executor, self._slots, self._packs = priced, executor, slots, frozenset(packs)
        self._outage = Outage(log)
        self._files, self._tries, self._patience = files, tries or Tries(), patience
        self._fitness = Fitness(priced)
        #: Tells what is missing for its packs; None: nothing ever is. Set it before the start.
        self.look: Look | None = None
        self._abilities: Abilities | None = None
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._lanes: set[asyncio.Task[None]] = set()
        self._lives: dict[Live, None] = {}
        #: How the run that was ended here last has ended.
        self.last_status: str | None = None
        #: Called whenever `running`, `packs` or `last_status` has changed.
        self.when_changed: Callable[[], None] = lambda: None

    @property
    def packs(self) -> tuple[str, ...]:
        """Those it executes: all that could be loaded, of those it takes, and lack nothing. None while it does not
        run."""
        return () if self._abilities is None else tuple(sorted(self._abilities.packs))

    @property
    def facts(self) -> Mapping[str, Any]:
        abilities = self._abilities
        if abilities is None:
            return {"packs": ()}
        return {"packs": self.packs, "packs_missing": abilities.missing, "packs_provide": abilities.provides}

    @property
    def running(self) -> tuple[str, ...]:
        """The ids of the runs in hand."""
        return tuple(live.run.run_id for live in self._lives if live.run is not None)

    @property
    def restarts(self) -> int:
        """Processes that had to be replaced because they fell over or were killed."""
        return self._executor.restarts

    async def start(self) -> None:
        """Raises UsageError when no pack can be executed here."""
        async with self._gate:
            if self._lanes:
                return
            self._stopping.clear()
            await self._executor.start()
            served = self._executor.packs & (self._packs or self._executor.packs)
            if not served:  # it could only pass on what it receives
                log.warning("none of the packs is known here: no priced run is taken", packs=sorted(self._packs))
                return
            abilities = await self._looked(served)
            processor = PackProcessor(
                self._priced,
                abilities,
                self._fitness,
                files=self._files,
                tries=self._tries,
                patience=self._patience,
            )
            await self._files.scratch.start()
            await self._fitness.start()
            self._lanes = {asyncio.create_task(self._lane(processor), name=f"packs {n}") for n in range(self._slots)}
            self._abilities = abilities
            self._tell()
            log.info("priced runs are taken", packs=self.packs, slots=self._slots)

    async def _looked(self, served: frozenset[str]) -> Abilities:
        """What it can execute, by a first look."""
        look = self.look
        abilities = Abilities(served, look or (lambda _: {}))
        if look is not None:
            abilities.when_changed = self._tell
            await abilities.start()
            await abilities.looked.wait()
        return abilities

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Receive nothing more, and let what runs finish. What has not after `drain_seconds` (0: no limit) is killed
        and left as it is, without a claim: the reaper ends it (PRICED-125)."""
        async with self._gate:
            self._stopping.set()
            abilities, self._abilities = self._abilities, None
            if abilities is not None:
                await abilities.stop()
            if self._lanes:
                if self.running:
                    log.info("finishing priced runs", running=len(self.running))
                await asyncio.wait(self._lanes, timeout=drain_seconds or None)
                await self._give_up()
                self._lanes = set()
            await self._fitness.stop()
            await self._executor.stop()
            await self._files.scratch.stop()

    async def _give_up(self) -> None:
        """The time to finish is over."""
        for live in [each for each in self._lives if not each.is_ending]:
            if live.run is not None:
                log.warning("the priced run did not finish in time; it is left to the reaper", run_id=live.run.run_id)
            if live.execution is not None:
                live.execution.kill()
        ending = {live for live in self._lives if live.is_ending}
        spared = {lane for lane in self._lanes if lane in {live.lane for live in ending}}
        await cancelled(self._lanes - spared)
        if spared:
            await asyncio.wait(spared, timeout=_ENDING_SECONDS)
            await cancelled(spared)

    async def _lane(self, processor: PackProcessor) -> None:
        while not self._stopping.is_set():
            try:
                seat = await self._unless_stopped(self._executor.seat())
                if seat is not None:
                    await self._take_one(processor, seat)
                self._outage.worked()
            except DependencyUnavailable as error:
                self._outage.failed("no priced run could be received", error)
                await self._unless_stopped(asyncio.sleep(_PAUSE_SECONDS))
            except Exception:  # the top of a loop: a lane that has ended would be a slot that is deaf
                log.exception("a lane of priced runs failed; it goes on")
                await self._unless_stopped(asyncio.sleep(_PAUSE_SECONDS))

    async def _take_one(self, processor: PackProcessor, seat: WarmProcess) -> None:
        live = Live(lane=asyncio.current_task(), when_started=self._tell)
        try:
            delivery = await self._received()
            if delivery is not None:
                self._lives[live] = None
                await self._work(processor, delivery, seat, live)
        finally:
            self._lives.pop(live, None)
            try:
                if live.execution is not None:  # over already, unless the lease was lost: then it has its five seconds
                    live.execution.cancel()
                    await live.execution.outcome()
            finally:
                seat.leave()
            self._tell()

    def _tell(self) -> None:
        self.when_changed()

    async def _work(self, processor: PackProcessor, delivery: Delivery, seat: WarmProcess, live: Live) -> None:
        try:
            status = await processor.work(delivery, seat, live)
        except DependencyUnavailable as error:
            log.warning("a store did not answer; the message comes again", count=delivery.count, cause=error)
            self._fitness.doubt()
        except Exception:  # the top of one message: a defect of ours must not end the lane
            log.exception("a message of a priced run was not dealt with; it comes again", count=delivery.count)
        else:
            self.last_status = status.value if status is not None else self.last_status
            return
        if live.run is None:  # later it is of no use: the run was started, and another start is skipped
            with contextlib.suppress(DependencyUnavailable):
                await self._priced.queue.nack(delivery, _LATER_SECONDS)

    async def _received(self) -> Delivery | None:
        """None: we are to stop, or a store does not answer, or there was nothing for a while."""
        if await self._unless_stopped(self._fitness.well.wait()) is None:
            return None
        receiving = self._priced.queue.receive(1, RECEIVE_WAIT_SECONDS)
        deliveries: Sequence[Delivery] | None = await unless(receiving, self._stopping, self._fitness.unwell)
        return deliveries[0] if deliveries else None

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        return await unless(work, self._stopping)
