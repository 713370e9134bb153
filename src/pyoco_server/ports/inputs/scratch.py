"""Where a worker keeps the files of the runs it has in hand, and nobody else looks.

    <root>/<worker>.lock    held while its worker lives
    <root>/<worker>/<run>/  the files of one run, for its owner alone

A lock ends with its process, kill -9 included. So whose lock can be had is dead, and what it left is removed.
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
    """Rooms for runs. Nothing is made before the first is needed. What blocks happens in other threads."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._name = uuid.uuid4().hex
        self._lock = -1
        self._making = asyncio.Lock()

    async def start(self) -> None:
        """Remove what workers that were killed have left. Best effort, and repeatable."""
        try:
            await asyncio.to_thread(self._sweep)
        except OSError as error:
            log.warning("files of earlier priced runs cannot be removed", folder=str(self._root), cause=error)

    async def stop(self) -> None:
        """Nothing of ours is left. May be called twice."""
        async with self._making:
            if self._lock >= 0:
                await asyncio.to_thread(self._leave)

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncIterator[Path]:
        """An empty directory of mode 0700, gone with all that is in it when the block ends. Raises NoRoom."""
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
            os.close(lock)  # somebody took us for dead before we had it, and removed it
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
        # The folders first: one whose lock is not there when it is looked for had none when it was found.
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
                log.info("removed what a worker has left", folder=str(self._root))
            except BlockingIOError:
                pass  # its worker lives
            finally:
                os.close(lock)
