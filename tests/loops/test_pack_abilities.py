"""A worker takes the packs that it can execute now, and says what it lacks for the others."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.packs.ability import Ability
from pyoco_server.core.packs.spec import PackSpec
from pyoco_server.core.states.priced import Status
from pyoco_server.executors.packs.port import Faulted
from pyoco_server.loops.priced import abilities as abilities_module
from pyoco_server.loops.priced.pack_lane import PackLane
from support.priced.pack_machines import Machine
from support.priced.pack_scenes import CREDIT, QUICK, Scene, check_refunded, open_scene
from support.priced.stacks import an_ask
from support.waiting import eventually


def language_of(inputs: Mapping[str, Any]) -> tuple[str, ...]:
    return (inputs["question"],)


@pytest.fixture
async def scene(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setattr(abilities_module, "_MISSING_SECONDS", 0.05)
    async with open_scene(request, tmp_path, monkeypatch) as scene:
        scene.queue.is_hasty = True
        scene.priced = replace(
            scene.priced, packs={"ocr": PackSpec(name="ocr", inputs=lambda _: (), needs=language_of)}
        )
        yield scene


@contextlib.asynccontextmanager
async def at_work(scene: Scene, machine: Machine) -> AsyncIterator[PackLane]:
    worker = PackLane(scene.priced, machine, 1, files=scene.files, tries=QUICK)
    worker.probe = machine.probe
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop(0.2)


async def submit(scene: Scene, language: str = "eng") -> Any:
    return await scene.stack.submitted(an_ask(pack_type="ocr", inputs={"question": language}))


async def test_a_pack_that_lacks_something_is_announced_and_taken_once_it_is_there(scene: Scene) -> None:
    """SAFE-3"""
    machine = Machine()
    machine.found = {"ocr": Ability(missing="no engine")}
    async with at_work(scene, machine) as worker:
        told: list[Mapping[str, Any]] = []
        worker.when_changed = lambda: told.append(worker.facts)
        assert worker.facts == {"packs": (), "packs_missing": {"ocr": "no engine"}, "packs_provide": {}}
        run = await submit(scene)
        await eventually(lambda: len(scene.queue.asked("nack")) >= 1)
        assert (await scene.row(run)).status is Status.QUEUED, "the message is left to another worker"
        assert machine.calls == []
        machine.found = {"ocr": Ability(provides=("eng",))}
        assert (await scene.ended(run)).status is Status.COMPLETED
    assert {"packs": ("ocr",), "packs_missing": {}, "packs_provide": {"ocr": ("eng",)}} in told
    assert worker.facts == {"packs": ()}


async def test_a_run_whose_language_is_missing_here_is_left_to_another_worker(scene: Scene) -> None:
    """SAFE-3: it is not started, so it costs nothing and can be executed elsewhere"""
    here, elsewhere = Machine(), Machine()
    here.found, elsewhere.found = {"ocr": Ability(provides=("eng",))}, {"ocr": Ability(provides=("kor",))}
    run = await submit(scene, "kor")
    async with at_work(scene, here):
        await eventually(lambda: len(scene.queue.asked("nack")) >= 1)
        row = await scene.row(run)
        assert (row.status, row.started_at) == (Status.QUEUED, None)
        async with at_work(scene, elsewhere):
            assert (await scene.ended(run)).status is Status.COMPLETED
    assert (here.calls, len(elsewhere.calls)) == ([], 1)


async def test_a_worker_looks_at_once_after_a_run_that_lacked_something(scene: Scene) -> None:
    """SAFE-3"""
    machine = Machine()
    machine.outcome_of = Faulted("NO_OCR_ENGINE: it is gone", is_unavailable=True)
    machine.when_called = lambda: machine.found.update(ocr=Ability(missing="no engine"))
    async with at_work(scene, machine) as worker:
        assert (worker.packs, machine.probes) == (("ocr",), 1)
        run = await submit(scene)
        check_refunded(await scene.ended(run), "NO_OCR_ENGINE: it is gone")
        await eventually(lambda: worker.packs == ())
    assert await scene.stack.balance() == CREDIT
