"""The native lane: a worker that takes jobs directly from the queue and runs their programs (section 16)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.finish import Output, Settlement
from pyoco_server.actions.programs.inputs import open_inputs
from pyoco_server.actions.programs.measure import ProgramFigures
from pyoco_server.actions.programs.put_back import Why
from pyoco_server.actions.programs.reach import programs_of
from pyoco_server.core.frames.subjects import PATTERN_DEFAULT, assign_subject, check_pattern, matches
from pyoco_server.core.programs.job import InlineInputs
from pyoco_server.core.programs.report import ErrorCode, Report
from pyoco_server.core.states import RunState
from pyoco_server.core.worker_description import LaneMembers, LaneReport, LastEnd
from pyoco_server.core.worker_record import PROGRAMS
from pyoco_server.errors import NotFound, PyocoError, Unavailable
from pyoco_server.executors.program.port import (
    ProgramExecution,
    ProgramExecutor,
    ProgramOutcome,
    ProgramWork,
    WorkFile,
)
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.client_slots import ClientSlots
from pyoco_server.loops.programs.counting import count_end
from pyoco_server.loops.programs.cpu import LOOK_SECONDS, CpuUse, HeldBack
from pyoco_server.loops.programs.dispatcher import Dispatcher
from pyoco_server.loops.programs.in_flight import InFlight
from pyoco_server.loops.programs.in_flight_events import AttemptLost, CancelRequested, InFlightEvent
from pyoco_server.loops.programs.meter import Gauges, ProgramMeter
from pyoco_server.loops.programs.shelf import ProgramShelf, allow_of
from pyoco_server.loops.programs.unoffered import UnofferedJobs
from pyoco_server.ports.backend import Backend

__all__ = ["ProgramLane"]

log = get_logger(__name__)

#: The delay before a failed result write is repeated: the first value, doubled each time up to the second.
_AGAIN_SECONDS, _AGAIN_SECONDS_MAX = 0.2, 5.0
#: Time for killed programs to exit at the end of a drain.
_KILLED_SECONDS = 10.0
#: Size of the cache of program names matched against the patterns.
_NAMES_MAX = 10_000


@dataclass(eq=False)
class _Running:
    attempt: ProgramAttempt
    execution: ProgramExecution | None = None
    is_cancelled: bool = False
    #: Another process owns the run, or it is being put back: nothing is reported.
    is_gone: bool = False


class _ReservedSlot:
    """A reserved slot of the worker."""

    def __init__(self, lane: ProgramLane) -> None:
        self._lane = lane
        self.worker_id = lane.worker_id

    def return_unused(self) -> None:
        self._lane.return_unused()

    async def start(self, attempt: ProgramAttempt) -> None:
        self._lane.begin(attempt)


class ProgramLane:
    """Runs up to `WORKER_MAX_PAR` programs at once. Free slots are its credits (GRID-117).

    The slot of a finished program is reused when the machine has CPU headroom (GRID-70). The lane claims only programs
    that it has (FIND-14); its directory is scanned about once a second.
    """

    def __init__(
        self,
        backend: Backend,
        executor: ProgramExecutor,
        worker_id: str,
        patterns: Sequence[str] = (PATTERN_DEFAULT,),
        *,
        cpu: CpuUse | None = None,
    ) -> None:
        """Raises GridRefused for an invalid pattern."""
        for pattern in patterns:
            check_pattern(pattern)
        config = programs_of(backend).config
        self._backend, self._executor, self.worker_id, self.patterns = backend, executor, worker_id, tuple(patterns)
        self._config = config
        #: Random per process start, so that a reused worker id is never mistaken for the earlier process.
        self.holder = f"{worker_id}:{backend.new_id()[:8]}"
        self._cpu = cpu or CpuUse()
        self._held_back = HeldBack(config.worker_cpu_cap, config.worker_cpu_wait_sec, self._cpu.share)
        self._free = config.worker_max_par
        self._accepted: dict[str, bool] = {}
        self._shelf = ProgramShelf(executor)
        self._running: dict[str, _Running] = {}
        #: Attempts whose programs have exited and whose slots are free, while their results are being written.
        self._reporting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_started = False
        self.meter = ProgramMeter(config.exec_group)
        slots = ClientSlots(backend, self.holder)
        self.in_flight = InFlight(backend, slots, self.meter, awaits_signs=False)
        self.dispatcher = Dispatcher(backend, self, self.in_flight, slots)
        self._slot_ticker = _SlotTicker(self._tick)
        self._unoffered = UnofferedJobs(backend, self, slots.queues, on_end=partial(count_end, self.meter))
        self._last_end: LastEnd | None = None
        #: Called whenever `running`, `facts` or `last_status` has changed.
        self.when_changed: Callable[[], None] = lambda: None

    # Worker registry ------------------------------------------------------------------------------------------------

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._running)

    def report(self) -> LaneReport:
        return LaneReport(
            lane=PROGRAMS,
            slots=self._config.worker_max_par,
            running=self.running,
            last_end=self._last_end,
            members=self.facts,
        )

    @property
    def last_status(self) -> str | None:
        return None if self._last_end is None else self._last_end.status

    @property
    def facts(self) -> LaneMembers:
        return {
            "patterns": self.patterns,
            "credits": self._free,
            "max_parallel": self._config.worker_max_par,
            "group": self._config.exec_group,
            "programs": self._shelf.announced,
            "lacks": self._shelf.lacks,
            "allow": allow_of(self._config),
        }

    def figures(self) -> ProgramFigures:
        """Return what its metrics show."""
        gauges = Gauges(
            credits={self.worker_id: self._free},
            cpu={self.worker_id: self._cpu.share()},
            inflight=Counter(each.job.exec_name for each in self.in_flight.all()),
        )
        return self.meter.figures(gauges)

    # Slots ----------------------------------------------------------------------------------------------------------

    def serves(self, exec_name: str) -> bool:
        return self.takes(exec_name) and self._shelf.has(exec_name)

    def takes(self, exec_name: str) -> bool:
        accepted = self._accepted.get(exec_name)
        if accepted is None:
            if len(self._accepted) >= _NAMES_MAX:
                self._accepted.clear()
            subject = assign_subject(exec_name)
            accepted = self._accepted[exec_name] = any(matches(pattern, subject) for pattern in self.patterns)
        return accepted

    def reserve_credit(self, exec_name: str, tenant: str | None) -> _ReservedSlot | None:
        del tenant  # a process with a NATS user may run the programs of every tenant
        if not self._free or self._is_closed or not self.serves(exec_name):
            return None
        self._free -= 1
        return _ReservedSlot(self)

    def return_unused(self) -> None:
        self._free += 1

    def begin(self, attempt: ProgramAttempt) -> None:
        """Run an attempt. Its slot is free again some time after its end."""
        running = self._running[attempt.run.run_id] = _Running(attempt)
        task = asyncio.get_running_loop().create_task(self._run(running))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.when_changed()

    async def _tick(self) -> None:
        self._cpu.share()  # it covers the last second, so it must be sampled more often than that
        self._return_slots()
        if await self._shelf.look():
            self.when_changed()
            self.dispatcher.nudge()

    def _return_slots(self) -> None:
        if not self._held_back:
            return
        count = self._held_back.due()
        if count:
            self._free += count
            self.dispatcher.nudge()

    # Start and stop -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, and return once the lane takes jobs. Raises UsageError, Unavailable."""
        await self._executor.start()
        self._is_started = True
        await self._shelf.look()
        self._reader = self._reader or asyncio.create_task(self.in_flight.events.read(self._take_event))
        await self.in_flight.start()
        await self._slot_ticker.start()
        await self.dispatcher.start()
        await self._unoffered.start()
        log.info(
            "taking programs",
            group=self._config.exec_group,
            patterns=self.patterns,
            slots=self._config.worker_max_par,
        )

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Stop claiming, and let running programs finish within `drain_seconds` (`WORKER_DRAIN_SEC`).

        Programs that do not are killed, and their jobs put back (GRID-113, GRID-119). Idempotent; may be called without
        a start.
        """
        self._is_closed = True
        await self._unoffered.stop()
        await self.dispatcher.stop()
        if self._tasks:
            log.info("finishing programs", running=len(self._running))
            seconds = self._config.worker_drain_sec if drain_seconds is None else drain_seconds
            await asyncio.wait(set(self._tasks), timeout=seconds)
        await asyncio.gather(*(self._put_back(running) for running in list(self._running.values())))
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_KILLED_SECONDS)
        for task in self._tasks:  # a result that could not be written: its lease expires, and the job is redelivered
            task.cancel()
        await self._slot_ticker.stop()
        await self.in_flight.stop()
        if self._reader is not None:
            await self._reader
            self._reader = None
        if self._is_started:
            await self._executor.stop()

    async def _put_back(self, running: _Running) -> None:
        if running.is_gone:
            return
        log.warning("program did not finish in time; putting its job back", run_id=running.attempt.run.run_id)
        running.is_gone = True
        if running.execution is not None:  # otherwise its inputs are still being fetched
            running.execution.kill()
        await self.in_flight.put_back(running.attempt, Why.WORKER_DOWN)

    # One attempt ----------------------------------------------------------------------------------------------------

    def _take_event(self, event: InFlightEvent) -> None:
        if isinstance(event, CancelRequested):
            running = self._running_of(event.attempt)
            if running is not None:
                running.is_cancelled = True
                if running.execution is not None:
                    running.execution.cancel(running.attempt.run.cancel_grace_seconds)
        elif isinstance(event, AttemptLost):  # write nothing more, answer nothing (GRID-56)
            log.warning("another process owns the run; stopping its program", run_id=event.attempt.run.run_id)
            running = self._running_of(event.attempt)
            if running is not None:
                running.is_gone = True
                if running.execution is not None:
                    running.execution.kill()

    def _running_of(self, attempt: ProgramAttempt) -> _Running | None:
        running = self._running.get(attempt.run.run_id)
        return running if running is not None and running.attempt is attempt else None

    async def _run(self, running: _Running) -> None:
        run_id, outcome = running.attempt.run.run_id, None
        is_early = False
        try:
            outcome = await self._perform(running)
            # Free the slot while the result is being written, but limit the number of results being written.
            is_early = self._reporting < self._config.worker_max_par
            self._reporting += is_early
            if is_early:
                self._vacate()
            await self._report(running, outcome)
        except Exception:  # the top of one attempt: an unexpected exception must not end the lane
            log.exception("attempt aborted by an unexpected error; its job is put back", run_id=run_id)
            await self.in_flight.put_back(running.attempt, Why.WORKER_ERROR)
        finally:
            if outcome is not None and outcome.archive is not None:
                outcome.archive.discard()
            if self._running.get(run_id) is running:
                del self._running[run_id]
            self._reporting -= is_early
            if not is_early:
                self._vacate()
            self.when_changed()

    def _vacate(self) -> None:
        self._held_back.add()
        self._return_slots()

    async def _perform(self, running: _Running) -> ProgramOutcome:
        """Run the program. Never raises for errors of the job or of the stores."""
        job = running.attempt.job
        if isinstance(job.inputs, InlineInputs) and not job.inputs.files:
            return await self._execute(running, ())
        try:
            async with open_inputs(self._backend, job) as staged:
                files = [
                    WorkFile(each.name, each.size, each.sha256, partial(staged.read, each.name))
                    for each in staged.files
                ]
                return await self._execute(running, files)
        except NotFound:
            return _failed(ErrorCode.INPUT_MISSING, "the input files are no longer kept")
        except PyocoError as error:
            log.warning("could not read the inputs of a job", run_id=running.attempt.run.run_id, error=error)
            return _failed(ErrorCode.WORKER_ERROR, "the input files could not be read")

    async def _execute(self, running: _Running, files: Sequence[WorkFile]) -> ProgramOutcome:
        if running.is_gone:
            return _failed(ErrorCode.WORKER_ERROR, "another has it")
        run, job = running.attempt.run, running.attempt.job
        running.execution = self._executor.begin(
            ProgramWork(
                job_id=job.job_id,
                run_id=job.run_id,
                attempt=run.attempt,
                client_id=job.client_id,
                exec_name=job.exec_name,
                args=job.args,
                timeout_sec=job.timeout_sec or self._config.exec_job_timeout_sec,
                files=files,
            )
        )
        if running.is_cancelled:
            running.execution.cancel(running.attempt.run.cancel_grace_seconds)
        return await running.execution.outcome()

    async def _report(self, running: _Running, outcome: ProgramOutcome) -> None:
        """Repeat until the result is written or another process owns the run. The lease is renewed meanwhile."""
        outputs: list[Output] = []
        if outcome.archive is not None:
            archive = outcome.archive
            outputs.append(Output("output.zip", archive.size, archive.sha256, open=archive.pieces))
        if outcome.report.error_code is ErrorCode.EXEC_NOT_FOUND:  # before the job can be claimed again
            self._shelf.miss(running.attempt.job.exec_name)
            self.when_changed()
        pause = _AGAIN_SECONDS
        while not running.is_gone and not running.attempt.closed:
            try:
                settlement = await self.in_flight.finish(running.attempt, outcome.report, outputs)
            except Unavailable as error:
                log.warning("could not write a result; trying again", run_id=running.attempt.run.run_id, error=error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _AGAIN_SECONDS_MAX)
            else:
                if settlement is Settlement.RECORDED:
                    self._last_end = LastEnd(outcome.report.status.value, time.monotonic())
                    count_end(self.meter, running.attempt.run)
                elif settlement is Settlement.STALE:
                    self.meter.stale()
                return


def _failed(code: ErrorCode, error: str) -> ProgramOutcome:
    return ProgramOutcome(Report(status=RunState.FAILED, error_code=code, error=error))


class _SlotTicker(Loop):
    """Checks every half second whether slots may be reused."""

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        super().__init__(every_seconds=LOOK_SECONDS)
        self._look = look

    async def turn(self) -> None:
        await self._look()
