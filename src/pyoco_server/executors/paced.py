"""Runs flows in threads, and knows which of them wait for their next try."""

from __future__ import annotations

from collections.abc import Callable

from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.limits import OutputLimits
from pyoco_server.executors.flow.task_tries import Pace
from pyoco_server.executors.port import Work
from pyoco_server.executors.threads import ThreadExecution, ThreadExecutor

__all__ = ["PacedExecutor"]


class PacedExecutor(ThreadExecutor):
    """`ThreadExecutor`, whose executions are found by their runs."""

    def __init__(
        self, build: FlowBuilder, limits: OutputLimits, records_bytes_max: int, collector: Collector | None, pace: Pace
    ) -> None:
        super().__init__(build, limits, records_bytes_max, collector, pace)
        self._executions: dict[str, tuple[ThreadExecution, Callable[[], None]]] = {}

    async def begin(self, work: Work, when_free: Callable[[], None]) -> ThreadExecution:
        run_id = work.job.run_id

        def freed() -> None:
            found = self._executions.pop(run_id, None)
            if found is not None:
                found[0].join()  # so that no thread is left behind
            when_free()

        execution = await super().begin(work, freed)
        self._executions[run_id] = execution, when_free
        return execution

    def waits_until(self, run_id: str) -> float | None:
        """Return when the next try of a task is due, if the run waits for nothing else. None: it is executing, or is
        not here."""
        found = self._executions.get(run_id)
        return None if found is None else found[0].waits_until()

    def free(self, run_id: str) -> None:
        """Make room for another run, because this one waits. Idempotent."""
        if run_id in self._executions:
            self._executions[run_id][1]()

    def ask_cancel(self, run_id: str) -> None:
        if run_id in self._executions:
            self._executions[run_id][0].ask_cancel()
