"""Matches queued jobs with free credits, in turns (section 11)."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import Passed, claim_job
from pyoco_server.actions.programs.put_back import Why
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.turns import Turn
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.logs.outages import Outage
from pyoco_server.loops.programs.client_queues import ClientQueueState
from pyoco_server.loops.programs.client_slots import ClientSlots, Room
from pyoco_server.loops.programs.in_flight import InFlight
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.ports.queue.port import Delivery
from pyoco_server.ports.slots.port import Slot
from pyoco_server.ports.wakeups.port import Listening, Wakeup

__all__ = ["CreditSource", "Dispatcher", "ReservedCredit", "WorkerLost"]

log = get_logger(__name__)

#: Polls at the same time. Each has at least one credit, so there are never more polls than credits.
_STEPS_MAX = 256
#: Pause after an unexpected exception.
_DEFECT_SECONDS = 1.0


class WorkerLost(Exception):
    """The worker could not be reached: the attempt counts as lost with it (GRID-83)."""


class ReservedCredit(Protocol):
    """Room for one attempt, reserved: a credit of a worker."""

    @property
    def worker_id(self) -> str: ...

    def return_unused(self) -> None:
        """Release the credit: there was no job for it."""

    async def start(self, attempt: ProgramAttempt) -> None:
        """Hand over the attempt, which is in flight already. Raises WorkerLost."""


class CreditSource(Protocol):
    """The credits of workers. No method may block."""

    def reserve_credit(self, exec_name: str, tenant: str | None) -> ReservedCredit | None:
        """Reserve a credit of the next worker in turn that may run the program for this tenant (`tenant_token`).

        Returns None if there is no such credit now.
        """

    def serves(self, exec_name: str) -> bool:
        """Return whether a worker could run the program, now or once it has a credit."""


@dataclass
class _Poll:
    """One poll of one queue: a credit for each requested job, and room for them within the client's cap."""

    state: ClientQueueState
    heard: int
    room: Room
    turns: list[Turn[ReservedCredit]] = field(default_factory=list)


class Dispatcher:
    """Takes jobs from client queues, programs in turn and clients in turn. Each needs a client slot and a credit.

    It polls when its queues are woken by a job, a credit, a free slot or a new queue (GRID-60, GRID-62). Otherwise it
    polls idle queues after 1, 2, 4 … 30 s. The order holds within this process; the starts of several processes are not
    ordered.

    It calls the slots, the queues and the attempts of its process, and none of them calls it: they wake its queues.

    Limitation: it cannot know the content of a queue without polling it. A wrong assumption costs a poll.
    """

    def __init__(
        self,
        backend: Backend,
        worker_credits: CreditSource,
        in_flight: InFlight,
        slots: ClientSlots,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend, self._credits_by_worker, self._in_flight = backend, worker_credits, in_flight
        self._slots, self._queues = slots, slots.queues
        self._programs = programs_of(backend)
        self._group = self._programs.config.exec_group
        self._clock, self._outage = clock, Outage(log)
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._is_stopping = False
        self._gate = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._steps: set[asyncio.Task[None]] = set()
        self._listening: Listening | None = None

    def nudge(self) -> None:
        """Poll now: a credit was released or a worker joined. Never waits."""
        self._queues.wake()

    def _on_queue(self, queue: ClientQueue) -> None:
        if queue.group == self._group and not self._is_stopping:
            self._queues.add(queue)

    def _on_wakeup(self, wakeup: Wakeup, payload: str) -> None:
        if wakeup is Wakeup.NEW:
            exec_name, _, client_id = payload.partition(".")
            self._queues.hear(exec_name, client_id)

    # Start and stop -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, and return once the client queues are known. Idempotent. Raises Unavailable."""
        async with self._gate:
            if self._task is not None:
                return
            self._is_stopping = False
            await self._slots.open()
            self._listening = await self._programs.wakeups.listen(self._group, self._on_wakeup, Wakeup.NEW)
            await self._programs.queue.start(self._on_queue)
            for queue in self._programs.queue.client_queues(self._group):
                self._on_queue(queue)
            self._task = asyncio.create_task(self._run(), name="dispatcher")

    async def stop(self) -> None:
        """Stop claiming. Returns when the polls and claims in progress are handed over or released (GRID-41)."""
        async with self._gate:
            self._is_stopping = True
            self._slots.close()
            self._queues.wake()
            if self._task is not None:
                await self._task
                self._task = None
            if self._listening is not None:
                await self._listening.close()
                self._listening = None
            while self._steps:
                await asyncio.wait(set(self._steps))
            await self._slots.settle()

    async def _run(self) -> None:
        while not self._is_stopping:
            try:
                self._scan()
                self._set_alarm()
            except Exception:  # the top of a loop: one failed turn must not end it
                log.exception("turn failed", loop=type(self).__name__)
                await asyncio.sleep(_DEFECT_SECONDS)
                continue
            await self._queues.woken.wait()
            self._queues.woken.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _set_alarm(self) -> None:
        """Set the timer for the next thing that is due without an event.

        A timer that fires too early costs one scan, which is cheaper than setting it anew each time.
        """
        due = min(self._queues.next_due(), self._slots.next_due())
        if due == math.inf or (self._alarm is not None and self._alarm_at <= due):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = due
        self._alarm = asyncio.get_running_loop().call_later(max(due - self._clock(), 0.001), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._queues.wake()

    # One scan -----------------------------------------------------------------------------------------------------

    def _scan(self) -> None:
        """Assign a queue to poll to every free credit whose turn it is. Waits for nothing."""
        self._queues.wake_due()
        self._slots.unblock()
        polls: dict[ClientQueueState, _Poll] = {}
        while self._in_flight.is_quorate and not self._is_stopping and len(self._steps) + len(polls) < _STEPS_MAX:
            picked = self._queues.pick(self._credits_by_worker.reserve_credit)
            if picked is None:
                break
            self._add_to_poll(polls, *picked)
        for poll in polls.values():
            self._begin(self._run_poll(poll))
        self._slots.free_idle()

    def _add_to_poll(
        self, polls: dict[ClientQueueState, _Poll], state: ClientQueueState, turn: Turn[ReservedCredit]
    ) -> None:
        poll = polls.get(state) or _Poll(state, state.heard, Room(turn.client_id))
        if not self._slots.reserve(poll.room):
            self._queues.unasked(state)
            self._pass_over(turn)
            return
        poll.turns.append(turn)
        polls[state] = poll

    # One poll -----------------------------------------------------------------------------------------------------

    async def _run_poll(self, poll: _Poll) -> None:
        state, room = poll.state, poll.room
        deliveries: list[Delivery] = []
        try:
            if not state.must_count or await self._is_worth_it(state):
                await self._slots.take(room, len(poll.turns))
                if len(room.slots) < len(poll.turns):
                    self._queues.unasked(state, len(poll.turns) - len(room.slots))
                    self._unused(poll, len(room.slots))
                if room.slots:
                    deliveries = await self._programs.queue.take(state.queue, len(room.slots))
            self._answered(poll, deliveries)
            self._outage.worked()
        except Unavailable as error:
            where = {"exec_name": state.queue.exec_name, "client_id": room.client_id}
            self._outage.failed("could not poll a client queue", error, **where)
            self._queues.failed(state, len(poll.turns))
        except Exception:  # the top of a poll: its credits and slots must be released
            log.exception("could not poll a client queue", exec_name=state.queue.exec_name, client_id=room.client_id)
            self._queues.failed(state, len(poll.turns))
        finally:
            self._slots.drop_missing(room)
        work = [self._assign(*each) for each in zip(deliveries, room.slots, poll.turns, strict=False)]
        if state.depth:
            self._queues.wake()
        elif not self._is_stopping:
            self._set_alarm()  # a queue that returned all requested jobs rests now, and there may be no other event
        self._unused(poll, len(work))
        self._slots.unused(room.slots[len(work) :])
        if len(work) == 1:
            await work[0]
        elif work:
            await asyncio.gather(*work)

    async def _is_worth_it(self, state: ClientQueueState) -> bool:
        counts = await self._programs.queue.counts(state.queue)
        return counts is None or bool(counts.waiting or counts.unacked)

    def _answered(self, poll: _Poll, deliveries: list[Delivery]) -> None:
        received, requested = len(deliveries), len(poll.turns)
        if not requested:
            return
        # The last delivery contains the number of messages behind it. If it does not, assume as many again.
        waiting = getattr(deliveries[-1], "waiting", requested if received == requested else 0) if deliveries else 0
        if received == requested and deliveries[-1].count > 1:
            # That number excludes redeliveries: the process that held this one may have exited while it held others.
            waiting = max(waiting, 2 * requested)
        self._queues.answered(poll.state, poll.heard, requested, received, waiting)

    def _unused(self, poll: _Poll, used: int) -> None:
        for turn in poll.turns[used:]:
            self._pass_over(turn)
        del poll.turns[used:]

    def _pass_over(self, turn: Turn[ReservedCredit]) -> None:
        """There was no job for the credit: release it for another queue."""
        self._queues.return_turn(turn)
        turn.credit.return_unused()
        self._queues.wake()

    async def _assign(self, delivery: Delivery, slot: Slot, turn: Turn[ReservedCredit]) -> None:
        """Claim a received job and hand it over. Never raises."""
        credit, holder = turn.credit, self._slots.holder
        try:
            taken = await claim_job(self._backend, delivery, slot, worker_id=credit.worker_id, holder=holder)
        except PyocoError as error:
            log.warning("could not claim a job; it will be redelivered", exec_name=turn.exec_name, error=error)
            self._release(turn, slot)
            return
        if isinstance(taken, Passed):
            self._release(turn, slot)
            return
        if self._is_stopping:
            credit.return_unused()
            await self._in_flight.release(taken)
            return
        self._in_flight.add(taken)
        try:
            await credit.start(taken)
        except WorkerLost as error:
            log.warning("could not hand over a job", run_id=taken.run.run_id, worker_id=credit.worker_id, error=error)
            await self._in_flight.put_back(taken, Why.WORKER_DOWN)

    def _release(self, turn: Turn[ReservedCredit], slot: Slot) -> None:
        """Release credit and slot: there is nothing to run.

        The slot is not kept, since another process may hold it by now.
        """
        self._pass_over(turn)
        self._slots.free(slot)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
