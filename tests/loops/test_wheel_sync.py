"""A worker's wheels follow the registry: real wheels, a real registry; and the real pip for whatever pip decides."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import resource
import socket
import time
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.wheel import TAGS_HEADER
from pyoco_server.core.wheel_sync import NO_WHEELS, Environment, SyncReport
from pyoco_server.errors import Corrupt, Unavailable, UsageError, WheelSyncFailed
from pyoco_server.executors.wheels.pip import Pip
from pyoco_server.executors.wheels.shelf import Shelf, open_shelf
from pyoco_server.executors.wheels.worker_packages import look_at_worker
from pyoco_server.loops import wheel_jobs, wheel_stage, wheel_sync
from pyoco_server.loops.wheel_stage import Patience
from pyoco_server.loops.wheel_sync import WheelSync
from pyoco_server.ports.objects.port import Catalogue, ObjectInfo, Objects
from support.backends import Clock, logged, opened_backend
from support.unhurried import unhurried
from support.waiting import eventually
from support.wheels import build_wheel

pytestmark = pytest.mark.usefixtures("warm_pip", "quick_installs")

MY_1, MY_2, OTHER_1 = (f"{name}-py3-none-any.whl" for name in ("my_tasks-1.0", "my_tasks-2.0", "other_tasks-1.0"))


@dataclass
class Worker:
    """A worker as far as its wheels go: what hosts would be told, and what they still read."""

    objects: Objects
    shelf: Shelf
    config: NatsBackendConfig
    clock: Clock = field(default_factory=Clock)
    #: What `renew` was told, one after another.
    seen: list[Environment] = field(default_factory=list)
    in_use: frozenset[str] = frozenset()
    #: Hosts do not start when one of these modules is there, or the second is not.
    poison: str = ""
    vital: str = ""
    #: They never start when one of these modules is there.
    hanging: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.sync = self.begin()

    def begin(self, *tags: str, **settings: Any) -> WheelSync:
        """A worker that has just been started."""
        self.sync = WheelSync(
            self.objects,
            self.shelf,
            tags or ("default",),
            replace(self.config, **settings),
            self.clock,
            self.renew,
            lambda: self.in_use,
        )
        return self.sync

    async def renew(self, environment: Environment) -> None:
        self.seen.append(environment)
        if any(module in environment.modules for module in self.hanging):
            await asyncio.Event().wait()
        if self.poison and self.poison in environment.modules:
            raise UsageError(f"{self.poison} cannot be imported")
        if self.vital and self.vital not in environment.modules:
            raise UsageError(f"no module named {self.vital}")

    async def put(self, package: str = "my-tasks", version: str = "1.0", tags: str = "", **parts: Any) -> ObjectInfo:
        name, content = build_wheel(package, version, **parts)
        return await self.put_bytes(name, content, tags)

    async def put_bytes(self, name: str, content: bytes, tags: str = "") -> ObjectInfo:
        async def chunks() -> AsyncIterator[bytes]:
            yield content

        return await self.objects.put(name, chunks(), 1 << 30, {TAGS_HEADER: tags})

    async def later(self, seconds: float = 0.0) -> SyncReport:
        self.clock.now += seconds
        return await self.sync.sync()

    @property
    def homes(self) -> list[str]:
        return sorted(home.name.rsplit("-", 1)[0] for home in self.shelf.envs.iterdir())

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.shelf.files.iterdir())

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.shelf.directory / ".installed.json").read_text())
        return found


@pytest.fixture
async def worker(prepared: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[Worker]:
    async with opened_backend(prepared) as backend:
        with open_shelf(tmp_path / "wheels") as shelf:
            worker = Worker(backend.wheels, shelf, prepared)
            yield worker
            await worker.sync.stop()
            assert not list((tmp_path / "wheels" / ".tmp").iterdir())


@pytest.fixture
def real_installs() -> None:
    """For who looks at what pip makes of a wheel, or does without room, or of one that it has to look for."""


@pytest.fixture
def quick_installs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel without more ado is what its archive holds, and pip need not be asked each time; unless somebody asks for
    `real_installs`. What has to be found or fetched is always pip's work."""

    async def unpack(_: Pip, file: Path, target: Path) -> None:
        try:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(target)
        except zipfile.BadZipFile as error:
            raise WheelSyncFailed(f"pip: {error}") from error

    if "real_installs" not in request.fixturenames:
        monkeypatch.setattr(Pip, "install_file", unpack)


_packages = functools.cache(lambda: look_at_worker(Path("/nowhere")))


@pytest.fixture(autouse=True)
def _looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed beside the worker stays as it is; to look through it takes longer than all the rest."""
    monkeypatch.setattr(wheel_sync, "look_at_worker", lambda _: _packages())


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes its time for a real pip."""
    monkeypatch.setattr(wheel_jobs, "_PATIENCE_SECONDS", 200.0)
    monkeypatch.setattr(wheel_sync, "_START_SECONDS", 200.0)


def failures(report: SyncReport) -> dict[str, str]:
    return {one.wheel_name: one.error for one in report.failed}


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
    """FLOW-243: the registry hears of new wheels before the next heartbeat, and is not bothered otherwise"""
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
    """A worker goes on when what its resolver needs leaves the registry; and that one is found among many."""
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


async def test_a_pass_is_due_when_the_interval_is_over(worker: Worker) -> None:
    """FLOW-229, FLOW-364"""

    async def scene(scale: float) -> None:
        version = f"{scale:.1f}"
        sync = worker.begin(wheel_sync_interval_sec=0.3 * scale)
        began = time.monotonic()
        first = await sync.sync_if_due()
        await worker.put(version=version)
        assert await sync.sync_if_due() == first

        async def is_installed() -> bool:
            return (await sync.sync_if_due()).installed == (f"my_tasks-{version}-py3-none-any.whl",)

        await eventually(is_installed)
        assert time.monotonic() - began > 0.25 * scale

    await unhurried(scene)


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
    monkeypatch.setattr(wheel_sync, "_START_PATIENCE", Patience(seconds=0.3, each_seconds=0.2))
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
    monkeypatch.setattr(wheel_sync, "_START_PATIENCE", Patience(seconds=60.0))
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
