"""How a worker begins when its flows come in wheels: with what there is, unless nothing can be run without the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.wheel_sync import SyncReport
from pyoco_server.errors import UsageError
from pyoco_server.loops import flow_lane as flow_lane_module
from pyoco_server.loops.worker import Worker
from pyoco_server.ports.backend import Backend
from support.backends import ANNA, opened_backend
from support.flow_workers import a_flow_lane, worker_with


class Wheels:
    """A sync whose installations take some passes."""

    def __init__(self, passes: int) -> None:
        self.left, self.log = passes, list[str]()
        self.report: SyncReport | None = None

    @property
    def is_installing(self) -> bool:
        return self.left > 0

    async def first_sync(self) -> SyncReport:
        return await self.sync()

    async def sync(self) -> SyncReport:
        self.log.append("sync")
        self.left -= 1
        self.report = SyncReport(last_sync_at=5.0, installed=("a.whl",))
        return self.report

    async def start(self) -> None:
        self.log.append("start")

    async def stop(self) -> None:
        self.log.append("stop")


class Hosts:
    """An executor whose resolver lives in a wheel, or nowhere."""

    restarts = 0
    offered = None

    def __init__(self, wheels: Wheels, needs_wheel: bool = False, is_broken: bool = False) -> None:
        self._wheels, self._needs_wheel, self._is_broken = wheels, needs_wheel, is_broken

    async def start(self) -> None:
        self._wheels.log.append("hosts")
        if self._is_broken or (self._needs_wheel and self._wheels.is_installing):
            raise UsageError("the flow resolver cannot be loaded")

    async def stop(self) -> None:
        self._wheels.log.append("hosts stop")


@pytest.fixture
async def backend(config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    monkeypatch.setattr(flow_lane_module, "_WAIT_FOR_WHEELS_SECONDS", 0.0)
    async with opened_backend(replace(config, worker_heartbeat_interval_sec=0.5)) as backend:
        yield backend


def worker_of(backend: Backend, hosts: Any, wheels: Any) -> Worker:
    return worker_with(backend, a_flow_lane(backend, hosts, wheels=wheels))


async def test_a_worker_looks_at_the_registry_before_its_first_host(backend: Backend) -> None:
    """FLOW-229, FLOW-243: and the record shows it from the beginning. Stop: the sync first, then the hosts."""
    wheels = Wheels(1)
    worker = worker_of(backend, Hosts(wheels), wheels)
    await worker.start()
    assert wheels.log == ["sync", "hosts", "start"]
    record = await backend.registry.find(ANNA.worker_id)
    assert record is not None
    assert record.wheel_sync == {
        "enabled": True,
        "last_sync_at": 5.0,
        "status": "ok",
        "installed": ["a.whl"],
        "installing": [],
        "skipped": [],
        "removed": [],
        "failed": [],
    }
    await worker.stop("close", None)
    assert wheels.log[3:] == ["stop", "hosts stop"]


async def test_a_slow_installation_does_not_keep_a_worker_from_starting(backend: Backend) -> None:
    wheels = Wheels(100)
    worker = worker_of(backend, Hosts(wheels), wheels)
    await worker.start()
    assert wheels.log == ["sync", "hosts", "start"]
    await worker.stop("close", None)


async def test_a_worker_whose_resolver_is_in_a_wheel_waits_for_it(backend: Backend) -> None:
    """FLOW-229"""
    wheels = Wheels(4)
    worker = worker_of(backend, Hosts(wheels, needs_wheel=True), wheels)
    await worker.start()
    assert wheels.log == ["sync", "hosts", "sync", "sync", "sync", "hosts", "start"]
    await worker.stop("close", None)


@pytest.mark.parametrize("passes", [1, 3])
async def test_a_resolver_that_never_comes_is_told(backend: Backend, passes: int) -> None:
    """FLOW-470"""
    wheels = Wheels(passes)
    worker = worker_of(backend, Hosts(wheels, is_broken=True), wheels)
    with pytest.raises(UsageError, match="resolver"):
        async with asyncio.timeout(200):
            await worker.start()
    await worker.stop("close", None)


async def test_a_worker_without_wheels_says_nothing_of_them(backend: Backend) -> None:
    """FLOW-228"""
    worker = worker_of(backend, Hosts(Wheels(0)), None)
    await worker.start()
    record = await backend.registry.find(ANNA.worker_id)
    assert record is not None
    assert record.wheel_sync is None
    await worker.stop("close", None)
