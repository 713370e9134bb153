"""Brings one wheel to a worker: its file, what it needs, and a directory of its own that runs can import from."""

from __future__ import annotations

import asyncio
import errno
import sys
import sysconfig
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from pyoco_server.core.wheel import Wheel
from pyoco_server.core.wheel_needs import Lack, Needs, Provided, lacks_of, plain, tell_lacks
from pyoco_server.core.wheel_sync import InstalledWheel
from pyoco_server.errors import InvalidWheel, WheelSyncFailed
from pyoco_server.executors.wheels.contents import (
    code_in,
    is_whole,
    is_whole_fetch,
    modules_in,
    needs_of_directory,
    needs_of_file,
    write_fetch,
)
from pyoco_server.executors.wheels.file_work import file_work
from pyoco_server.executors.wheels.pip import Pip
from pyoco_server.executors.wheels.shelf import Shelf
from pyoco_server.executors.wheels.worker_packages import WorkerPackages

__all__ = ["Installer", "Lacking", "Ready", "Surroundings", "tell_os_error"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Ready:
    """A wheel that is installed."""

    entry: InstalledWheel
    home: Path
    needs: Needs
    #: Its top-level modules.
    modules: tuple[str, ...]

    @property
    def version(self) -> Version:
        return Version(self.entry.package_version)


@dataclass(frozen=True)
class Lacking:
    """A wheel that could not be installed, since something else is not there. What is registered next may help."""

    error: str


@dataclass(frozen=True)
class Surroundings:
    """What a wheel meets on this worker."""

    worker: WorkerPackages
    #: What is wanted of the registry, by package.
    wheels: Mapping[str, Provided]
    #: Directories that runs may still read.
    in_use: frozenset[str]

    @cached_property
    def provided(self) -> Mapping[str, Provided]:
        """A wheel comes before what the worker has of the same name, as it does on `sys.path`."""
        return {**self.worker.provided, **self.wheels}


class Installer:
    """Wheels are brought at the same time, each apart from the others: a broken one costs only itself.

    What a crash leaves behind: files nobody knows of, which the next sweep removes.
    """

    def __init__(self, shelf: Shelf, pip: Pip, clock: Callable[[], float]) -> None:
        self._shelf, self._pip, self._clock = shelf, pip, clock
        #: What is fetched for one wheel limits what may be fetched for the next.
        self._fetching = asyncio.Lock()
        #: Directories of what was fetched that are whole.
        self._fetched: set[Path] = set()

    def look_at_fetched(self) -> None:
        """Find what was fetched before and is whole. Blocks."""
        self._fetched = {home for home in self._shelf.all_fetched() if is_whole_fetch(home)}

    def has_fetched(self, home: Path) -> bool:
        """Whether that place of what was fetched for a wheel holds all of it."""
        return home in self._fetched

    def forget_removed(self) -> None:
        """Notice what a sweep took away of it. Blocks."""
        for home in list(self._fetched):
            if not home.is_dir():
                self._fetched.discard(home)

    def fetched_for(self, ready: Ready) -> Path | None:
        """Any place of what was fetched for it."""
        return next((home for home in sorted(self._fetched) if home.name.startswith(f"{ready.home.name}~")), None)

    def look(self, entry: InstalledWheel) -> Ready | None:
        """What the manifest says is installed, if it is there and whole. Blocks."""
        home = self._shelf.home(entry)
        try:
            if not is_whole(home):
                return None
            needs = needs_of_directory(home, entry.package_name, entry.package_version)
            return Ready(entry, home, needs, modules_in(home))
        except (InvalidWheel, OSError, ValueError):
            return None

    async def bring(
        self, wheel: Wheel, read: Callable[[], AsyncGenerator[bytes, None]], there: Ready | None, around: Surroundings
    ) -> Ready | Lacking:
        """Install a wheel and what it needs; `there`: it is installed, and only its needs are looked at.

        `read` gives the bytes of the file, checked. Raises WheelSyncFailed, and whatever `read` raises.
        """
        try:
            if there is None:
                file = await self._file(wheel, read)
                needs = await asyncio.to_thread(needs_of_file, file)
            else:
                needs = there.needs
            if needs.python_problem is not None:
                return Lacking(needs.python_problem)
            lacks = lacks_of(needs, around.provided)
            if hopeless := [lack for lack in lacks if not (self._pip.has_index and lack.can_be_fetched)]:
                return Lacking(tell_lacks(hopeless))
            if lacks:
                await self._fetch(wheel, lacks, around)
            return there or await self._install(wheel, file, around)
        except InvalidWheel as error:
            raise WheelSyncFailed(str(error)) from error
        except OSError as error:
            raise WheelSyncFailed(tell_os_error(error)) from error

    def to_be_fetched(self, ready: Ready, around: Surroundings) -> list[Lack]:
        """What has to come from the index, if there is one, for this wheel to have what it needs."""
        lacks = lacks_of(ready.needs, around.provided) if self._pip.has_index else ()
        return [lack for lack in lacks if lack.can_be_fetched]

    def fetched_home(self, home: Path, lacks: Sequence[Lack]) -> Path:
        """Where that which a wheel lacks lies once it has been fetched for this interpreter; `home`: its own place."""
        what = sorted(str(plain(lack.requirement)) for lack in lacks)
        return self._shelf.fetched_home(home, "\n".join([*what, _INTERPRETER]))

    async def _file(self, wheel: Wheel, read: Callable[[], AsyncGenerator[bytes, None]]) -> Path:
        name = wheel.name.file_name
        if await asyncio.to_thread(self._shelf.has_file, name, wheel.size_bytes, wheel.sha256_hex):
            return self._shelf.file_of(name)
        async with aclosing(read()) as chunks:
            return await self._shelf.receive(name, chunks)

    async def _install(self, wheel: Wheel, file: Path, around: Surroundings) -> Ready:
        entry = InstalledWheel(
            wheel_name=wheel.name.file_name,
            package_name=wheel.name.package,
            package_version=str(wheel.name.version),
            nuid=wheel.nuid,
            size_bytes=wheel.size_bytes,
            sha256_hex=wheel.sha256_hex,
            tags=wheel.tags,
            installed_at=self._clock(),
        )
        home = self._shelf.home(entry)
        if str(home) in around.in_use:  # a run still has it from before: it cannot be made anew, and need not be
            there = await asyncio.to_thread(self.look, entry)
            if there is None:
                raise WheelSyncFailed("a run still uses what is left of an earlier installation of it")
            return there
        async with self._shelf.open_workplace() as place:
            target = place / "made"
            await self._pip.install_file(file, target)
            return await file_work(self._put, entry, target, around)

    def _put(self, entry: InstalledWheel, made: Path, around: Surroundings) -> Ready:
        replaced = around.worker.replaced_by(code_in(made))
        if replaced is not None:
            raise WheelSyncFailed(f"it brings the module {replaced}, which is part of the worker itself")
        home = self._shelf.home(entry)
        needs, modules = needs_of_directory(made, entry.package_name, entry.package_version), modules_in(made)
        self._shelf.put(made, home)
        return Ready(entry, home, needs, modules)

    async def _fetch(self, wheel: Wheel, lacks: Sequence[Lack], around: Surroundings) -> None:
        place = self._shelf.home_of(wheel.name.package, str(wheel.name.version), wheel.nuid)
        home = self.fetched_home(place, lacks)
        async with self._fetching:
            if home in self._fetched:
                return
            if str(home) in around.in_use:
                raise WheelSyncFailed("a run still uses what is left of what was fetched for it earlier")
            limits = await asyncio.to_thread(self._limits, wheel.name.package, around)
            asked = [str(plain(lack.requirement)) for lack in lacks]
            async with self._shelf.open_workplace() as place:
                pins = await self._pip.resolve(asked, limits, self._shelf.files, place)
                pins = [pin for pin in pins if pin.partition("==")[0] not in around.wheels]
                target = place / "made"
                await file_work(target.mkdir)
                if pins:
                    await self._pip.install_pinned(pins, target, place)
                await file_work(write_fetch, target, pins)
                await file_work(self._shelf.put, target, home)
                self._fetched.add(home)

    def _limits(self, package: str, around: Surroundings) -> list[str]:
        """Versions that are fixed for a wheel: what the worker has, other wheels, and what was fetched for those."""
        versions = {name: str(there.version) for name, there in around.provided.items()}
        others = self._shelf.fetched_for_others(package)
        for one in distributions(path=[str(home) for home in others]):
            versions.setdefault(canonicalize_name(one.metadata["Name"]), one.version)
        versions.pop(package, None)
        return [f"{name}=={version}" for name, version in versions.items()]


_INTERPRETER = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"


def tell_os_error(error: OSError) -> str:
    if error.errno in _FULL:
        return f"there is no room on the disk of this worker: {error}"
    return f"the files of this worker cannot be used: {error}"
