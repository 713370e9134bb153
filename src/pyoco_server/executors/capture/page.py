"""A page of memory that a host shares with its guard: who owns what is printed right now."""

from __future__ import annotations

import mmap
from typing import NamedTuple

__all__ = ["TASK_BYTES_MAX", "Owner", "Page"]

#: Longer names of tasks are shortened in log lines.
TASK_BYTES_MAX = 1024
_VERSION, _RUN, _LENGTH = range(3)
#: By pipe: 1 and 2.
_READS = (0, 3, 4)
_TASK_AT = 64
_TRIES = 1000


class Owner(NamedTuple):
    """The run, by its number on this host, and the task that output belongs to. Run 0: no run."""

    run: int = 0
    task: bytes | None = None


class Page:
    """Created before the fork. The guard writes `reads`, the host writes the owner: one writer for each word."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, 4096)
        self._words = memoryview(self._map).cast("Q")

    def reads(self, pipe: int) -> int:
        """Return how often the guard has begun and finished reading from a pipe; odd: it reads right now."""
        return self._words[_READS[pipe]]

    def count_read(self, pipe: int) -> None:
        """Call it before and after each read."""
        self._words[_READS[pipe]] += 1

    def store(self, owner: Owner) -> None:
        words, task = self._words, owner.task
        words[_VERSION] += 1  # odd: a reader retries
        words[_RUN] = owner.run
        if task is None:
            words[_LENGTH] = 0
        else:
            words[_LENGTH] = len(task) + 1
            self._map[_TASK_AT : _TASK_AT + len(task)] = task
        words[_VERSION] += 1

    def load(self) -> tuple[Owner, int]:
        """Return the owner and the number of changes so far."""
        words = self._words
        for _ in range(_TRIES):
            version = words[_VERSION]
            length = min(words[_LENGTH], TASK_BYTES_MAX + 1)
            task = None if not length else bytes(self._map[_TASK_AT : _TASK_AT + length - 1])
            owner = Owner(words[_RUN], task)
            if version % 2 == 0 and words[_VERSION] == version:
                return owner, version
        return Owner(), 0  # the host died while it was writing
