"""A worker's private folder for the files of the runs it is executing.

    <root>/<worker>.lock    locked while its worker is running
    <root>/<worker>/<run>/  the files of one run, readable for their owner only

A lock ends with its process, even after kill -9. So if a lock can be taken, its worker is dead, and its files are
removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from pyoco_server.errors import NoRoom
from pyoco_server.logs import get_logger

__all__ = ["Scratch"]

log = get_logger(__name__)

_LOCK = ".lock"


class Scratch:
    """Directories for runs. Creates nothing before the first one is needed. Blocking calls run in other threads."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._name = uuid.uuid4().hex
        self._lock = -1
        self._making = asyncio.Lock()

    async def start(self) -> None:
        """Remove files of workers that were killed. Best effort, idempotent."""
        try:
            await asyncio.to_thread(self._sweep)
        except OSError as error:
            log.warning("cannot remove files of earlier priced runs", folder=str(self._root), cause=error)

    async def stop(self) -> None:
        """Remove all files of this worker. Idempotent."""
        async with self._making:
            if self._lock >= 0:
                await asyncio.to_thread(self._leave)

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncIterator[Path]:
        """Create an empty directory of mode 0700, and delete it with its contents when the block ends.

        Raises NoRoom.
        """
        try:
            async with self._making:
                if self._lock < 0:
                    await asyncio.to_thread(self._settle)
            made = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=self._home))
        except OSError as error:
            raise NoRoom(f"cannot keep files in {self._root}: {error.strerror}") from error
        try:
            yield made
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, made, ignore_errors=True))

    @property
    def _home(self) -> Path:
        return self._root / self._name

    def _settle(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = self._root / f"{self._name}{_LOCK}"
        while True:
            lock = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(lock).st_ino == place.stat().st_ino:
                    break
            os.close(lock)  # a sweep removed our file before we locked it
        self._lock = lock
        self._home.mkdir(mode=0o700, exist_ok=True)

    def _leave(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        (self._root / f"{self._name}{_LOCK}").unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = -1

    def _sweep(self) -> None:
        if not self._root.is_dir():
            return
        # List folders before locks: a worker creates its lock first, so a listed folder without a lock is abandoned.
        homes = [path for path in self._root.iterdir() if path.is_dir() and not path.is_symlink()]
        for home in homes:
            if home.name != self._name and not home.with_name(home.name + _LOCK).exists():
                shutil.rmtree(home, ignore_errors=True)
        for place in self._root.glob(f"*{_LOCK}"):
            if place.name != self._name + _LOCK:
                self._sweep_one(place)

    def _sweep_one(self, place: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(place, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place.with_name(place.name.removesuffix(_LOCK)), ignore_errors=True)
                place.unlink()
                log.info("removed files of a worker that exited", folder=str(self._root))
            except BlockingIOError:
                pass  # its worker is running
            finally:
                os.close(lock)
