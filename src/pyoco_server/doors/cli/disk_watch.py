"""Restarts our own NATS after its disk was full: until then it stores nothing, even if there is space again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pyoco_server.logs import get_logger

__all__ = ["DiskWatch"]

log = get_logger(__name__)

_POLL_SECONDS = 3.0
#: With less free space nothing useful can be written.
_FULL_BYTES = 1024 * 1024
#: With more free space a restart is worthwhile.
_ROOM_BYTES = 64 * 1024 * 1024
#: Between restarts. Doubles while restarts do not help, for example because of a quota that statvfs does not report.
_PAUSE_SECONDS = 60.0
_PAUSE_SECONDS_MAX = 3600.0


class DiskWatch:
    """Polls the free disk space, and the gateway for whether its writes are stored.

    Both are needed: only the gateway detects a disk that was full for a moment, and only the disk itself shows the
    problem while no run is submitted and workers cannot write the outcomes of their runs.
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
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.look()
            except OSError as error:
                log.warning("cannot check the disk of NATS", folder=str(self._folder), error=error)
            except Exception:  # the top of a loop: one failed check must not end the watch
                log.exception("disk check failed", folder=str(self._folder))

    async def look(self) -> None:
        """Check once. Raises OSError if the folder cannot be read."""
        stuck_now, free = await self._is_stuck(), _free_bytes(self._folder)
        # Only if seen twice in a row: a restart does not help against a moment of overload.
        is_stuck, self._was_stuck = stuck_now and self._was_stuck, stuck_now
        if free < _FULL_BYTES or (is_stuck and free <= _ROOM_BYTES):
            self._report_full(free)
        elif free > _ROOM_BYTES and (is_stuck or self._was_full):
            await self._mend(free)

    def _report_full(self, free: int) -> None:
        if not self._was_full:
            self._was_full = True
            log.error("disk full: NATS cannot store anything", folder=str(self._folder), free_bytes=free)
            self._say(f"the disk of {self._folder} is full: nothing can be stored. Free at least 64 MiB.")

    async def _mend(self, free: int) -> None:
        now = time.monotonic()
        since = now - self._restarted_at
        if since < self._pause:
            return
        is_again = since < 2 * self._pause
        self._pause = min(self._pause * 2, _PAUSE_SECONDS_MAX) if is_again else _PAUSE_SECONDS
        self._restarted_at, self._was_full = now, False
        log.warning("disk has free space again: restarting NATS", folder=str(self._folder), free_bytes=free)
        self._say("the disk has free space again: restarting NATS, which stores nothing until then.")
        await self._restart()


def _free_bytes(folder: Path) -> int:
    """Return the free bytes available to this user; root may use the reserved blocks. 0 if no inode is free, too."""
    found = os.statvfs(folder)
    is_root = os.geteuid() == 0
    if found.f_files and not (found.f_ffree if is_root else found.f_favail):
        return 0
    return (found.f_bfree if is_root else found.f_bavail) * found.f_frsize
