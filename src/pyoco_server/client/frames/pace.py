"""Injected time and randomness, so that no test waits for a real minute (GRID-194)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyoco_server.frames.addresses import RETRY_SECONDS

__all__ = ["Pace"]


@dataclass(frozen=True)
class Pace:
    #: Monotonic seconds.
    clock: Callable[[], float] = time.monotonic
    #: A random number from 0.0 to 1.0.
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def retry_seconds(self, tries: int, least: float = 0.0) -> float:
        """Return the delay after `tries` failed attempts: at least `least`, multiplied by 0.8 to 1.2."""
        base = max(RETRY_SECONDS[min(tries, len(RETRY_SECONDS)) - 1], least)
        return base * (0.8 + 0.4 * self.chance())
