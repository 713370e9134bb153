"""The programs that a worker has, as far as it knows now (FIND-14)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pyoco_server.config.grid import GridConfig
from pyoco_server.executors.program.port import ProgramExecutor
from pyoco_server.logs import get_logger

__all__ = ["ANNOUNCED_MAX", "Shelf", "allow_of"]

log = get_logger(__name__)

#: A worker's record is written every few seconds: with more names than this it does not list them.
ANNOUNCED_MAX = 1_000
_LOOK_SECONDS = 1.0
#: An answer about one program is good for this long: it is asked for each job.
_FRESH_SECONDS = 0.5
#: A program that is there and cannot be run is tried again after this.
_LACKS_SECONDS = 60.0
_NAMES_MAX = 10_000


def allow_of(config: GridConfig) -> tuple[str, ...] | None:
    """As it is announced. None: every program."""
    return None if "*" in config.worker_exec_allow else config.worker_exec_allow


class Shelf:
    """Looked at now and then, since programs come and go while the worker runs."""

    def __init__(self, executor: ProgramExecutor, clock: Callable[[], float] = time.monotonic) -> None:
        self._executor, self._clock = executor, clock
        self._names: tuple[str, ...] = ()
        self._looked_at: float | None = None
        #: By name: whether it was there, and when that was seen.
        self._seen: dict[str, tuple[bool, float]] = {}
        #: By name: when it was found that it cannot be run.
        self._missed: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """At the last look."""
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
        """Mostly from memory; else one look at the disk."""
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
        """An attempt has shown that it cannot be run here."""
        self._missed[exec_name] = self._clock()

    def _is_missed(self, exec_name: str, now: float) -> bool:
        at = self._missed.get(exec_name)
        return at is not None and now - at < _LACKS_SECONDS

    async def look(self) -> bool:
        """At most once a second. Whether something has changed."""
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = now
        before = self._names, self._missed.keys()
        self._names = await asyncio.to_thread(self._executor.names)
        self._missed = {name: at for name, at in self._missed.items() if self._is_missed(name, now)}
        return before != (self._names, self._missed.keys())
