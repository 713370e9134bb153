"""The attempts that this process, a door or a native worker, is responsible for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.beat import beat
from pyoco_server.actions.programs.claim import release
from pyoco_server.actions.programs.finish import Output, Settlement, finish_job
from pyoco_server.actions.programs.put_back import Why, put_back
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.programs.moves import program_of
from pyoco_server.core.programs.record import CANCEL_GRACE_SECONDS
from pyoco_server.core.programs.report import Report
from pyoco_server.errors import PyocoError, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.client_slots import ClientSlots
from pyoco_server.loops.programs.counting import count_put_back
from pyoco_server.loops.programs.in_flight_events import AttemptLost, CancelRequested, InFlightEvents, QuorumChanged
from pyoco_server.loops.programs.meter import ProgramMeter
from pyoco_server.loops.programs.quorum import Quorum, QuorumChange
from pyoco_server.loops.pulse import Live, Pulse, Rhythm
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.wakeups.port import Listening, Wakeup

__all__ = ["InFlight"]

log = get_logger(__name__)

#: Delay before a failed write is tried again.
_AGAIN_SECONDS = 1.0
_STOP_SECONDS = 5.0


class _Held(Live):
    """One attempt, and the time of its last sign of life, by the monotonic clock."""

    def __init__(self, owner: InFlight, attempt: ProgramAttempt, rhythm: Rhythm, now: float) -> None:
        super().__init__(rhythm)
        self._owner, self.attempt, self.seen_at = owner, attempt, now
        self.is_finishing = False
        #: The grace period of the cancel request that was passed on last. None: no request was.
        self._grace_sent: float | None = None
        #: It is to be put back as soon as that can be written.
        self.leaving: Why | None = None
        self.leave_at = 0.0

    @property
    def run_id(self) -> str:
        return self.attempt.run.run_id

    @property
    def is_executing(self) -> bool:
        return self.leaving is None and not self.attempt.closed

    def tick(self, now: float) -> None:
        self._owner.check(self, now)

    def on_suspended(self, seconds: float) -> None:
        """Signs of life may be unread in the sockets of this process."""
        self.seen_at += seconds

    async def hold(self) -> None:
        if self.is_executing and self.attempt.delivery is not None:
            await self.attempt.delivery.hold()

    async def beat(self) -> Standing:
        return await self._owner.beat(self)

    async def on_cancel(self) -> None:
        given = self.attempt.run.cancel_grace_seconds
        grace = CANCEL_GRACE_SECONDS if given is None else given
        if self._grace_sent is None or grace < self._grace_sent:
            self._grace_sent = grace
            self._owner.events.put(CancelRequested(self.attempt))

    def on_fenced(self) -> None:
        self._owner.lose(self)


class InFlight:
    """The attempts in flight in this process.

    `events` contains what is not an answer to a request: cancel requests, attempts that this process no longer owns,
    and whether JetStream answers. Slots of attempts that are over go back to `slots`, and its queues learn when jobs
    are due again.

    Limitation: it cannot keep a lease while this process is suspended or starved of CPU. After that it rechecks
    ownership of each attempt before it acknowledges or extends anything (GRID-10).
    """

    def __init__(
        self,
        backend: Backend,
        slots: ClientSlots,
        meter: ProgramMeter,
        *,
        awaits_signs: bool = True,
        quorum: Quorum | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`awaits_signs` False: attempts need not be `seen`, because they run in this process."""
        self._backend, self._slots, self._meter = backend, slots, meter
        self._awaits_signs = awaits_signs
        self._programs = programs_of(backend)
        self._clock = clock
        self.events = InFlightEvents()
        self._held: dict[str, _Held] = {}
        config = self._programs.config
        self._rhythm = Rhythm(
            beat=config.exec_run_heartbeat_sec,
            hold=backend.config.ack_progress_interval_sec,
            beat_again=_AGAIN_SECONDS,
        )
        self._pulse = Pulse(clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: Listening | None = None
        self._quorum = quorum or Quorum(self._programs, wall=backend.clock)
        self._quorum_ticker = _Ticker(self._check_quorum, self._quorum.every_seconds)

    @property
    def is_quorate(self) -> bool:
        """Whether JetStream answers (GRID-44). False: claim nothing, accept nothing. Never waits."""
        return self._quorum.is_quorate

    def __len__(self) -> int:
        return len(self._held)

    def add(self, attempt: ProgramAttempt) -> None:
        """Take responsibility for an attempt, and count this as its first sign of life.

        Replaces one with the same run id.
        """
        now = self._clock()
        before = self._held.get(attempt.run.run_id)
        if before is not None and before.attempt is not attempt and before.attempt.attempt_id == attempt.attempt_id:
            # Its worker reconnected over another connection. This process still holds the message and the slot.
            attempt.delivery = attempt.delivery or (None if before.leaving else before.attempt.delivery)
            attempt.slot, before.attempt.slot = attempt.slot or before.attempt.slot, None
            before.attempt.closed = True
        if before is not None:
            self._pulse.end(before)
        held = self._held[attempt.run.run_id] = _Held(self, attempt, self._rhythm, now)
        self._pulse.begin(held)

    def get(self, run_id: str) -> ProgramAttempt | None:
        """Return the attempt. None: unknown, or being put back."""
        held = self._held.get(run_id)
        return held.attempt if held is not None and held.leaving is None else None

    def all(self) -> list[ProgramAttempt]:
        return [held.attempt for held in self._held.values() if held.leaving is None]

    def seen(self, run_id: str, token: str) -> bool:
        """Record a sign of life (GRID-78). Returns False if the attempt is not in flight here."""
        held = self._held.get(run_id)
        if held is None or held.leaving is not None or held.attempt.attempt_id != token:
            return False
        held.seen_at = self._clock()
        return True

    async def finish(self, attempt: ProgramAttempt, report: Report, outputs: Sequence[Output]) -> Settlement:
        """Record the report of an attempt. Whatever the settlement, the attempt is no longer in flight here.

        Raises Unavailable: the attempt is still in flight, and may be finished again.
        """
        held = self._held.get(attempt.run.run_id)
        tracked = held if held is not None and held.attempt is attempt else None
        if tracked is not None:
            tracked.is_finishing = True
        try:
            settlement = await finish_job(self._backend, attempt, report, outputs, lambda: self._over(attempt))
        finally:
            if tracked is not None:
                tracked.is_finishing, tracked.seen_at = False, self._clock()
        self._over(attempt)
        if settlement is Settlement.PUT_BACK:
            self._note_put_back(attempt)
        return settlement

    async def put_back(self, attempt: ProgramAttempt, why: Why) -> None:
        """Put the job back for another attempt.

        Never raises: a failed write is repeated until it succeeds, or until another process owns the run.
        """
        held = self._held.get(attempt.run.run_id)
        if held is None or held.attempt is not attempt:
            return
        held.leaving = why
        await self._leave(held)

    async def _leave(self, held: _Held) -> None:
        attempt = held.attempt
        assert held.leaving is not None
        held.leave_at = self._clock() + 3600.0  # one try at a time
        is_done = False
        try:
            is_done = await put_back(self._backend, attempt, held.leaving)
        except Unavailable as error:
            log.warning("could not put back an attempt; trying again", run_id=attempt.run.run_id, error=error)
            held.leave_at = self._clock() + _AGAIN_SECONDS
            return
        except PyocoError:  # such as an unreadable record: the lease expires, and the next claim reports the cause
            log.exception("could not put back an attempt", run_id=attempt.run.run_id)
        self._over(attempt)
        if is_done:
            self._note_put_back(attempt)

    def _note_put_back(self, attempt: ProgramAttempt) -> None:
        """Count it, and poll its client queue when the job is due again, instead of waiting for a wakeup."""
        count_put_back(self._meter, attempt)
        not_before = program_of(attempt.run).not_before or 0.0
        seconds = max(not_before - self._backend.clock(), 0.0)
        self._slots.queues.put_off(ClientQueue.of(attempt.job), seconds)

    async def release(self, attempt: ProgramAttempt) -> None:
        """Release an attempt that was never handed over, and so was no attempt (GRID-41). Never raises; tries once."""
        self._drop(attempt)
        try:
            await release(self._backend, attempt)
        except Unavailable as error:
            log.warning("could not undo a claim; its lease will expire", run_id=attempt.run.run_id, error=error)
        self._give_slot(attempt)

    def _over(self, attempt: ProgramAttempt) -> None:
        self._drop(attempt)
        self._give_slot(attempt)

    def _drop(self, attempt: ProgramAttempt) -> None:
        held = self._held.get(attempt.run.run_id)
        if held is not None and held.attempt is attempt:
            self._pulse.end(held)
            del self._held[attempt.run.run_id]

    def _give_slot(self, attempt: ProgramAttempt) -> None:
        slot, attempt.slot = attempt.slot, None
        if slot is not None:
            self._slots.used(slot)

    async def start(self) -> None:
        """Idempotent."""
        if self._listening is None:
            group = self._programs.config.exec_group
            self._listening = await self._programs.wakeups.listen(group, self._on_wakeup, Wakeup.CANCEL)
        await self._quorum_ticker.start()
        await self._pulse.start()

    async def stop(self) -> None:
        """Stop acks, heartbeats and timeouts. Attempts in flight are left to redelivery. Idempotent."""
        listening, self._listening = self._listening, None
        if listening is not None:
            await listening.close()
        await self._quorum_ticker.stop()
        await self._quorum.close()
        await self._pulse.stop()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        await self._slots.settle(_STOP_SECONDS)
        self.events.close()

    def _on_wakeup(self, wakeup: Wakeup, run_id: str) -> None:
        held = self._held.get(run_id)
        if held is not None and wakeup is Wakeup.CANCEL:
            self._pulse.beat_now(held)

    async def beat_all(self) -> None:
        """Renew all leases, and wait for it. Failed heartbeats are repeated by the pulse."""
        await self._pulse.beat_all()

    # Called by the pulse ------------------------------------------------------------------------------------------

    def check(self, held: _Held, now: float) -> None:
        """Put the attempt back if that is due, or if its signs of life are overdue."""
        if held.leaving is not None:
            if now >= held.leave_at:
                self._spawn(self._leave(held))
        elif self._is_overdue(held, now):
            log.warning("no sign of life from a worker; the job is retried", run_id=held.run_id)
            held.leaving = Why.ACK_TIMEOUT
            self._spawn(self._leave(held))

    def _is_overdue(self, held: _Held, now: float) -> bool:
        """Return whether signs of life are overdue (GRID-78)."""
        if not self._awaits_signs or held.is_finishing:
            return False
        return now - held.seen_at > self._programs.config.exec_ack_timeout_sec

    async def beat(self, held: _Held) -> Standing:
        """Renew the lease of an attempt. Raises PyocoError."""
        if held.attempt.closed or self._held.get(held.run_id) is not held:
            return Standing.OURS
        try:
            standing = await beat(self._backend, held.attempt)
        except Unavailable:
            self._quorum.failed_to_write()
            raise
        self._quorum.wrote()
        return standing

    def lose(self, held: _Held) -> None:
        """Stop reporting a lost attempt (GRID-56)."""
        if held.is_finishing or held.leaving is not None or self._held.get(held.run_id) is not held:
            return  # the call that is ending it does the rest
        self._drop(held.attempt)
        self.events.put(AttemptLost(held.attempt))
        self._spawn(self._free_slot_of_lost(held.attempt))

    async def _free_slot_of_lost(self, attempt: ProgramAttempt) -> None:
        """Free its slot, unless the attempt continues with another holder."""
        try:
            found = await self._backend.runs.find(attempt.run.run_id)
        except PyocoError as error:
            log.warning("could not free a slot; it will be freed by its age", run_id=attempt.run.run_id, error=error)
            return
        lives_on = isinstance(found, Stored) and not found.run.is_terminal and found.run.is_owned_by(attempt.attempt_id)
        if not lives_on:
            self._give_slot(attempt)

    async def _check_quorum(self) -> None:
        change = await self._quorum.check()
        if change is QuorumChange.ANSWERS_AGAIN:  # the leases of this process come before new claims
            await self.beat_all()
            self._quorum.resume()
            self._slots.queues.wake()
        if change is not None:
            self.events.put(QuorumChanged(self._quorum.is_quorate))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Ticker(Loop):
    def __init__(self, tick: Callable[[], Coroutine[None, None, None]], every_seconds: float) -> None:
        super().__init__(every_seconds=every_seconds)
        self._tick = tick

    async def turn(self) -> None:
        await self._tick()
