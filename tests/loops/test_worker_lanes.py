"""A worker and its lanes: order of the starts, one registry record, one drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Owner
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_description import LaneReport, WorkerDescription
from pyoco_server.core.worker_record import FLOWS, PACKS, PROGRAMS, WorkerRecord
from pyoco_server.errors import Unavailable, UsageError
from pyoco_server.loops.worker import Worker
from pyoco_server.ports.backend import Backend

pytestmark = pytest.mark.virtual_time


class Registry:
    """Notes every write, and does not answer while it is down."""

    def __init__(self) -> None:
        self.written: list[WorkerRecord] = []
        self.is_down = False

    async def announce(self, record: WorkerRecord) -> WorkerRecord:
        if self.is_down:
            raise Unavailable("injected")
        self.written.append(record)
        return record

    async def retire(self, record: WorkerRecord) -> bool:
        await self.announce(record)
        return True


class Lane:
    """Works for as long as it says after a stop, unless it is stopped for good earlier."""

    def __init__(self, name: str, log: list[str], *, seconds: float = 0.0, fails: bool = False) -> None:
        self.name, self._log, self._seconds, self._fails = name, log, seconds, fails
        self.when_changed: Callable[[], None] = lambda: None
        self.running: tuple[str, ...] = ()
        self.drain_seconds: float | None = -1.0

    def report(self) -> LaneReport:
        return LaneReport(lane=self.name, slots=2, running=self.running)

    async def start(self) -> None:
        if self._fails:
            raise UsageError("it cannot start")
        self._log.append(f"{self.name} start")

    async def stop(self, drain_seconds: float | None) -> None:
        self.drain_seconds = drain_seconds
        await asyncio.sleep(self._seconds if drain_seconds is None else min(self._seconds, drain_seconds))
        self._log.append(f"{self.name} stop")


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def log() -> list[str]:
    return []


def worker_of(registry: Registry, *lanes: Lane) -> Worker:
    config = replace(NatsBackendConfig(), worker_heartbeat_interval_sec=5.0)
    backend: Any = SimpleNamespace(clock=lambda: 100.0, config=config, registry=registry)
    return Worker(cast("Backend", backend), WorkerDescription(me=Owner("w", "i"), tags=("gpu",)), lanes)


async def test_lanes_start_in_order_and_the_worker_is_registered_after_them(registry: Registry, log: list[str]) -> None:
    """FLOW-196: a record promises that jobs are taken"""
    worker = worker_of(registry, Lane(PROGRAMS, log), Lane(FLOWS, log))
    await worker.start()
    assert (log, len(registry.written)) == (["programs start", "flows start"], 1)
    await worker.stop("sigterm", None)
    assert (registry.written[-1].state, registry.written[-1].stop_reason) == (WorkerState.STOPPED_GRACEFUL, "sigterm")


async def test_a_lane_that_cannot_start_leaves_no_other_running_and_no_record(
    registry: Registry, log: list[str]
) -> None:
    programs = Lane(PROGRAMS, log, seconds=900.0)
    worker = worker_of(registry, programs, Lane(FLOWS, log, fails=True))
    with pytest.raises(UsageError, match="cannot start"):
        await worker.start()
    assert (log, programs.drain_seconds) == (["programs start", "programs stop", "flows stop"], 0.0)
    await worker.stop("sigterm", 0.0)
    assert registry.written == []


async def test_an_unwritable_registry_at_the_start_stops_the_lanes(registry: Registry, log: list[str]) -> None:
    registry.is_down = True
    with pytest.raises(Unavailable):
        await worker_of(registry, Lane(FLOWS, log)).start()
    assert log == ["flows start", "flows stop"]


@pytest.mark.parametrize(("drain_seconds", "took"), [(None, 50.0), (30.0, 30.0), (0.0, 0.0)])
async def test_all_lanes_drain_at_the_same_time_within_one_deadline(
    registry: Registry, log: list[str], drain_seconds: float | None, took: float
) -> None:
    """FLOW-469, GRID-113, PRICED-125"""
    lanes = [Lane(FLOWS, log, seconds=40.0), Lane(PACKS, log, seconds=50.0), Lane(PROGRAMS, log, seconds=20.0)]
    worker = worker_of(registry, *lanes)
    await worker.start()
    began = asyncio.get_running_loop().time()
    await worker.stop("sigterm", drain_seconds)
    assert asyncio.get_running_loop().time() - began == pytest.approx(took, abs=1.0)
    assert [lane.drain_seconds for lane in lanes] == [drain_seconds] * 3


async def test_a_lane_may_join_later_and_is_stopped_with_the_others(registry: Registry, log: list[str]) -> None:
    """Packs, as soon as a ledger exists."""
    worker = worker_of(registry, Lane(FLOWS, log))
    await worker.start()
    packs = Lane(PACKS, log)
    await worker.join(packs)
    packs.running = ("p1",)
    packs.when_changed()
    await asyncio.sleep(2)
    assert registry.written[-1].running == ("p1",)
    await worker.stop("sigterm", 0.0)
    assert log == ["flows start", "packs start", "flows stop", "packs stop"]


async def test_a_lane_that_fails_to_stop_does_not_keep_the_others_from_stopping(
    registry: Registry, log: list[str]
) -> None:
    class Broken(Lane):
        async def stop(self, drain_seconds: float | None) -> None:
            raise RuntimeError("a defect")

    worker = worker_of(registry, Broken(PROGRAMS, log), Lane(FLOWS, log, seconds=5.0))
    await worker.start()
    with pytest.raises(RuntimeError, match="a defect"):
        await worker.stop("sigterm", None)
    assert log[-1] == "flows stop"


async def test_many_changes_are_few_writes_and_none_is_lost(registry: Registry, log: list[str]) -> None:
    """FLOW-197, FLOW-201: one write a second at most, a heartbeat every five without a change, another try after an
    outage."""
    flows = Lane(FLOWS, log)
    worker = worker_of(registry, flows)
    await worker.start()
    for number in range(1000):
        flows.running = (f"r{number}",)
        flows.when_changed()
        await asyncio.sleep(0.01)
    assert 8 <= len(registry.written) <= 14
    registry.is_down = True
    flows.running = ("last",)
    flows.when_changed()
    await asyncio.sleep(3)
    registry.is_down = False
    await asyncio.sleep(2)
    assert registry.written[-1].running == ("last",)
    quiet = len(registry.written)
    await asyncio.sleep(50)
    assert 9 <= len(registry.written) - quiet <= 11
    await worker.stop("sigterm", None)
