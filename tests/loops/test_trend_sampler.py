"""How the memory of the last hour is fed: every end once, and looks at the counts while these are true."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.index import feed
from contracts.runs import a_run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import ask_cancel, claim, conclude
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.snapshot import from_snapshot, to_snapshot
from pyoco_server.core.trend import FlowEnds, Trend
from pyoco_server.loops.trend import TrendSampler
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring import backend as wiring
from support.backends import ANNA, Clock
from support.faulty_ports import BEFORE, Trouble, with_trouble
from support.waiting import eventually

CLOCK = Clock()
NOW = CLOCK.now
#: As much of a backend as ends need.
ONLY_A_CLOCK: Any = SimpleNamespace(clock=CLOCK)


@pytest.fixture
async def backend(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[GatewayBackend]:
    async with wiring.open_gateway_backend(replace(config, data_dir=str(tmp_path))) as backend:
        await backend.index.open()
        yield replace(backend, clock=CLOCK)
        await backend.index.close()


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def last(trend: Trend) -> dict[str, Any]:
    return {name: column[-1] for name, column in trend.points(NOW + 10).columns.items()}


async def test_a_turn_looks_at_the_counts(backend: GatewayBackend) -> None:
    runs = [a_run(tag="a"), a_run(tag="a"), a_run(tag="b")]
    running = [claim(a_run(), ANNA, "1", NOW) for _ in range(2)]
    await feed(backend.index, *(Stored(run, n) for n, run in enumerate([*runs, *running], 1)))
    await feed(backend.index, Stored(ask_cancel(running[0], None, NOW), 9))
    trend = Trend()
    await TrendSampler(backend, trend, yes).turn()
    assert (last(trend)["in_flight"], last(trend)["waiting"]) == (2, 3)
    assert [trend.drain(NOW + 600, tag).depth_before for tag in ("a", "b", "c")] == [2, 1, 0]


async def test_lists_that_are_not_true_are_not_looked_at(backend: GatewayBackend) -> None:
    trend = Trend()
    trend.submitted(NOW)
    await TrendSampler(backend, trend, no).turn()
    assert (last(trend)["in_flight"], last(trend)["waiting"]) == (None, None)


async def test_an_index_that_is_closed_is_no_reason_to_shout(
    backend: GatewayBackend, caplog: pytest.LogCaptureFixture
) -> None:
    trend, trouble = Trend(), Trouble(plan={"index.counts": [BEFORE]})
    sampler = TrendSampler(with_trouble(backend, trouble, "index"), trend, yes)
    await sampler.start()
    await eventually(lambda: trouble.calls == ["index.counts"])
    sampler.nudge()
    await eventually(lambda: len(trouble.calls) == 2)
    await sampler.stop()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert last(trend)["waiting"] == 0


def test_an_end_is_told_with_its_times_and_names() -> None:
    trend = Trend()
    sampler = TrendSampler(ONLY_A_CLOCK, trend, yes)
    run = claim(a_run(flow_name="f", tag="a", tenant_id="t", submitted_at=NOW - 9), ANNA, "1", NOW - 5)
    sampler.on_submitted(run)
    sampler.on_ended(conclude(run, Failed(message="x"), NOW - 3))
    sampler.on_ended(conclude(a_run(flow_name="f"), Failed(message="never began"), NOW))
    found = last(trend)
    assert (found["submitted"], found["failed"]) == (1, 2)
    assert [found["wait_p50"], found["run_p99"]] == pytest.approx([4, 2], rel=0.1)
    assert trend.flows(NOW, "t") == [FlowEnds("f", 1, 1)]
    assert trend.flows(NOW) == [FlowEnds("f", 2, 2)]


def test_a_strangers_record_breaks_nothing_and_can_be_sent() -> None:
    trend = Trend()
    sampler = TrendSampler(ONLY_A_CLOCK, trend, yes)
    good = to_snapshot(conclude(claim(a_run(), ANNA, "1", NOW), Completed(), NOW + 1))
    odd: list[dict[str, Any]] = [
        {"flow_name": 7},
        {"flow_name": ["x"]},
        {"flow_name": "\ud800", "tag": "\ud800"},
        {"start_time": 5, "end_time": 10**300},
        {"start_time": 10**300, "end_time": 5},
    ]
    for each in odd:
        sampler.on_ended(from_snapshot(good | each))
    assert last(trend)["completed"] == len(odd)
    assert all(each.flow.encode() for each in trend.flows(NOW))
