"""A worker whose wheels follow a registry, for tests."""

from __future__ import annotations

import asyncio
import functools
import json
import zipfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.wheel import TAGS_HEADER
from pyoco_server.core.wheel_sync import Environment, SyncReport
from pyoco_server.errors import UsageError, WheelSyncFailed
from pyoco_server.executors.wheels.pip import Pip
from pyoco_server.executors.wheels.shelf import Shelf, open_shelf
from pyoco_server.executors.wheels.worker_packages import look_at_worker
from pyoco_server.loops import wheel_jobs, wheel_sync
from pyoco_server.loops.wheel_sync import WheelSync
from pyoco_server.ports.objects.port import ObjectInfo, Objects
from support.backends import Clock, opened_backend
from support.wheels import build_wheel

__all__ = [
    "MY_1",
    "MY_2",
    "OTHER_1",
    "Worker",
    "failures",
    "looked_at_once",
    "packages",
    "patient",
    "quick_installs",
    "real_installs",
    "worker",
]

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


packages = functools.cache(lambda: look_at_worker(Path("/nowhere")))


@pytest.fixture(autouse=True)
def looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed beside the worker stays as it is; to look through it takes longer than all the rest."""
    monkeypatch.setattr(wheel_sync, "look_at_worker", lambda _: packages())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes its time for a real pip."""
    monkeypatch.setattr(wheel_jobs, "_PATIENCE_SECONDS", 200.0)
    monkeypatch.setattr(wheel_sync, "_START_SECONDS", 200.0)


def failures(report: SyncReport) -> dict[str, str]:
    return {one.wheel_name: one.error for one in report.failed}
