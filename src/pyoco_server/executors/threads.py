"""Runs flows in threads of this process: for a worker used as a library, with a resolver defined in the program.

What it cannot do: stop an uncooperative task. Threads cannot be killed (ENG-20).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

from pyoco_server.core.job import decode_job
from pyoco_server.core.outcome import Outcome, Progress
from pyoco_server.core.snapshot import encode
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment
from pyoco_server.executors.capture.in_threads import ThreadLines
from pyoco_server.executors.capture.port import Captured, Collector
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.engine import EngineRun
from pyoco_server.executors.flow.limits import OutputLimits
from pyoco_server.executors.flow.paths import forget_modules, place_wheels, remove_wheels
from pyoco_server.executors.flow.task_tries import Pace
from pyoco_server.executors.port import Work
from pyoco_server.logs import get_logger

__all__ = ["ThreadExecution", "ThreadExecutor"]

log = get_logger(__name__)


class ThreadExecution:
    def __init__(
        self, run: EngineRun, lines: ThreadLines | None, bytes_max: int, when_free: Callable[[], None]
    ) -> None:
        self._run, self._lines, self._bytes_max, self._when_free = run, lines, bytes_max, when_free
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Outcome] = self._loop.create_future()
        # A daemon thread, so that a task that never ends does not keep the program from exiting.
        self._thread = threading.Thread(target=self._work, name="pyoco run", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with self._lines.here() if self._lines is not None else contextlib.nullcontext():
            outcome = self._run.execute()
        outcome = self._kept(outcome)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end, outcome)

    def _kept(self, outcome: Outcome) -> Outcome:
        """Attach what the tasks have returned. Large records are truncated later, after their outputs were kept."""
        outputs = self._run.outputs
        if len(encode(outcome.progress.task_records)) > self._bytes_max:
            outputs.keep_rest()
        kept = outputs.kept()
        outcome = replace(outcome, kept=replace(kept, file=outputs.spool.opened()))
        outputs.spool.close()
        return outcome

    def _end(self, outcome: Outcome) -> None:
        self._when_free()
        if not self._ended.done():
            self._ended.set_result(outcome)

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._ended)

    async def progress(self) -> Progress | None:
        return self._run.progress()

    def ask_cancel(self) -> None:
        self._run.ask_cancel()

    def kill(self) -> bool:
        return False

    def waits_until(self) -> float | None:
        """Return when the next try of a task is due, if the run waits for nothing else. None: it is executing."""
        return self._run.waits_until()

    def join(self) -> None:
        """Wait for the end of the thread, which has nothing left to do once the outcome is there."""
        self._thread.join()


class ThreadExecutor:
    def __init__(
        self,
        build: FlowBuilder,
        limits: OutputLimits | None = None,
        records_bytes_max: int = 1 << 17,
        collector: Collector | None = None,
        pace: Pace | None = None,
    ) -> None:
        """With records of more than `records_bytes_max`, all outputs are kept outside of the run's record. `collector`
        gets what the runs print, which also goes where it went before; None: it is not captured. `pace`: the clock of
        waits between tries of tasks; None: that of this machine."""
        self._pace = pace
        self._build, self._limits, self._bytes_max = build, limits or OutputLimits(), records_bytes_max
        self._collector = collector
        #: Of runs whose lines have not all been passed on.
        self._lines: set[ThreadLines] = set()
        self._running = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._environment = NO_WHEELS
        self.restarts = 0

    @property
    def is_able(self) -> bool:
        return True

    async def start(self) -> None:
        """Do nothing; there is nothing to prepare."""

    async def stop(self) -> None:
        """Restore the module search path if nothing runs. Running threads cannot be ended; no more of their lines is
        taken."""
        await asyncio.gather(*(lines.stop() for lines in list(self._lines)))
        if not self._running:
            self._see(NO_WHEELS)

    async def lines_passed_on(self) -> None:
        """Wait until the collector has all lines of the runs that have ended."""
        await asyncio.gather(*(lines.sending for lines in list(self._lines) if not lines.takes_lines))

    async def renew(self, environment: Environment) -> None:
        """Wait until nothing runs, then switch: this process has one set of modules, which must not change under a run
        (FLOW-230).

        Modules of removed wheels are dropped, so the next import finds the new ones (FLOW-241). Old objects that the
        program itself references, for example a flow with their functions, stay old until it imports them again.
        """
        while self._running:
            await self._is_idle.wait()
        self._see(environment)

    def _see(self, environment: Environment) -> None:
        if environment == self._environment:
            return
        removed = [path for path in self._environment.paths if path not in environment.paths]
        stubborn = forget_modules(removed)
        remove_wheels(self._environment.paths)
        place_wheels(environment.paths)
        self._environment = environment
        self._build.see(environment)
        if stubborn:
            log.warning("extension modules of a changed wheel are loaded; restart required", modules=stubborn)

    @property
    def offered(self) -> None:
        return None

    @property
    def paths_in_use(self) -> frozenset[str]:
        return frozenset(self._environment.paths)

    async def begin(self, work: Work, when_free: Callable[[], None]) -> ThreadExecution:
        def freed() -> None:
            self._running -= 1
            if not self._running:
                self._is_idle.set()
            when_free()

        # Decoded again: tasks may change their params to any depth (ENG-7), and the record shows what was submitted.
        lines = self._captured(work)
        run = EngineRun(decode_job(work.data), self._build, lines, limits=self._limits, pace=self._pace)
        self._running += 1
        self._is_idle.clear()
        return ThreadExecution(run, lines, self._bytes_max, freed)

    def _captured(self, work: Work) -> ThreadLines | None:
        if self._collector is None:
            return None
        lines = ThreadLines(Captured(work.job.run_id, work.attempt), self._collector)
        self._lines.add(lines)
        lines.sending.add_done_callback(lambda _: self._lines.discard(lines))
        return lines
