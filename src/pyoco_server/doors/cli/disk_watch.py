"""Mends our own NATS after its disk was full: it writes nothing more until it is restarted."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pyoco_server.logs import get_logger

__all__ = ["DiskWatch"]

log = get_logger(__name__)

_LOOK_SECONDS = 3.0
#: With less than this nothing of use can be written.
_FULL_BYTES = 1024 * 1024
#: With more than this a restart is worth it.
_ROOM_BYTES = 64 * 1024 * 1024
#: Between restarts. It doubles while they do not help: a quota, say, of which the disk does not tell.
_PAUSE_SECONDS = 60.0
_PAUSE_SECONDS_MAX = 3600.0


class DiskWatch:
    """Looks at the disk, and asks the gateway whether its writes are stored.

    The gateway hears of a disk that was full for a moment only; the disk itself is looked at for as long as nobody
    submits anything, and workers cannot write the ends of their runs.
    """

    def __init__(
        self,
        folder: Path,
        is_stuck: Callable[[], Awaitable[bool]],
        restart: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._is_stuck, self._restart, self._say = folder, is_stuck, restart, say
        self._was_full = self._was_stuck = False
        self._pause = _PAUSE_SECONDS
        self._restarted_at = -_PAUSE_SECONDS_MAX

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except OSError as error:
                log.warning("the disk of NATS cannot be looked at", folder=str(self._folder), error=error)
            except Exception:  # the top of a loop: one bad look must not end the watch
                log.exception("a look at the disk of NATS failed", folder=str(self._folder))

    async def look(self) -> None:
        """Once. Raises OSError when the folder cannot be looked at."""
        stuck_now, free = await self._is_stuck(), _free_bytes(self._folder)
        # Twice in a row: a restart is no answer to a moment of overload.
        is_stuck, self._was_stuck = stuck_now and self._was_stuck, stuck_now
        if free < _FULL_BYTES or (is_stuck and free <= _ROOM_BYTES):
            self._tell_full(free)
        elif free > _ROOM_BYTES and (is_stuck or self._was_full):
            await self._mend(free)

    def _tell_full(self, free: int) -> None:
        if not self._was_full:
            self._was_full = True
            log.error("the disk is full: nothing can be stored", folder=str(self._folder), free_bytes=free)
            self._say(f"the disk of {self._folder} is full: nothing can be stored. Make room, at least 64 MiB.")

    async def _mend(self, free: int) -> None:
        now = time.monotonic()
        since = now - self._restarted_at
        if since < self._pause:
            return
        is_again = since < 2 * self._pause
        self._pause = min(self._pause * 2, _PAUSE_SECONDS_MAX) if is_again else _PAUSE_SECONDS
        self._restarted_at, self._was_full = now, False
        log.warning("the disk was full and has room again: restarting NATS", folder=str(self._folder), free_bytes=free)
        self._say("the disk was full and has room again: NATS is restarted, since it stores nothing before.")
        await self._restart()


def _free_bytes(folder: Path) -> int:
    """What is left for us; root may use what is kept back from the others. 0, too, when no file can be made."""
    found = os.statvfs(folder)
    is_root = os.geteuid() == 0
    if found.f_files and not (found.f_ffree if is_root else found.f_favail):
        return 0
    return (found.f_bfree if is_root else found.f_bavail) * found.f_frsize
