"""Waiting for a condition, with a deadline; never for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable

__all__ = ["eventually"]

#: How many times slower than a quiet machine a busy one may be. It costs nothing where all is well.
_PATIENCE = 4
#: Between two looks: short at first, and longer for what takes its time, since looks cost the machine something.
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX, _PAUSE_GROWTH = 0.005, 0.05, 1.3


async def eventually(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 30.0) -> None:
    """Returns once the condition holds. Fails when a quiet machine would have had `seconds` for it."""
    seconds *= _PATIENCE
    deadline, pause = time.monotonic() + seconds, _PAUSE_SECONDS
    while True:
        answer = condition()
        if (await answer) if isawaitable(answer) else answer:
            return
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        await asyncio.sleep(pause)
        pause = min(pause * _PAUSE_GROWTH, _PAUSE_SECONDS_MAX)
