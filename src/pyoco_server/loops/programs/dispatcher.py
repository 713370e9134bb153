"""Brings queued jobs and free seats together, in turns (section 11)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import Passed, claim_job, free_slot, take_slot
from pyoco_server.actions.programs.put_back import Why
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.turns import Turn
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.programs.caps import Caps
from pyoco_server.loops.programs.client_queues import ClientQueues, ClientQueueState
from pyoco_server.loops.programs.in_flight import InFlight
from pyoco_server.outages import Outage
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.ports.queue.port import Delivery
from pyoco_server.ports.slots.port import Slot
from pyoco_server.ports.wakeups.port import Listening, Wakeup

__all__ = ["Credit", "Credits", "Dispatcher", "WorkerLost"]

log = get_logger(__name__)

#: Looks under way at once. Each has a seat at least, so there are never more than seats.
_STEPS_MAX = 256
#: After a defect of ours.
_DEFECT_SECONDS = 1.0


class WorkerLost(Exception):
    """The worker could not be reached: the attempt counts as lost with it (GRID-83)."""


class Credit(Protocol):
    """One reserved place for one attempt: a credit of a worker."""

    @property
    def worker_id(self) -> str: ...

    def give_back(self) -> None:
        """Nothing was there for it: the credit is whole again."""

    async def start(self, attempt: ProgramAttempt) -> None:
        """Hand the attempt over; it is in the holdings already. Raises WorkerLost."""


class Credits(Protocol):
    """Who could run something. Neither call may block."""

    def reserve_credit(self, exec_name: str, tenant: str | None) -> Credit | None:
        """Reserve a place of the next worker in turn that may run it for this tenant (`tenant_token`) and has a credit.
        None: there is none now."""

    def serves(self, exec_name: str) -> bool:
        """Whether somebody could run it, now or when a credit comes."""


@dataclass
class _Look:
    """One look at one lane: a seat for each job that is asked for, and the slots there are for them."""

    state: ClientQueueState
    heard: int
    turns: list[Turn[Credit]] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    #: Slots that have to be taken first.
    missing: int = 0


class Dispatcher:
    """Takes a job only with a slot of its client and a seat in hand (GRID-62), programs in turn, clients in turn.

    It looks when it is told of a job, a credit, a free slot or a new lane; without any word, at idle lanes after 1, 2,
    4 … 30 s. Order is kept within this process: what several start at the same moment is nobody's order.

    What it cannot do: know what is in a lane without asking. A wrong belief costs a look.
    """

    def __init__(
        self,
        backend: Backend,
        holder: str,
        worker_credits: Credits,
        in_flight: InFlight,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self._holder, self._credits_by_worker, self._in_flight = (
            backend,
            holder,
            worker_credits,
            in_flight,
        )
        self._programs = programs_of(backend)
        self._group = self._programs.config.exec_group
        self._clock, self._outage = clock, Outage(log)
        self._lanes = ClientQueues(clock)
        self._caps = Caps(self._programs, self._group, self._lanes, self._free_soon, clock)
        self._woken = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._is_stopping = False
        self._gate = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._steps: set[asyncio.Task[None]] = set()
        self._frees: set[asyncio.Task[None]] = set()
        self._listening: Listening | None = None

    # Words from outside -------------------------------------------------------------------------------------------

    def nudge(self, exec_name: str | None = None) -> None:
        """A credit came or a worker joined: look now. Never waits. Who has a credit for what is asked then."""
        del exec_name
        self._woken.set()

    def _on_lane(self, lane: ClientQueue) -> None:
        if lane.group == self._group and not self._is_stopping:
            self._lanes.add(lane)
            self._woken.set()

    def _on_wakeup(self, wakeup: Wakeup, word: str) -> None:
        if wakeup is Wakeup.NEW:
            exec_name, _, client_id = word.partition(".")
            self._lanes.hear(exec_name, client_id)
            self._woken.set()

    def _on_free(self, group: str, client_id: str) -> None:
        if group == self._group and self._caps.hear_freed(client_id):
            self._woken.set()

    def _on_slot(self, slot: Slot) -> None:
        """An attempt is over, and its slot is free for the next one of its client."""
        self._caps.keep(slot)
        self._woken.set()

    def _on_put_back(self, attempt: ProgramAttempt) -> None:
        """Its job comes again at a known time: nobody else need be waited for."""
        job, program = attempt.job, attempt.run.program
        not_before = (program.not_before if program is not None else None) or 0.0
        seconds = max(not_before - self._backend.clock(), 0.0)
        self._lanes.put_off(ClientQueue.of(job), self._clock() + seconds)
        self._woken.set()

    def waiting(self) -> list[ClientQueueState]:
        """The lanes that may have jobs. O(lanes)."""
        return self._lanes.waiting()

    # Start and stop -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns once the lanes are known. May be called twice. Raises Unavailable."""
        async with self._gate:
            if self._task is not None:
                return
            self._is_stopping = False
            self._in_flight.on_slot, self._in_flight.on_put_back = self._on_slot, self._on_put_back
            self._in_flight.on_back = self._woken.set
            await self._programs.slots.start(self._on_free)
            self._listening = await self._programs.wakeups.listen(self._group, self._on_wakeup, Wakeup.NEW)
            await self._programs.queue.start(self._on_lane)
            for lane in self._programs.queue.lanes(self._group):
                self._on_lane(lane)
            self._task = asyncio.create_task(self._run(), name="dispatcher")

    async def stop(self) -> None:
        """Claim nothing more. Returns when what was under way has been handed over or given back (GRID-41)."""
        async with self._gate:
            self._is_stopping = True
            self._in_flight.on_slot = self._in_flight.on_put_back = self._in_flight.on_back = None
            self._woken.set()
            if self._task is not None:
                await self._task
                self._task = None
            if self._listening is not None:
                await self._listening.close()
                self._listening = None
            while self._steps:
                await asyncio.wait(set(self._steps))
            self._caps.free_all()
            while self._frees:
                await asyncio.wait(set(self._frees))

    async def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._look_around()
                self._set_alarm()
            except Exception:  # the top of a loop: one bad look must not end it
                log.exception("turn failed", loop=type(self).__name__)
                await asyncio.sleep(_DEFECT_SECONDS)
                continue
            await self._woken.wait()
            self._woken.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _set_alarm(self) -> None:
        """For the next thing that is due without a word from anybody. One that rings too early costs a look around, and
        is cheaper than to set it anew each time."""
        due = min(self._lanes.next_due(), self._caps.next_due())
        if due == math.inf or (self._alarm is not None and self._alarm_at <= due):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        self._alarm = asyncio.get_running_loop().call_later(max(due - self._clock(), 0.001), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._woken.set()

    # One look around ----------------------------------------------------------------------------------------------

    def _look_around(self) -> None:
        """Give every free seat whose turn it is a job to ask for. Waits for nothing."""
        self._lanes.wake_due()
        self._caps.unblock()
        looks: dict[ClientQueueState, _Look] = {}
        while self._in_flight.is_quorate and not self._is_stopping and len(self._steps) + len(looks) < _STEPS_MAX:
            picked = self._lanes.pick(self._credits_by_worker.reserve_credit)
            if picked is None:
                break
            self._ask(looks, *picked)
        for look in looks.values():
            self._begin(self._steps, self._step(look))
        self._caps.free_idle()

    def _ask(self, looks: dict[ClientQueueState, _Look], state: ClientQueueState, turn: Turn[Credit]) -> None:
        slot, may_ask = self._caps.reserve(turn.client_id)
        if not may_ask:
            self._lanes.unasked(state)
            self._pass_over(turn)
            return
        look = looks.get(state)
        if look is None:
            look = looks[state] = _Look(state, state.heard)
        look.turns.append(turn)
        if slot is not None:
            look.slots.append(slot)
        else:
            look.missing += 1

    # One step -----------------------------------------------------------------------------------------------------

    async def _step(self, look: _Look) -> None:
        state, client_id = look.state, look.state.lane.client
        deliveries: list[Delivery] = []
        try:
            if not state.must_count or await self._is_worth_it(state):
                look.slots += await self._take_slots(client_id, look.missing)
                if len(look.slots) < len(look.turns):
                    self._caps.block(client_id)
                    self._lanes.unasked(state, len(look.turns) - len(look.slots))
                    self._unused(look, len(look.slots))
                if look.slots:
                    deliveries = await self._programs.queue.take(state.lane, len(look.slots))
            self._answered(look, deliveries)
            self._outage.worked()
        except Unavailable as error:
            self._outage.failed("a lane was not looked at", error, exec_name=state.lane.exec_name, client_id=client_id)
            self._lanes.failed(state, len(look.turns))
        except Exception:  # the top of a step: its seats and slots must come back
            log.exception("a lane was not looked at", exec_name=state.lane.exec_name, client_id=client_id)
            self._lanes.failed(state, len(look.turns))
        finally:
            self._caps.took(client_id, look.missing)
        work = [self._assign(*each) for each in zip(deliveries, look.slots, look.turns, strict=False)]
        if state.depth:
            self._woken.set()
        elif not self._is_stopping:
            self._set_alarm()  # a lane that gave all that was asked for rests now, and nobody else may wake us
        self._unused(look, len(work))
        for slot in look.slots[len(work) :]:
            self._caps.keep(slot)
        if len(work) == 1:
            await work[0]
        elif work:
            await asyncio.gather(*work)

    async def _is_worth_it(self, state: ClientQueueState) -> bool:
        counts = await self._programs.queue.counts(state.lane)
        return counts is None or bool(counts.waiting or counts.unacked)

    async def _take_slots(self, client_id: str, count: int) -> list[Slot]:
        if not count:
            return []
        if count == 1:
            slot = await take_slot(self._backend, self._group, client_id, self._holder)
            return [] if slot is None else [slot]
        asked = (take_slot(self._backend, self._group, client_id, self._holder) for _ in range(count))
        taken = await asyncio.gather(*asked, return_exceptions=True)
        slots = [slot for slot in taken if isinstance(slot, Slot)]
        faults = [fault for fault in taken if isinstance(fault, BaseException)]
        if faults and not slots:
            raise faults[0]
        return slots

    def _answered(self, look: _Look, deliveries: list[Delivery]) -> None:
        came, asked = len(deliveries), len(look.turns)
        if not asked:
            return
        # The last one knows what waits behind it; a queue that does not tell may have as much again.
        waiting = getattr(deliveries[-1], "waiting", asked if came == asked else 0) if deliveries else 0
        if came == asked and deliveries[-1].count > 1:
            # Of what comes again nobody tells: whoever held this one may have held others, and be dead.
            waiting = max(waiting, 2 * asked)
        self._lanes.answered(look.state, look.heard, asked, came, waiting)

    def _unused(self, look: _Look, used: int) -> None:
        for turn in look.turns[used:]:
            self._pass_over(turn)
        del look.turns[used:]

    def _pass_over(self, turn: Turn[Credit]) -> None:
        """Nothing was there for it: the seat may be somebody else's."""
        self._lanes.give_turn_back(turn)
        turn.credit.give_back()
        self._woken.set()

    async def _assign(self, delivery: Delivery, slot: Slot, turn: Turn[Credit]) -> None:
        """One job that came: claim it and hand it over. Never raises."""
        credit = turn.credit
        try:
            taken = await claim_job(self._backend, delivery, slot, worker_id=credit.worker_id, holder=self._holder)
        except PyocoError as error:
            log.warning("a job was not claimed; it comes again", exec_name=turn.exec_name, error=error)
            self._let_go(turn, slot)
            return
        if isinstance(taken, Passed):
            self._let_go(turn, slot)
            return
        self._caps.used(slot)
        if self._is_stopping:
            credit.give_back()
            await self._in_flight.release(taken)
            return
        self._in_flight.add(taken)
        try:
            await credit.start(taken)
        except WorkerLost as error:
            log.warning("a job was not handed over", run_id=taken.run.run_id, worker_id=credit.worker_id, error=error)
            await self._in_flight.put_back(taken, Why.WORKER_DOWN)

    def _let_go(self, turn: Turn[Credit], slot: Slot) -> None:
        """Nothing is to be run. The slot is not kept: it may be another's by now."""
        self._pass_over(turn)
        self._free_soon(slot)

    def _free_soon(self, slot: Slot) -> None:
        self._caps.forget(slot)
        self._begin(self._frees, free_slot(self._backend, slot))

    def _begin(self, tasks: set[asyncio.Task[None]], work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
