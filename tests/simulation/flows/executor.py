"""Work without processes: a flow that takes virtual time, fails, ignores a cancel or takes its host along."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Died, Failed, Outcome, Progress
from pyoco_server.core.wheel_sync import Environment
from pyoco_server.executors.port import Execution, Work

__all__ = ["PretendedExecutor", "PretendedRun"]


class PretendedRun:
    """One attempt. `params`: `seconds` it takes, `end` (complete, fail, crash), whether it is `stubborn`."""

    def __init__(self, params: dict[str, Any], when_free: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[Outcome] = loop.create_future()
        self._stubborn = bool(params.get("stubborn"))
        self._end = str(params.get("end", "complete"))
        self._when_free = when_free
        self._timer = loop.call_later(float(params.get("seconds", 0.0)), self._finish)

    def _finish(self) -> None:
        if self._end == "fail":
            self._conclude(Failed(message="pretended failure", why=DeadReason.EXECUTION_ERROR))
        elif self._end == "crash":
            self._conclude(Died(how="pretended crash"))
        else:
            self._conclude(Completed(progress=Progress(tasks={"work": "SUCCEEDED"})))

    def _conclude(self, outcome: Outcome) -> None:
        if not self._ended.done():
            self._timer.cancel()
            self._ended.set_result(outcome)
            self._when_free()

    async def outcome(self) -> Outcome:
        return await asyncio.shield(self._ended)

    async def progress(self) -> Progress | None:
        return Progress(tasks={"work": "RUNNING"})

    def ask_cancel(self) -> None:
        if not self._stubborn:
            asyncio.get_running_loop().call_later(0.05, self._conclude, Cancelled())

    def kill(self) -> bool:
        self._conclude(Cancelled(note="killed"))
        return True


class PretendedExecutor:
    """`executors/port.py` without hosts."""

    def __init__(self, on_begin: Callable[[str], None]) -> None:
        """`on_begin` hears of each run that is executed."""
        self._on_begin = on_begin
        self.restarts = 0
        self.running: set[PretendedRun] = set()

    @property
    def is_able(self) -> bool:
        return True

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        for run in list(self.running):
            run.kill()

    async def begin(self, work: Work, when_free: Callable[[], None]) -> Execution | None:
        def free() -> None:
            self.running.discard(run)
            when_free()

        self._on_begin(work.job.run_id)
        run = PretendedRun(dict(work.job.params), free)
        self.running.add(run)
        return run

    async def renew(self, environment: Environment) -> None:
        """There is no environment."""

    @property
    def paths_in_use(self) -> frozenset[str]:
        return frozenset()
