"""The programs that a worker has, as far as it knows now (FIND-14)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pyoco_server.config.grid import GridConfig
from pyoco_server.executors.program.port import ProgramExecutor
from pyoco_server.logs import get_logger

__all__ = ["ANNOUNCED_MAX", "ProgramShelf", "allow_of"]

log = get_logger(__name__)

#: Limit of announced names. A worker's record is written every few seconds, so it lists no more than this.
ANNOUNCED_MAX = 1_000
_SCAN_SECONDS = 1.0
#: The age up to which a check of one program is reused, since it is repeated for each job.
_FRESH_SECONDS = 0.5
#: A program that exists and cannot be run is tried again after this.
_LACKS_SECONDS = 60.0
_NAMES_MAX = 10_000


def allow_of(config: GridConfig) -> tuple[str, ...] | None:
    """Return the patterns to announce. None: every program is allowed."""
    return None if "*" in config.worker_exec_allow else config.worker_exec_allow


class ProgramShelf:
    """The programs in the directory, scanned periodically since they may change while the worker runs."""

    def __init__(self, executor: ProgramExecutor, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor, self._clock = executor, clock
        self._names: tuple[str, ...] = ()
        self._scanned_at: float | None = None
        #: By name: whether the program existed, and when that was checked.
        self._seen: dict[str, tuple[bool, float]] = {}
        #: By name: when an attempt found that it cannot be run.
        self._missed: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """At the last scan."""
        return self._names

    @property
    def announced(self) -> tuple[str, ...] | None:
        """None: too many to be listed."""
        return self._names if len(self._names) <= ANNOUNCED_MAX else None

    @property
    def lacks(self) -> tuple[str, ...]:
        now = self._clock()
        return tuple(sorted(name for name in self._missed if self._is_missed(name, now)))

    def has(self, exec_name: str) -> bool:
        """Return whether the worker can run a program. Mostly from memory; else one disk access."""
        now = self._clock()
        if self._is_missed(exec_name, now):
            return False
        found, at = self._seen.get(exec_name, (False, -_FRESH_SECONDS))
        if now - at >= _FRESH_SECONDS:
            if len(self._seen) >= _NAMES_MAX:
                self._seen.clear()
            found = self._executor.has(exec_name)
            self._seen[exec_name] = found, now
        return found

    def miss(self, exec_name: str) -> None:
        """Note that an attempt found the program cannot be run here."""
        self._missed[exec_name] = self._clock()

    def _is_missed(self, exec_name: str, now: float) -> bool:
        at = self._missed.get(exec_name)
        return at is not None and now - at < _LACKS_SECONDS

    async def look(self) -> bool:
        """Scan the directory, at most once a second. Returns whether the result has changed."""
        now = self._clock()
        if self._scanned_at is not None and now - self._scanned_at < _SCAN_SECONDS:
            return False
        self._scanned_at = now
        before = self._names, self._missed.keys()
        self._names = await asyncio.to_thread(self._executor.names)
        self._missed = {name: at for name, at in self._missed.items() if self._is_missed(name, now)}
        return before != (self._names, self._missed.keys())
