"""Installing one wheel with pip, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from pyoco_server.core.wheel import Wheel, read_wheel_name
from pyoco_server.core.wheel_needs import Provided
from pyoco_server.executors.wheels.install import Installer, Lacking, Ready, Surroundings
from pyoco_server.executors.wheels.pip import Pip
from pyoco_server.executors.wheels.shelf import Shelf
from pyoco_server.executors.wheels.worker_packages import WorkerPackages
from support.wheels import build_wheel, write_wheel

__all__ = ["NOW", "Bringer", "around", "index", "registered", "shelf", "wheel_of"]

NOW = 1_700_000_000.0


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path / "shelf")
    shelf.directory.mkdir()
    shelf.prepare()
    return shelf


def registered(package: str = "my-tasks", version: str = "1.0", **parts: Any) -> tuple[Wheel, bytes]:
    name, content = build_wheel(package, version, **parts)
    return wheel_of(name, content), content


def wheel_of(name: str, content: bytes) -> Wheel:
    digest = hashlib.sha256(content).hexdigest()
    nuid = hashlib.md5(content).hexdigest()
    return Wheel(
        name=read_wheel_name(name), size_bytes=len(content), sha256_hex=digest, nuid=nuid, modified=NOW, tags=("gpu",)
    )


def around(
    *wheels: Wheel, has: dict[str, str] | None = None, in_use: frozenset[str] = frozenset(), modules: str = ""
) -> Surroundings:
    provided = {name: Provided(Version(version), "this worker has") for name, version in (has or {}).items()}
    worker = WorkerPackages(provided, frozenset(), frozenset(modules.split()))
    registered = {one.name.package: Provided(one.name.version, "the registry has") for one in wheels}
    return Surroundings(worker, registered, in_use)


class Bringer:
    """An installer, and the bytes it asks for."""

    def __init__(self, shelf: Shelf, index: str = "none", timeout_seconds: float = 200.0) -> None:
        self.shelf = shelf
        self.installer = Installer(shelf, Pip(timeout_seconds, index), lambda: NOW)
        self.reads = 0

    async def __call__(
        self, wheel: Wheel, content: bytes, where: Surroundings | None = None, there: Ready | None = None
    ) -> Ready | Lacking:
        async def read() -> AsyncGenerator[bytes, None]:
            self.reads += 1
            yield content[:10]
            yield content[10:]

        return await self.installer.bring(wheel, read, there, where or around(wheel))

    async def ready(self, wheel: Wheel, content: bytes, where: Surroundings | None = None) -> Ready:
        done = await self(wheel, content, where)
        assert isinstance(done, Ready), done
        return done


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A package index as files: lonely-lib, which needs deep-lib, psutil (which the worker has) and other-tasks."""
    root = tmp_path / "index"
    for package, version, requires in [
        ("lonely-lib", "1.0", ["deep-lib", "psutil", "other-tasks"]),
        ("lonely-lib", "2.0", ["deep-lib>=9"]),
        ("deep-lib", "1.0", []),
        ("deep-lib", "1.1", []),
        ("other-tasks", "9.0", []),
    ]:
        folder = root / package
        folder.mkdir(parents=True, exist_ok=True)
        write_wheel(folder, package, version, requires=requires)
        links = "".join(f'<a href="{file.name}">{file.name}</a><br>' for file in sorted(folder.glob("*.whl")))
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return root
