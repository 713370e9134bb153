"""How far lists are behind, found by trying."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.runs import a_run
from pyoco_server.actions.list_queues import crowds_by_tag
from pyoco_server.actions.measure import Crowd, Lag, crowd_of
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Owner
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_description import LaneReport, WorkerDescription
from pyoco_server.core.worker_record import FLOWS, PACKS, PROGRAMS, WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring


class Store:
    """As much of runs and index as the lag is about: what was stored last, and how far lists have come."""

    def __init__(self) -> None:
        self.stored = self.listed = 0
        self.is_up = True

    async def newest(self) -> int:
        if not self.is_up:
            raise Unavailable("nobody answers")
        return self.stored

    async def applied(self, revision: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.listed < revision:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.001)
        return True


@pytest.fixture
def store() -> Store:
    return Store()


async def lag_of(lag: Lag, store: Store, seconds: float = 0.02) -> float:
    backend: Any = SimpleNamespace(runs=store, index=store)
    return await lag.measure(cast(GatewayBackend, backend), seconds)


@pytest.mark.virtual_time
async def test_lists_that_show_everything_are_not_behind(store: Store) -> None:
    store.stored = store.listed = 7
    assert await lag_of(Lag(), store) < 0.02
    assert await lag_of(Lag(), Store()) < 0.02


@pytest.mark.virtual_time
async def test_what_shows_a_moment_later_is_told_as_that_moment() -> None:
    store = Store()
    store.stored = 7
    asyncio.get_running_loop().call_later(0.1, setattr, store, "listed", 7)
    assert 0.09 < await lag_of(Lag(), store, 60) < 1.0


@pytest.mark.virtual_time
async def test_what_does_not_show_is_behind_since_it_was_first_asked_for() -> None:
    store, lag = Store(), Lag()
    store.stored = 7
    first = await lag_of(lag, store, 0.02)
    assert first >= 0.02
    await asyncio.sleep(0.1)
    store.stored = 9
    second = await lag_of(lag, store, 0.02)
    assert second >= first + 0.1
    store.listed = 8  # the first question is answered, the second is not
    assert 0.02 <= await lag_of(lag, store, 0.02) < 0.1
    store.listed = 9
    assert await lag_of(lag, store, 0.02) < 0.02


@pytest.mark.virtual_time
async def test_another_bucket_begins_anew() -> None:
    """Its revisions are small again: what was asked for of the old one will never show"""
    store, lag = Store(), Lag()
    store.stored = 1000
    await lag_of(lag, store)
    await asyncio.sleep(0.1)
    store.stored = 3
    assert await lag_of(lag, store) < 0.1
    store.listed = 3
    assert await lag_of(lag, store) < 0.02


async def test_an_outage_is_told_as_such(store: Store) -> None:
    """FLOW-135"""
    store.is_up = False
    with pytest.raises(Unavailable):
        await lag_of(Lag(), store)


@pytest.mark.virtual_time
async def test_a_record_that_nobody_can_read_does_not_hold_lists_back(
    link: Link, config: NatsBackendConfig, tmp_path: Path
) -> None:
    """It counts as told: otherwise lists would be behind for as long as it is the last one."""
    async with wiring.open_gateway_backend(replace(config, data_dir=str(tmp_path))) as backend:
        feeder = IndexFeeder(backend.runs, backend.index)
        await feeder.start()
        assert isinstance(await backend.runs.create(a_run()), Stored)
        await link.store(f"$KV.{config.runs_kv_bucket}.odd", b"not json")
        lag = Lag()
        await lag.measure(backend, 60)
        assert await backend.index.applied(await backend.runs.newest(), 0)
        await asyncio.sleep(0.1)
        assert await lag.measure(backend, 0) < 0.1
        await feeder.stop()


def test_an_empty_crowd_has_nothing() -> None:
    assert vars(crowd_of([], 0.0, 20.0)) == {"alive": 0, "slots": 0, "slots_busy": 0, "gone": 0}


def test_only_the_living_have_slots() -> None:
    def worker(state: WorkerState, seen: float, slots: int, *running: str) -> WorkerRecord:
        return WorkerRecord(
            worker_id="w",
            instance_id="i",
            state=state,
            tags=(),
            last_seen_at=seen,
            last_heartbeat_at=seen,
            slots=slots,
            running=running,
        )

    crowd = [
        worker(WorkerState.IDLE, 80.0, 2),
        worker(WorkerState.RUNNING, 100.0, 4, "a", "b"),
        worker(WorkerState.RUNNING, 100.0, 1, "a", "b"),
        worker(WorkerState.RUNNING, 79.9, 8, "c"),
        worker(WorkerState.STOPPED_GRACEFUL, 100.0, 16),
    ]
    assert vars(crowd_of(crowd, 100.0, 20.0)) == {"alive": 3, "slots": 7, "slots_busy": 3, "gone": 2}


def test_programs_and_packs_do_not_make_the_slots_of_flows_look_busy() -> None:
    """Metrics, queues and the list of workers take the figure from the same place."""
    reports = (
        LaneReport(lane=FLOWS, slots=2, running=("f1",)),
        LaneReport(lane=PACKS, slots=2, running=("p1", "p2")),
        LaneReport(lane=PROGRAMS, slots=4, running=("e1", "e2", "e3")),
    )
    record = WorkerDescription(me=Owner("anna", "i"), tags=("a", "b")).record(reports, 100.0)
    expected = Crowd(alive=1, slots=2, slots_busy=1, gone=0)
    assert crowd_of([record], 100.0, 20.0) == expected
    assert crowds_by_tag([record], 100.0, 20.0) == {"a": expected, "b": expected}
    assert crowd_of([record], 100.0, 20.0, PACKS) == replace(expected, slots_busy=2)
    assert crowd_of([record], 100.0, 20.0, PROGRAMS) == replace(expected, slots=4, slots_busy=3)
