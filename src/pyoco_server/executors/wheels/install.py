"""Installs one wheel on a worker: its file, its requirements, and a directory from which runs can import it."""

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
    is_intact,
    is_intact_fetch,
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
    """An installed wheel."""

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
    """A wheel that could not be installed because a requirement is missing. A later registration may provide it."""

    error: str


@dataclass(frozen=True)
class Surroundings:
    """The environment in which a wheel is installed."""

    worker: WorkerPackages
    #: The wheels selected from the registry, by package.
    wheels: Mapping[str, Provided]
    #: Directories that active runs may still read.
    in_use: frozenset[str]

    @cached_property
    def provided(self) -> Mapping[str, Provided]:
        """Return the available packages. A wheel shadows the worker's own package of the same name, as on
        `sys.path`."""
        return {**self.worker.provided, **self.wheels}


class Installer:
    """Installs wheels concurrently and independently: a broken one does not affect the others.

    What a crash leaves behind: unreferenced files, which the next sweep removes.
    """

    def __init__(self, shelf: Shelf, pip: Pip, clock: Callable[[], float]) -> None:
        self._shelf, self._pip, self._clock = shelf, pip, clock
        #: Packages downloaded for one wheel constrain what may be downloaded for the next.
        self._fetching = asyncio.Lock()
        #: Complete directories of downloaded packages.
        self._fetched: set[Path] = set()

    def look_at_fetched(self) -> None:
        """Find complete downloads of an earlier process. Blocks."""
        self._fetched = {home for home in self._shelf.all_fetched() if is_intact_fetch(home)}

    def has_fetched(self, home: Path) -> bool:
        """Return whether this directory contains all packages downloaded for a wheel."""
        return home in self._fetched

    def forget_removed(self) -> None:
        """Drop the entries whose directories a sweep has removed. Blocks."""
        for home in list(self._fetched):
            if not home.is_dir():
                self._fetched.discard(home)

    def fetched_for(self, ready: Ready) -> Path | None:
        """Return any directory of packages downloaded for it."""
        return next((home for home in sorted(self._fetched) if home.name.startswith(f"{ready.home.name}~")), None)

    def look(self, entry: InstalledWheel) -> Ready | None:
        """Return a wheel of the manifest if it is installed completely. Blocks."""
        home = self._shelf.home(entry)
        try:
            if not is_intact(home):
                return None
            needs = needs_of_directory(home, entry.package_name, entry.package_version)
            return Ready(entry, home, needs, modules_in(home))
        except (InvalidWheel, OSError, ValueError):
            return None

    async def bring(
        self,
        wheel: Wheel,
        read: Callable[[], AsyncGenerator[bytes, None]],
        installed: Ready | None,
        around: Surroundings,
    ) -> Ready | Lacking:
        """Install a wheel and its requirements; if it is `installed`, only check its requirements.

        `read` yields the verified bytes of the file. Raises WheelSyncFailed, and whatever `read` raises.
        """
        try:
            if installed is None:
                file = await self._file(wheel, read)
                needs = await asyncio.to_thread(needs_of_file, file)
            else:
                needs = installed.needs
            if needs.python_problem is not None:
                return Lacking(needs.python_problem)
            lacks = lacks_of(needs, around.provided)
            if hopeless := [lack for lack in lacks if not (self._pip.has_index and lack.can_be_fetched)]:
                return Lacking(tell_lacks(hopeless))
            if lacks:
                await self._fetch(wheel, lacks, around)
            return installed or await self._install(wheel, file, around)
        except InvalidWheel as error:
            raise WheelSyncFailed(str(error)) from error
        except OSError as error:
            raise WheelSyncFailed(tell_os_error(error)) from error

    def to_be_fetched(self, ready: Ready, around: Surroundings) -> list[Lack]:
        """Return the requirements of this wheel that have to come from the index, if one is configured."""
        lacks = lacks_of(ready.needs, around.provided) if self._pip.has_index else ()
        return [lack for lack in lacks if lack.can_be_fetched]

    def fetched_home(self, home: Path, lacks: Sequence[Lack]) -> Path:
        """Return the directory for the packages that a wheel lacks, for this interpreter; `home`: the wheel's own
        directory."""
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
        if str(home) in around.in_use:  # a run still uses its directory, so it can neither be replaced nor need to be
            installed = await asyncio.to_thread(self.look, entry)
            if installed is None:
                raise WheelSyncFailed("a run still uses what is left of an earlier installation of it")
            return installed
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
        """Return the pinned versions: of the worker's packages, of other wheels, and of packages downloaded for
        those."""
        versions = {name: str(each.version) for name, each in around.provided.items()}
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
