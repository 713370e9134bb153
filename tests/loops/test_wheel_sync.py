"""A worker's wheels follow the registry: real wheels, a real registry; and the real pip for whatever pip decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.core.wheel_sync import NO_WHEELS, SyncReport
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


@pytest.mark.usefixtures("real_installs")
async def test_a_wheel_of_the_registry_is_installed_shown_and_told(worker: Worker) -> None:
    """FLOW-231, FLOW-234, FLOW-237, FLOW-238, FLOW-243; a pass without news does nothing"""
    info = await worker.put(tags="default,gpu")
    report = await worker.sync.sync()
    assert (report.status, report.installed, report.failed, report.removed) == ("ok", (MY_1,), (), ())
    assert report.last_sync_at == worker.clock.now
    [environment] = worker.seen
    assert environment == worker.sync.environment
    assert environment.modules == ("my_tasks",)
    [path] = environment.paths
    assert (Path(path) / "my_tasks" / "__init__.py").read_text() == 'VERSION = "1.0"\n'
    assert worker.manifest() == {
        MY_1: {
            "wheel_name": MY_1,
            "package_name": "my-tasks",
            "package_version": "1.0",
            "nuid": info.object_id,
            "size_bytes": info.size_bytes,
            "sha256_hex": info.sha256_hex,
            "tags": ["default", "gpu"],
            "installed_at": worker.clock.now,
        }
    }
    assert worker.files == [MY_1]
    began = worker.clock.now
    again = await worker.later(10)
    assert again == replace(report, last_sync_at=began + 10)
    assert len(worker.seen) == 1
    assert worker.manifest()[MY_1]["installed_at"] == began


async def test_only_a_pass_that_finds_something_else_is_worth_telling(worker: Worker) -> None:
    """FLOW-243: new wheels are reported before the next heartbeat, and nothing else is"""
    told: list[SyncReport | None] = []
    worker.sync.when_changed = lambda: told.append(worker.sync.report)
    first = await worker.sync.sync()
    await worker.later(10)
    await worker.put()
    second = await worker.later(10)
    await worker.later(10)
    assert told == [first, second]


async def test_a_worker_that_starts_again_uses_what_it_has(worker: Worker) -> None:
    """FLOW-234"""
    await worker.put()
    await worker.sync.sync()
    inode = Path(worker.sync.environment.paths[0]).stat().st_ino
    report = await worker.begin().sync()
    assert report.installed == (MY_1,)
    assert worker.seen[1] == worker.seen[0]
    assert Path(worker.sync.environment.paths[0]).stat().st_ino == inode


async def test_what_is_for_others_is_left_alone_and_what_does_not_fit_is_skipped(worker: Worker) -> None:
    """FLOW-231, FLOW-232, FLOW-233: nothing here is ever downloaded"""
    await worker.put("for-others", tags="gpu,arm")
    await worker.put("for-windows", tag="cp311-cp311-win_amd64")
    await worker.put("click", "99.0")
    await worker.put_bytes("notes.txt", b"not a wheel")
    report = await worker.sync.sync()
    assert report.status == "ok"
    assert [(one.wheel_name, one.reason) for one in report.skipped] == [
        ("for_windows-1.0-cp311-cp311-win_amd64.whl", "it does not fit this worker's Python, ABI or platform"),
        ("click-99.0-py3-none-any.whl", "it is part of the worker itself"),
    ]
    assert (worker.seen, worker.files, worker.sync.environment) == ([], [], NO_WHEELS)


@pytest.mark.usefixtures("real_installs")
async def test_a_newer_version_takes_over_and_the_old_one_goes_when_no_run_has_it(worker: Worker) -> None:
    """FLOW-230, FLOW-233, FLOW-240; and a newer version that is taken back leaves the older one"""
    await worker.put()
    await worker.sync.sync()
    [old] = worker.sync.environment.paths
    worker.in_use = frozenset({old})  # a long run
    await worker.put(version="2.0")
    report = await worker.sync.sync()
    assert (report.installed, report.removed) == ((MY_2,), (MY_1,))
    assert list(worker.manifest()) == worker.files == [MY_2]
    [new] = worker.sync.environment.paths
    assert new != old
    assert worker.homes == ["my-tasks-1.0", "my-tasks-2.0"]
    await worker.objects.delete(MY_2)
    inode = Path(old).stat().st_ino
    assert (await worker.sync.sync()).installed == (MY_1,)
    assert worker.sync.environment.paths == (old,)
    assert Path(old).stat().st_ino == inode  # as the run knows it
    await worker.put(version="2.0")
    await worker.sync.sync()
    worker.in_use = frozenset()
    await worker.sync.sync()
    assert worker.homes == ["my-tasks-2.0"]


async def test_what_leaves_the_registry_leaves_the_worker(worker: Worker) -> None:
    """FLOW-240"""
    await worker.put()
    await worker.put("other-tasks")
    await worker.sync.sync()
    await worker.objects.delete(MY_1)
    report = await worker.sync.sync()
    assert (report.installed, report.removed) == ((OTHER_1,), (MY_1,))
    assert worker.sync.environment.modules == ("other_tasks",)
    assert worker.homes == ["other-tasks-1.0"]
    assert list(worker.manifest()) == worker.files == [OTHER_1]
    assert (await worker.later(10)).removed == (MY_1,)  # told until the next change


async def test_another_upload_of_the_same_version_is_installed_anew(worker: Worker) -> None:
    """FLOW-234, FLOW-236"""
    await worker.put()
    await worker.sync.sync()
    await worker.objects.delete(MY_1)
    info = await worker.put(modules={"my_tasks/__init__.py": "VERSION = 'fixed'\n"})
    await worker.sync.sync()
    [path] = worker.sync.environment.paths
    assert "fixed" in (Path(path) / "my_tasks" / "__init__.py").read_text()
    assert worker.manifest()[MY_1]["nuid"] == info.object_id
    assert len(worker.homes) == 1


async def test_a_wheel_waits_for_what_it_needs_and_stays_when_that_is_removed(worker: Worker) -> None:
    """FLOW-236, FLOW-242: news in the registry are reason enough to try again at once"""
    await worker.put(requires=["other-tasks>=1"])
    report = await worker.sync.sync()
    assert failures(report)[MY_1].startswith("needs other-tasks>=1, which neither this worker nor another wheel")
    assert worker.homes == []
    await worker.put("other-tasks")
    report = await worker.sync.sync()
    assert (report.status, report.installed) == ("ok", (MY_1, OTHER_1))
    await worker.objects.delete(OTHER_1)
    report = await worker.sync.sync()
    assert report.installed == (MY_1,)
    assert failures(report)[MY_1].startswith("needs other-tasks>=1")
    await worker.put("other-tasks", "3.0")
    assert (await worker.sync.sync()).status == "ok"


@pytest.mark.usefixtures("real_installs")
async def test_what_an_index_has_is_fetched_for_a_wheel_and_comes_behind_all_wheels(
    worker: Worker, tmp_path: Path
) -> None:
    """FLOW-236"""
    folder = tmp_path / "index" / "lonely-lib"
    folder.mkdir(parents=True)
    name, content = build_wheel("lonely-lib", "1.0")
    (folder / name).write_bytes(content)
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    await worker.put(requires=["lonely-lib"])
    worker.begin(wheel_index=(tmp_path / "index").as_uri())
    assert (await worker.sync.sync()).status == "ok"
    own, fetched = worker.sync.environment.paths
    assert fetched.startswith(own + "~")
    assert (Path(fetched) / "lonely_lib" / "__init__.py").exists()
    assert worker.sync.environment.modules == ("my_tasks",)  # a library is not something a flow.yaml may call
    await worker.put("lonely-lib", "2.0")
    await worker.sync.sync()
    assert [Path(path).name.partition("-1.0-")[0] for path in worker.sync.environment.paths][1:] == ["my-tasks"]
    assert len(worker.homes) == 2  # what was fetched is needed no more


async def test_a_wheel_that_hosts_do_not_start_with_is_not_shown(worker: Worker) -> None:
    """FLOW-242: the others are, and the one before it stays"""
    await worker.put()
    await worker.sync.sync()
    worker.poison = "poison"
    await worker.put("other-tasks")
    await worker.put(version="2.0", modules={"poison.py": ""})
    report = await worker.sync.sync()
    assert report.installed == (MY_1, OTHER_1)
    assert failures(report) == {
        MY_2: "no host process starts with it: poison cannot be imported; my-tasks 1.0 stays in use"
    }
    assert worker.sync.environment.modules == ("my_tasks", "other_tasks")
    tried = len(worker.seen)
    assert (await worker.later(5)).installed == (MY_1, OTHER_1)
    assert len(worker.seen) == tried
    worker.poison = ""
    report = await worker.later(10)
    assert (report.status, report.installed) == ("ok", (MY_2, OTHER_1))


async def test_a_wheel_that_hosts_do_not_start_without_stays(worker: Worker) -> None:
    """A worker continues when a wheel that its resolver needs leaves the registry; it is identified among many."""
    worker.vital = "my_tasks"
    worker.poison = "poison"
    await worker.put("a-poison", modules={"poison.py": ""})
    await worker.put("alone")
    await worker.put()
    report = await worker.sync.sync()
    assert report.installed == ("alone-1.0-py3-none-any.whl", MY_1)
    assert failures(report).keys() == {"a_poison-1.0-py3-none-any.whl"}
    await worker.objects.delete(MY_1)
    report = await worker.sync.sync()
    assert MY_1 in report.installed
    assert failures(report)[MY_1] == "it stays: no host process starts without it: no module named my_tasks"
    assert list(worker.manifest()) == ["a_poison-1.0-py3-none-any.whl", "alone-1.0-py3-none-any.whl", MY_1]
    worker.vital = ""
    assert MY_1 not in (await worker.later(10)).installed
    assert MY_1 not in worker.manifest()
