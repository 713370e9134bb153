"""The directory in which a worker keeps its wheels.

    <directory>/files/<wheel>.whl                    as downloaded
    <directory>/envs/<package>-<version>-<nuid>/     as installed by pip; it never changes
    <directory>/envs/<...>~<digest>/                 packages downloaded from an index for it
    <directory>/.installed.json                      the manifest: installed wheels (FLOW-238)
    <directory>/.refused.json                        uploads with which no host process started
    <directory>/.tmp/                                work in progress, and directories being removed
    <directory>/.lock

Directories are created and removed by a rename, so a directory in its final place is always complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyoco_server.core.wheel_sync import InstalledWheel, WheelTrouble, read_installed, read_trouble
from pyoco_server.errors import UsageError
from pyoco_server.executors.wheels.file_work import file_work
from pyoco_server.logs import get_logger

__all__ = ["Shelf", "open_shelf"]

log = get_logger(__name__)

_WORKERS_MAX = 64
#: The write size: a thread for each chunk of a large wheel would cost more than the writing.
_WRITE_BYTES = 1024 * 1024
#: The maximum length of package and version in the name of a directory; the upload's own id follows.
_NAME_MAX = 80
_PLAIN = re.compile(r"[A-Za-z0-9_]{1,64}")


@contextlib.contextmanager
def open_shelf(directory: Path) -> Iterator[Shelf]:
    """Open the first of `directory`, `directory-2`, ... that no other worker uses, locked until the block or the
    process ends.

    Raises UsageError if it is not writable.
    """
    lock = -1
    try:
        directory = directory.absolute()
        for number in range(1, _WORKERS_MAX + 1):
            place = directory if number == 1 else directory.with_name(f"{directory.name}-{number}")
            lock = _lock(place)
            if lock >= 0:
                break
        else:
            raise UsageError(f"{_WORKERS_MAX} workers use {directory} already; set PYOCO_WHEEL_SYNC_DIR to another one")
        shelf = Shelf(place)
        shelf.prepare()
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        raise UsageError(f"cannot keep wheels in {directory}: {error}; set PYOCO_WHEEL_SYNC_DIR") from error
    try:
        yield shelf
    finally:
        os.close(lock)


def _lock(place: Path) -> int:
    """Return a descriptor that holds the lock until it is closed; -1 if another worker has it."""
    place.mkdir(parents=True, exist_ok=True)
    lock = os.open(place / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return -1
    return lock


class Shelf:
    """One worker's directory of wheels. All methods that are not coroutines block and may raise OSError: call them
    through `file_work`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files, self.envs, self._temporary = directory / "files", directory / "envs", directory / ".tmp"
        self._manifest, self._refused = directory / ".installed.json", directory / ".refused.json"

    def prepare(self) -> None:
        """Create missing directories, and remove unfinished work of an earlier process."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        for folder in (self.files, self.envs, self._temporary):
            folder.mkdir(exist_ok=True)

    def file_of(self, wheel_name: str) -> Path:
        return self.files / wheel_name

    def home_of(self, package: str, version: str, nuid: str) -> Path:
        """Return the directory for one upload of a wheel. Another upload gets another directory."""
        if not _PLAIN.fullmatch(nuid):  # not written by us: it must not be used as a path
            nuid = hashlib.sha256(nuid.encode("utf-8", "replace")).hexdigest()[:32]
        return self.envs / f"{package[:_NAME_MAX]}-{version[:_NAME_MAX]}-{nuid}"

    def home(self, installed: InstalledWheel) -> Path:
        return self.home_of(installed.package_name, installed.package_version, installed.nuid)

    def fetched_home(self, home: Path, what: str) -> Path:
        """Return the directory for packages downloaded for a wheel; `what` identifies the packages and the
        interpreter."""
        return home.with_name(f"{home.name}~{hashlib.sha256(what.encode()).hexdigest()[:16]}")

    def all_fetched(self) -> list[Path]:
        """Return the directories of packages downloaded for any wheel."""
        return sorted(self.envs.glob("*~*"))

    def fetched_for_others(self, package: str) -> list[Path]:
        """Return the directories of packages downloaded for wheels of other packages."""
        return [home for home in self.all_fetched() if home.name.rsplit("-", 2)[0] != package[:_NAME_MAX]]

    @contextlib.contextmanager
    def workplace(self) -> Iterator[Path]:
        """Create an empty work directory; its contents are deleted afterwards."""
        place = Path(tempfile.mkdtemp(dir=self._temporary))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def open_workplace(self) -> AsyncIterator[Path]:
        """Do the same for a coroutine."""
        place = self._temporary / uuid.uuid4().hex
        try:
            await file_work(place.mkdir, 0o700)
            yield place
        finally:
            await file_work(shutil.rmtree, place, True)

    async def receive(self, wheel_name: str, chunks: AsyncIterable[bytes]) -> Path:
        """Write a wheel file. It appears only when complete; a failure leaves nothing behind."""
        async with self.open_workplace() as place:
            file = place / "file"
            waiting = bytearray()
            async for chunk in chunks:
                waiting += chunk
                if len(waiting) >= _WRITE_BYTES:
                    await file_work(_append, file, bytes(waiting))
                    waiting.clear()
            await file_work(_append, file, bytes(waiting))
            return await file_work(file.replace, self.file_of(wheel_name))

    def has_file(self, wheel_name: str, size_bytes: int, sha256_hex: str) -> bool:
        """Return whether exactly that file exists already."""
        file = self.file_of(wheel_name)
        try:
            if file.stat().st_size != size_bytes:
                return False
            with file.open("rb") as data:
                return hashlib.file_digest(data, "sha256").hexdigest() == sha256_hex
        except FileNotFoundError:
            return False

    def put(self, made: Path, place: Path) -> None:
        """Move a finished directory from a work directory to its place. An existing one is removed."""
        if place.is_dir():
            self.remove(place)
        made.rename(place)

    def remove(self, path: Path) -> None:
        """Remove immediately; the disk space is freed afterwards."""
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        trash = self._temporary / uuid.uuid4().hex  # not created: a full disk may have no room for a directory
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def load(self) -> dict[str, InstalledWheel]:
        """Return the manifest by wheel name. A missing or damaged one counts as empty (FLOW-239)."""
        document = _read(self._manifest)
        found = {
            name: one for name, item in document.items() if (one := read_installed(item)) and one.wheel_name == name
        }
        if len(found) < len(document):
            log.warning("wheel manifest damaged: reinstalling the missing entries")
        return found

    def save(self, installed: Mapping[str, InstalledWheel]) -> None:
        """Replace the manifest atomically: after a crash it is either the old one or the new one (FLOW-238)."""
        self._replace(self._manifest, {name: asdict(entry) for name, entry in sorted(installed.items())})

    def load_refused(self) -> dict[str, WheelTrouble]:
        """Return, by wheel name, the uploads with which no host process started when this was last written."""
        found = {name: read_trouble(item) for name, item in _read(self._refused).items()}
        return {name: one for name, one in found.items() if one is not None}

    def save_refused(self, refused: Mapping[str, WheelTrouble]) -> None:
        """Store them for the next worker process here, which starts without them."""
        entries = {
            name: {"nuid": one.nuid, "error": one.error, "times": one.times} for name, one in sorted(refused.items())
        }
        self._replace(self._refused, entries)

    def _replace(self, file: Path, document: Mapping[str, Any]) -> None:
        with self.workplace() as place:
            fresh = place / "fresh"
            with fresh.open("w", encoding="utf-8") as out:
                out.write(json.dumps(document, indent=2))
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(file)
        folder = os.open(self.directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def sweep(
        self, files: Collection[Path], homes: Collection[Path], under_way: Collection[Path], in_use: Collection[str]
    ) -> bool:
        """Remove everything except these. False: something was kept because a run may still read it.

        `under_way`: directories that may be created at this moment, and with them the packages downloaded for them.
        """
        for file in self.files.iterdir():
            if file not in files:
                self.remove(file)
        is_clean = True
        for home in self.envs.iterdir():
            if home in homes or home.with_name(home.name.partition("~")[0]) in under_way:
                continue
            if str(home) in in_use:
                is_clean = False
            else:
                self.remove(home)
        return is_clean


def _append(file: Path, data: bytes) -> None:
    with file.open("ab") as out:
        out.write(data)


def _read(file: Path) -> dict[str, Any]:
    """Return the contents of one of our own files; empty if it is missing or damaged."""
    try:
        document = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("wheel state file unreadable: its work is repeated", file=file.name, error=error)
        return {}
    if isinstance(document, dict):
        return document
    log.warning("wheel state file damaged: its work is repeated", file=file.name)
    return {}
