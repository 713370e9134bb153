"""Pretended flows in simulated processes: they take virtual time, fail, ignore a cancel or end their host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Died, Failed, Outcome, Progress
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.executors.port import Execution, Work
from simulation.hosts import HostedWork
from simulation.process import CURRENT, Process

__all__ = ["PretendedExecutor", "PretendedRun"]

#: A flow looks for a cancel between its tasks.
_CANCEL_SECONDS = 0.05


class PretendedRun:
    """One attempt. `params`: `seconds` it takes, `end` (complete, fail, crash; flaky: every second attempt fails),
    whether it is `stubborn`."""

    def __init__(self, params: dict[str, Any], attempt: int, work: HostedWork[Outcome]) -> None:
        self._work = work
        self._stubborn = bool(params.get("stubborn"))
        end = str(params.get("end", "complete"))
        if end == "flaky":
            end = "fail" if attempt % 2 else "complete"
        work.end_after(float(params.get("seconds", 0.0)), lambda: _outcome_of(end))

    async def outcome(self) -> Outcome:
        return await self._work.outcome()

    async def progress(self) -> Progress | None:
        return Progress(tasks={"work": "RUNNING"})

    def ask_cancel(self) -> None:
        if not self._stubborn:
            self._work.end_after(_CANCEL_SECONDS, Cancelled)

    def kill(self) -> bool:
        self._work.conclude(lambda: Cancelled(note="killed"))
        return True


def _outcome_of(end: str) -> Outcome:
    if end == "fail":
        return Failed(message="pretended failure", why=DeadReason.EXECUTION_ERROR)
    if end == "crash":
        return Died(how="pretended crash")
    return Completed(progress=Progress(tasks={"work": "SUCCEEDED"}))


class PretendedExecutor:
    """`executors/port.py` with pretended work, each in a simulated process of its own."""

    def __init__(
        self, new_host: Callable[[], Process], on_begin: Callable[[str], None], on_host_death: Callable[[str], None]
    ) -> None:
        """`on_begin`: called with each run that is executed; `on_host_death`: with each whose host was killed."""
        self._new_host, self._on_begin, self._on_host_death = new_host, on_begin, on_host_death
        self.restarts = 0
        self.running: dict[PretendedRun, None] = {}

    @property
    def is_able(self) -> bool:
        return True

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        for run in list(self.running):
            run.kill()

    async def begin(self, work: Work, when_free: Callable[[], None]) -> Execution | None:
        run_id, host = work.job.run_id, self._new_host()

        def died() -> Outcome:
            self.restarts += 1
            self._on_host_death(run_id)
            return Died(how="killed by signal 9")

        def free() -> None:
            self.running.pop(run, None)
            when_free()

        self._on_begin(run_id)
        hosted = HostedWork[Outcome](host, CURRENT.get(), died)
        run = PretendedRun(dict(work.job.params), work.attempt, hosted)
        hosted.on_end = free
        self.running[run] = None
        return run

    async def renew(self, environment: Environment) -> None:
        """There is no environment."""

    @property
    def offered(self) -> None:
        return None

    @property
    def paths_in_use(self) -> frozenset[str]:
        return frozenset()
