"""Programs as a kind of run of a simulation."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from pyoco_server.grid_config import GridConfig
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.loop import Loop
from pyoco_server.loops.programs.cpu import CpuUse
from pyoco_server.loops.programs.lane import ProgramLane
from pyoco_server.loops.programs.sweeper import ProgramSweeper
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import Index
from simulation.deployment import Deployment
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
        deployment.lanes.append(self._lane)
        deployment.duties.append(_sweeper)

    async def _lane(self, backend: Backend, worker_id: str) -> ProgramLane:
        executor = SimulatedExecutor(lambda run_id, attempt: self.judge.began(worker_id, run_id, attempt))
        lane = ProgramLane(backend, executor, worker_id, cpu=CpuUse(read=lambda: (0, 0)))
        await lane.start()
        return lane

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


def _sweeper(backend: Backend, index: Index, feeder: IndexFeeder) -> Loop:
    return ProgramSweeper(backend, index, feeder)
