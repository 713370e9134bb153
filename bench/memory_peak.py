"""How much a process grows while something else happens."""

from __future__ import annotations

import threading

import psutil

__all__ = ["MemoryPeak"]

_LOOK_SECONDS = 0.02


class MemoryPeak:
    """The most a process holds while the block is executed."""

    def __init__(self, process: psutil.Process) -> None:
        self._process, self._stop = process, threading.Event()
        self.before = self.most = process.memory_info().rss
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self.most = max(self.most, self._process.memory_info().rss)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def grown_mib(self) -> float:
        return (self.most - self.before) / 2**20
