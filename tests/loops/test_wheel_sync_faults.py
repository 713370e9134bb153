"""Wheel sync with broken wheels, a registry that is down, a full disk, or a pip that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import psutil
import pytest

from pyoco_server.errors import Corrupt, Unavailable
from pyoco_server.loops import wheel_jobs
from pyoco_server.ports.objects.port import Catalogue, ObjectInfo
from support.backends import logged
from support.waiting import eventually
from support.wheel_sync_scenes import (
    MY_1,
    MY_2,
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


async def test_a_broken_wheel_costs_only_itself_and_is_tried_less_and_less_often(
    worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-242, FLOW-243"""
    reads: list[str] = []
    real = worker.objects.read

    def read(info: ObjectInfo) -> AsyncGenerator[bytes, None]:
        reads.append(info.name)
        return real(info)

    monkeypatch.setattr(worker.objects, "read", read)
    monkeypatch.setattr(worker.shelf, "has_file", lambda *_: False)  # each try reads the file anew
    await worker.put("other-tasks")
    await worker.put_bytes(MY_1, b"this is not a wheel")
    report = await worker.sync.sync()
    assert (report.status, report.installed) == ("error", (OTHER_1,))
    assert "not a wheel" in failures(report)[MY_1]
    [record] = [record for record in caplog.records if "wheel sync failed" in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert [one["wheel_name"] for one in logged(caplog.records, 24)] == [MY_1]
    tries = []
    for step in range(1, 16):  # intervals of ten seconds
        reads.clear()
        assert failures(await worker.later(10)).keys() == {MY_1}
        tries += [step] if reads == [MY_1] else []
    assert tries == [1, 3, 7, 15]
    reads.clear()
    await worker.put("third-tasks")
    assert len((await worker.sync.sync()).installed) == 2
    assert reads == ["third_tasks-1.0-py3-none-any.whl"]  # news of others are no reason to try it again
    await worker.put(version="1.1")
    assert (await worker.sync.sync()).status == "ok"


async def test_while_the_newest_version_fails_the_installed_one_stays(worker: Worker) -> None:
    """FLOW-242: never nothing"""
    await worker.put()
    await worker.sync.sync()
    await worker.put_bytes(MY_2, b"broken")
    report = await worker.sync.sync()
    assert report.installed == (MY_1,)
    assert failures(report)[MY_2].endswith("; my-tasks 1.0 stays in use")
    assert len(worker.seen) == 1
    assert (await worker.begin().sync()).installed == (MY_1,)  # also for a worker that starts again
    await worker.objects.delete(MY_1)
    assert (await worker.sync.sync()).installed == ()  # it is registered no more


@pytest.mark.parametrize("kind", ["corrupt", "lost", "defect"])
async def test_bytes_that_are_not_the_registered_ones_are_never_installed(
    worker: Worker, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-235, FLOW-242"""
    errors = {"corrupt": Corrupt("another digest"), "lost": Unavailable("NATS is gone"), "defect": KeyError("ours")}

    async def read(_: ObjectInfo) -> AsyncGenerator[bytes, None]:
        yield build_wheel()[1]
        raise errors[kind]

    await worker.put()
    with monkeypatch.context() as patch:
        patch.setattr(worker.objects, "read", read)
        report = await worker.sync.sync()
    assert failures(report).keys() == {MY_1}
    assert (worker.files, worker.homes, worker.seen) == ([], [], [])
    assert (await worker.later(10)).status == "ok"


@pytest.mark.usefixtures("real_installs")
@pytest.mark.parametrize("damage", ["manifest broken", "directory gone", "file empty"])
async def test_what_is_damaged_is_made_anew(worker: Worker, damage: str) -> None:
    """FLOW-239"""
    await worker.put()
    await worker.sync.sync()
    [home] = map(Path, worker.sync.environment.paths)
    (worker.shelf.envs / "left-1.0-over").mkdir()
    match damage:
        case "manifest broken":
            (worker.shelf.directory / ".installed.json").write_text('{"half')
        case "directory gone":
            worker.shelf.remove(home)
        case "file empty":
            (home / "my_tasks" / "__init__.py").write_text("")
    report = await worker.begin().sync()
    assert report.installed == (MY_1,)
    assert (home / "my_tasks" / "__init__.py").read_text() == 'VERSION = "1.0"\n'
    assert worker.homes == ["my-tasks-1.0"]
    assert list(worker.manifest()) == [MY_1]


async def test_a_registry_that_is_away_takes_nothing_from_the_worker(
    worker: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-242: also when the worker has just started"""

    async def away() -> Catalogue:
        raise Unavailable("NATS does not answer")

    await worker.put()
    await worker.sync.sync()
    with monkeypatch.context() as patch:
        patch.setattr(worker.objects, "catalogue", away)
        report = await worker.sync.sync()
        assert failures(report) == {"*": "the registry of wheels cannot be read: NATS does not answer"}
        assert (report.status, report.installed) == ("error", (MY_1,))
        assert logged(caplog.records, 24)
        report = await worker.begin().sync()
        assert (report.status, report.installed) == ("error", (MY_1,))
        assert worker.seen[-1] == worker.seen[0] == worker.sync.environment
    assert (await worker.sync.sync()).status == "ok"


@contextlib.contextmanager
def small_disk(bytes_max: int) -> Iterator[None]:
    """No file may grow beyond this, in this process and in those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("real_installs")
async def test_a_full_disk_is_told_leaves_nothing_half_and_is_tried_again(worker: Worker) -> None:
    """FLOW-242"""
    await worker.put("other-tasks")
    await worker.put(pad_bytes=300_000)  # does not fit as a file
    await worker.put("unpacks-large", modules={"unpacks_large.py": "#" * 400_000})  # pip has no room for it
    with small_disk(150_000):
        report = await worker.sync.sync()
    assert report.installed == (OTHER_1,)
    assert "no room on the disk of this worker" in failures(report)[MY_1]
    assert "too large" in failures(report)["unpacks_large-1.0-py3-none-any.whl"].lower()
    assert worker.homes == ["other-tasks-1.0"]
    assert not list((worker.shelf.directory / ".tmp").iterdir())
    report = await worker.later(10)
    assert (report.status, len(report.installed)) == ("ok", 3)


async def test_a_manifest_that_cannot_be_written_is_written_later(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-238, FLOW-242"""

    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    await worker.put()
    with monkeypatch.context() as patch:
        patch.setattr(worker.shelf, "save", full)
        report = await worker.sync.sync()
    assert report.installed == (MY_1,)
    assert "no room on the disk" in failures(report)["*"]
    assert (await worker.sync.sync()).status == "ok"
    assert list(worker.manifest()) == [MY_1]


@pytest.fixture
def silent_index() -> Iterator[str]:
    """An index that takes every call and never says a word: pip waits for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/simple"


def pips_in(place: Path) -> int:
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            count += any(str(place) in word for word in process.cmdline())
    return count


async def test_a_pip_that_hangs_holds_up_neither_the_others_nor_the_end(
    worker: Worker, silent_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-236, FLOW-242"""
    monkeypatch.setattr(wheel_jobs, "_PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("pyoco_server.executors.wheels.pip.os.cpu_count", lambda: 2)
    await worker.put(requires=["lonely-lib"])
    sync = worker.begin(wheel_index=silent_index, wheel_sync_interval_sec=0.05)
    await sync.start()
    await eventually(lambda: pips_in(worker.shelf.directory) == 1, 30)
    await worker.put("other-tasks")
    await eventually(lambda: sync.report is not None and sync.report.installed == (OTHER_1,), 30)
    assert pips_in(worker.shelf.directory) == 1
    began = time.monotonic()
    await sync.stop()
    assert time.monotonic() - began < 60
    assert pips_in(worker.shelf.directory) == 0


async def test_it_stops_at_once_in_the_middle_of_a_pass(worker: Worker, silent_index: str) -> None:
    """and can be started again"""
    await worker.put(requires=["lonely-lib"])
    sync = worker.begin(wheel_index=silent_index)
    await sync.start()
    await eventually(lambda: pips_in(worker.shelf.directory) == 1, 30)
    began = time.monotonic()
    await asyncio.gather(sync.stop(), sync.stop())
    assert time.monotonic() - began < 60
    assert pips_in(worker.shelf.directory) == 0
    await sync.start()
    await eventually(lambda: pips_in(worker.shelf.directory) == 1, 30)


@pytest.mark.steady_time
async def test_a_pass_is_due_when_the_interval_is_over(worker: Worker) -> None:
    """FLOW-229, FLOW-364"""
    version = "1.0"
    sync = worker.begin(wheel_sync_interval_sec=0.3)
    began = time.monotonic()
    first = await sync.sync_if_due()
    await worker.put(version=version)
    assert await sync.sync_if_due() == first

    async def is_installed() -> bool:
        return (await sync.sync_if_due()).installed == (f"my_tasks-{version}-py3-none-any.whl",)

    await eventually(is_installed)
    assert time.monotonic() - began > 0.25


@pytest.mark.usefixtures("real_installs")
async def test_a_wheel_cannot_offer_modules_of_the_standard_library(worker: Worker) -> None:
    """What is never imported from a wheel is not offered to a flow.yaml by its name either."""
    await worker.put(modules={"my_tasks.py": "", "os.py": "", "subprocess/__init__.py": ""})
    await worker.sync.sync()
    assert worker.sync.environment.modules == ("my_tasks",)


async def test_an_installation_of_an_upload_that_is_gone_is_ended_for_the_next(
    worker: Worker, silent_index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-234: the same name, replaced while pip still hangs with the first one"""
    monkeypatch.setattr(wheel_jobs, "_PATIENCE_SECONDS", 0.1)
    await worker.put(requires=["lonely-lib"])
    worker.begin(wheel_index=silent_index)
    assert (await worker.sync.sync()).installed == ()
    monkeypatch.setattr(wheel_jobs, "_PATIENCE_SECONDS", 200.0)
    await worker.put()
    report = await worker.sync.sync()
    assert (report.status, report.installed) == ("ok", (MY_1,))
    assert pips_in(worker.shelf.directory) == 0
