"""Priced runs as a kind of run of a simulation."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from pyoco_server.config import AwsSettings, PricedConfig
from pyoco_server.doors.cli.keeper import _keep_priced
from pyoco_server.loops.priced.fetching import Files
from pyoco_server.loops.priced.pack_lane import PackLane
from pyoco_server.loops.worker import Worker
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.budget.memory import BUDGETS
from pyoco_server.ports.idempotency_locks.memory import LOCKS
from pyoco_server.ports.inputs.scratch import Scratch
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.memory import DATABASES, MemoryDatabase, forget_database
from pyoco_server.wiring import priced as wiring_priced
from simulation.deployment import Deployment, Keeping
from simulation.faults import Fault
from simulation.kind import Kind, Problems
from simulation.packs.books import Books
from simulation.packs.client import Operator, PackClient
from simulation.packs.executor import PACK, PretendedPacks
from simulation.packs.faults import StoreFaults, draw_store_faults
from simulation.packs.judge import PackJudge

__all__ = ["Packs"]

_CLIENTS = 2
_STORES = "simulation"
_TEMPLATE = "simulation-template"


@functools.cache
def _template() -> MemoryDatabase:
    """A ledger with all tables: to make them takes a second."""
    migrate.upgrade(f"memory://{_TEMPLATE}")
    return DATABASES.of(_TEMPLATE)


def _new_database() -> MemoryDatabase:
    forget_database(_STORES)
    made = DATABASES.of(_STORES)
    with contextlib.closing(_template().connect()) as template, contextlib.closing(made.connect()) as copy:
        template.backup(copy)
    return made


def _config(*, is_split: bool) -> PricedConfig:
    """Shorter times than usual, so that a simulation is not mostly waiting; their order is the same."""
    return PricedConfig(
        ledger_url=f"memory://{_STORES}",
        budget_url=f"memory://{_STORES}" if is_split else "",
        results_secret="simulated",
        packs=(PACK,),
        priced_lease_ttl_sec=20,
        priced_heartbeat_sec=5,
        priced_reaper_interval_sec=5,
        priced_sweeper_interval_sec=10,
        priced_reconcile_interval_sec=10,
        priced_reconcile_after_sec=15,
        priced_reservation_ttl_sec=300,
        priced_submit_abandon_sec=30,
        priced_resend_after_sec=15,
        priced_orphan_after_sec=90,
        priced_audit_interval_sec=20,
    )


class Packs(Kind):
    """The mode is drawn: budgets in the ledger (joint), or in a server of their own (split)."""

    @classmethod
    def prepare(cls) -> None:
        _template()

    def __init__(self, deployment: Deployment, problems: Problems) -> None:
        super().__init__(deployment, problems)
        loop = deployment.loop
        self.is_split = loop.stream("packs").random() < 0.5
        loop.record("packs", mode="split" if self.is_split else "joint")
        config = _config(is_split=self.is_split)
        deployment.priced = config, AwsSettings()
        database = _new_database()
        database.skew_us = lambda: -round(loop.current().skew_seconds * 1_000_000)
        self._books = Books(database)
        BUDGETS.forget(_STORES)
        LOCKS.forget(_STORES)
        budgets, idempotency_locks = BUDGETS.of(_STORES), LOCKS.of(_STORES)
        budgets.now_ms = idempotency_locks.now_ms = lambda: self._now_us() // 1000
        self.judge = PackJudge(
            loop,
            deployment.nats,
            problems,
            self._books,
            budgets if self.is_split else None,
            wiring_priced.spans_of(config),
            self._now_us,
        )
        self.faulty = StoreFaults(loop, database, [budgets.network, idempotency_locks.network], self.judge.on_commit)
        if self.is_split:
            self.faulty.on_budget = self.judge.on_budget
        deployment.injectors |= self.faulty.injectors()
        deployment.in_worker.append(self._in_worker)
        deployment.in_keeper.append(self._in_keeper)
        self._working: list[asyncio.Task[None]] = []

    def _now_us(self) -> int:
        """The clock of the servers."""
        return time.time_ns() // 1000 - round(self.deployment.loop.current().skew_seconds * 1_000_000)

    @contextlib.asynccontextmanager
    async def _in_worker(self, worker_id: str, worker: Worker, backend: Backend) -> AsyncIterator[None]:
        async with _beside(self._take_packs(worker_id, worker, backend)):
            yield

    async def _take_packs(self, worker_id: str, worker: Worker, backend: Backend) -> None:
        """As `doors/cli/worker.py` does, with another executor."""
        priced = backend.priced
        assert priced is not None
        executor = PretendedPacks(self.deployment.new_host, lambda run_id: self.judge.began(worker_id, run_id))
        files = Files(Scratch(Path(backend.config.data_dir) / "tmp" / "pack-files"))
        lane = PackLane(priced, executor, self.deployment.shape.slots, files=files)
        await priced.until_open()
        await worker.join(lane)

    @contextlib.asynccontextmanager
    async def _in_keeper(self, keeping: Keeping) -> AsyncIterator[None]:
        async with _beside(_keep_priced(keeping.backend)):
            yield

    def faults(self, targets: Sequence[str], until: float) -> tuple[Fault, ...]:
        return draw_store_faults(self.deployment.loop.stream("store faults"), targets, until)

    def clients(self, until: float) -> list[Coroutine[Any, Any, None]]:
        loop = self.deployment.loop
        loop.call_later(until, self.faulty.forget)
        names = [f"packs-{number}" for number in range(_CLIENTS)]
        clients = [PackClient(self.deployment, self.judge, loop.stream(name), name).work(until) for name in names]
        return [*clients, Operator(self.deployment, self.judge, loop.stream("operator")).work(until)]

    @property
    def is_settled(self) -> bool:
        return not self.judge.unsettled()

    def conclude(self) -> None:
        self.judge.conclude()

    def close(self) -> None:
        self._books.close()
        forget_database(_STORES)
        BUDGETS.forget(_STORES)
        LOCKS.forget(_STORES)


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """While this process lives."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
