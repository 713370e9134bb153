"""Ticks of plug-in packs whose reservation is below the price, as a keeper without their package submits them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.packs.prices import Prices
from pyoco_server.core.packs.spec import PackCheckFailed
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Status
from pyoco_server.loops.priced.pack_lane import PackLane
from support.priced.pack_machines import Machine
from support.priced.pack_scenes import CREDIT, QUICK, Scene, check_refunded, open_scene, spec
from support.priced.stacks import an_ask

TICK = {"id": "3c1f9a52-8f0e-4b7e-9a55-0d6b3f1c2e11", "name": "s", "tick": 60, "source": "tick"}


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    async with open_scene(request, tmp_path, monkeypatch) as scene:
        yield scene


def price(inputs: Mapping[str, Any], _: Prices) -> int:
    if inputs["question"] == "fail":
        raise PackCheckFailed("the check of a pack raised ValueError")
    return 20_000


@contextlib.asynccontextmanager
async def at_work(scene: Scene, machine: Machine, executor: str = "theirs:execute") -> AsyncIterator[None]:
    priced = replace(scene.priced, packs={"theirs": spec("theirs", executor=executor, price=price)})
    worker = PackLane(priced, machine, 1, files=scene.files, tries=QUICK)
    await worker.start()
    try:
        yield
    finally:
        await worker.stop(0.2)


async def submit(scene: Scene, usd_micros: int, question: str = "?", **more: Any) -> PricedRun:
    return await scene.stack.submitted(
        an_ask(pack_type="theirs", usd_micros=usd_micros, inputs={"question": question}, **more)
    )


async def test_a_worker_refuses_the_tick_and_it_costs_nothing(scene: Scene) -> None:
    """SAFE-1, SCHED-14: its pack was not called, and the whole reservation is back"""
    machine = Machine("theirs")
    async with at_work(scene, machine):
        ended = await scene.ended(await submit(scene, 19_900, schedule=TICK))
        check_refunded(ended, "RESERVATION_BELOW_PRICE: max_cost_usd is below 0.0200, the price of these inputs")
        ended = await scene.ended(await submit(scene, 19_900, "fail", schedule=TICK))
        check_refunded(ended, "PRICE_UNKNOWN: the check of a pack raised ValueError")
    assert machine.calls == []
    assert await scene.stack.balance() == CREDIT


async def test_a_tick_that_covers_the_price_and_other_runs_are_executed(scene: Scene) -> None:
    """SAFE-1, SAFE-2: what a gateway has accepted keeps its reservation, whatever the prices are by now"""
    machine = Machine("theirs")
    async with at_work(scene, machine):
        for run in (await submit(scene, 20_000, schedule=TICK), await submit(scene, 19_900)):
            assert (await scene.ended(run)).status is Status.COMPLETED
    ours = Machine("theirs")
    async with at_work(scene, ours, executor=""):
        assert (await scene.ended(await submit(scene, 19_900, schedule=TICK))).status is Status.COMPLETED
    assert (len(machine.calls), len(ours.calls)) == (2, 1)
