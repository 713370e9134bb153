"""Wheel sync when a worker starts again, and repeated uploads of a wheel."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pyoco_server.errors import Unavailable
from pyoco_server.loops import wheel_stage, wheel_sync
from pyoco_server.loops.wheel_stage import HostStartLimits
from pyoco_server.ports.objects.port import Catalogue
from support.waiting import eventually
from support.wheel_sync_scenes import (
    MY_1,
    OTHER_1,
    Worker,
    failures,
    looked_at_once,
    patient,
    quick_installs,
    real_installs,
    worker,
)
from support.wheels import build_wheel

__all__ = ["looked_at_once", "patient", "quick_installs", "real_installs", "worker"]

pytestmark = pytest.mark.usefixtures("warm_pip", "quick_installs")


async def test_a_wheel_that_is_deleted_and_uploaded_again_leaves_no_trouble_behind(worker: Worker) -> None:
    """FLOW-234, FLOW-242: the same name, and another upload"""
    await worker.put(requires=["nowhere-to-be-found"])
    assert failures(await worker.sync.sync()).keys() == {MY_1}
    await worker.objects.delete(MY_1)
    await worker.put()
    report = await worker.sync.sync()
    assert (report.status, report.installed) == ("ok", (MY_1,))


async def test_what_an_extra_of_another_wheel_needs_is_told(worker: Worker) -> None:
    """FLOW-236, FLOW-242: and is no trouble any more when it is there"""
    await worker.put(requires=["other-tasks[fast]"])
    await worker.put("other-tasks", requires=['quick-lib; extra == "fast"'])
    for _ in range(2):
        report = await worker.later(10)
        assert failures(report).keys() == {MY_1}
        assert failures(report)[MY_1].startswith("needs quick-lib for other-tasks[fast], which neither this worker")
    await worker.put("quick-lib")
    report = await worker.sync.sync()
    assert (report.status, len(report.installed)) == ("ok", 3)


async def test_what_an_extra_of_another_wheel_needs_is_fetched(worker: Worker, tmp_path: Path) -> None:
    """FLOW-236: as soon as that other wheel is here, and so what its extra needs is known"""
    folder = tmp_path / "index" / "quick-lib"
    folder.mkdir(parents=True)
    name, content = build_wheel("quick-lib", "1.0")
    (folder / name).write_bytes(content)
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    await worker.put(requires=["other-tasks[fast]"])
    await worker.put("other-tasks", requires=['quick-lib; extra == "fast"'])
    worker.begin(wheel_index=(tmp_path / "index").as_uri())
    await worker.sync.sync()
    assert (await worker.later(10)).status == "ok"
    assert (Path(worker.sync.environment.paths[-1]) / "quick_lib" / "__init__.py").exists()


HANGS_1 = "hangs-1.0-py3-none-any.whl"


async def test_a_wheel_that_hangs_keeps_a_worker_from_starting_for_a_while_only(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-242: the others are there from the beginning, and it is not tried twice"""
    monkeypatch.setattr(wheel_sync, "_START_PATIENCE", HostStartLimits(seconds=0.3, each_seconds=0.2))
    monkeypatch.setattr(wheel_stage, "_SLOW_SECONDS", 0.1)
    worker.hanging = ("hangs",)
    await worker.put("hangs")
    await worker.put()
    await worker.put("other-tasks")
    report = await worker.sync.first_sync()
    assert report.installed == (MY_1, OTHER_1)
    assert failures(report) == {HANGS_1: "no host process starts with it: it was not ready within 0.2 s"}
    assert len([one for one in worker.seen if "hangs" in one.modules]) == 2  # all at once, and alone
    worker.hanging = ()
    assert (await worker.later(10)).status == "ok"


async def test_a_worker_starts_with_what_it_has_when_its_wheels_take_too_long(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-242: what is left is dealt with while it works"""
    await worker.put()
    await worker.put("hangs")
    await worker.sync.sync()
    worker.hanging = ("hangs",)
    monkeypatch.setattr(wheel_sync, "_START_SECONDS", 0.5)
    sync = worker.begin()
    began = time.monotonic()
    report = await sync.first_sync()
    assert time.monotonic() - began < 60
    assert report.status == "error"
    assert "the worker starts with what it has" in failures(report)["*"]
    assert sync.is_installing
    worker.hanging = ()
    report = await sync.sync()
    assert (report.status, report.installed) == ("ok", (HANGS_1, MY_1))
    assert not worker.sync.is_installing


async def test_what_worked_before_is_there_first(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-242: a wheel that came while the worker was away, and hangs, takes nothing from it"""
    await worker.put()
    await worker.put("other-tasks")
    await worker.sync.sync()
    await worker.put("a-hangs")
    await worker.put("b-hangs")
    worker.hanging = ("a_hangs", "b_hangs")
    monkeypatch.setattr(wheel_sync, "_START_PATIENCE", HostStartLimits(seconds=60.0))
    sync = worker.begin()
    starting = asyncio.create_task(sync.first_sync())
    await eventually(lambda: sync.environment.modules == ("my_tasks", "other_tasks"), 30)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def test_a_worker_that_starts_again_begins_without_what_no_host_started_with(worker: Worker) -> None:
    """FLOW-242: that costs no time before it takes jobs; and then it is tried again at once"""
    worker.poison = "poison"
    await worker.put()
    await worker.put("a-poison", modules={"poison.py": ""})
    await worker.sync.sync()
    tried = len(worker.seen)
    sync = worker.begin()
    report = await sync.first_sync()
    assert report.installed == (MY_1,)
    assert failures(report).keys() == {"a_poison-1.0-py3-none-any.whl"}
    assert [one.modules for one in worker.seen[tried:]] == [("my_tasks",)]
    assert sync.is_installing  # a resolver may live there
    worker.poison = ""
    report = await sync.sync()
    assert (report.status, len(report.installed)) == ("ok", 2)
    assert not worker.sync.is_installing
    assert worker.shelf.load_refused() == {}


async def test_another_upload_of_what_no_host_started_with_is_tried_at_the_start(worker: Worker) -> None:
    """FLOW-234"""
    worker.poison = "poison"
    await worker.put(modules={"poison.py": ""})
    assert failures(await worker.sync.sync()).keys() == {MY_1}
    assert worker.shelf.load_refused().keys() == {MY_1}
    await worker.objects.delete(MY_1)
    await worker.put()
    report = await worker.begin().first_sync()
    assert (report.status, report.installed) == ("ok", (MY_1,))
    assert worker.shelf.load_refused() == {}


async def test_without_the_registry_a_worker_begins_without_what_no_host_started_with(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-242"""

    async def away() -> Catalogue:
        raise Unavailable("NATS does not answer")

    worker.poison = "poison"
    await worker.put()
    await worker.put("a-poison", modules={"poison.py": ""})
    await worker.sync.sync()
    monkeypatch.setattr(worker.objects, "catalogue", away)
    tried = len(worker.seen)
    assert (await worker.begin().first_sync()).installed == (MY_1,)
    assert [one.modules for one in worker.seen[tried:]] == [("my_tasks",)]
