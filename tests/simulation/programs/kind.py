"""Programs as a kind of run of a simulation."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from pyoco_server.config.grid import GridConfig
from pyoco_server.loops.programs.cpu import CpuUse
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.loops.programs.sweeper import ProgramSweeper
from pyoco_server.loops.worker import Worker
from pyoco_server.ports.backend import Backend
from simulation.deployment import Deployment, Keeping, running
from simulation.kind import Kind, Problems
from simulation.programs.client import ProgramClient
from simulation.programs.executor import SimulatedExecutor
from simulation.programs.judge import ProgramJudge

__all__ = ["Programs"]

_CLIENTS = 3


class Programs(Kind):
    def __init__(self, deployment: Deployment, problems: Problems) -> None:
        super().__init__(deployment, problems)
        deployment.grid = _settings(deployment)
        self.judge = ProgramJudge(deployment, problems)
        deployment.in_worker.append(self._in_worker)
        deployment.in_keeper.append(_in_keeper)

    @contextlib.asynccontextmanager
    async def _in_worker(self, worker_id: str, worker: Worker, backend: Backend) -> AsyncIterator[None]:
        executor = SimulatedExecutor(
            self.deployment.new_host,
            lambda run_id, attempt: self.judge.began(worker_id, run_id, attempt),
            self.judge.host_died,
        )
        lane = ProgramLane(backend, executor, worker_id, cpu=CpuUse(read=lambda: (0, 0)))
        await worker.join(lane)
        try:
            yield
        finally:
            await lane.stop(0.0)

    def clients(self, until: float) -> list[Coroutine[Any, Any, None]]:
        loop = self.deployment.loop
        names = [f"programs-{number}" for number in range(_CLIENTS)]
        return [ProgramClient(self.deployment, self.judge, loop.stream(name), name).work(until) for name in names]

    @property
    def is_settled(self) -> bool:
        return self.judge.is_settled

    def conclude(self) -> None:
        self.judge.conclude()


def _settings(deployment: Deployment) -> GridConfig:
    """Sweeps are frequent, so that a simulation has several; few attempts and few queued jobs in some."""
    dice = deployment.loop.stream("program settings")
    return GridConfig(
        exec_sweep_sec=90.0,
        exec_stale_sec=60.0,
        exec_max_attempts=dice.choice((2, 5)),
        exec_max_lost=dice.choice((2, 20)),
        exec_queue_max_jobs=dice.choice((4, 1_000, 1_000)),
        exec_default_cap=dice.choice((2, 4)),
        worker_max_par=dice.choice((1, 2, 4)),
    )


def _in_keeper(keeping: Keeping) -> contextlib.AbstractAsyncContextManager[None]:
    return running(ProgramSweeper(keeping.backend, keeping.index, keeping.feeder))
