"""Waiting for a condition, with a deadline; never for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable

__all__ = ["eventually"]


async def eventually(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 30.0) -> None:
    """Returns once the condition holds. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if (await answer) if isawaitable(answer) else answer:
            return
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        await asyncio.sleep(0.005)
