"""How long to wait for NATS."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass

__all__ = ["Patience", "within"]


@dataclass(frozen=True)
class Patience:
    """How long a caller waits for NATS before it gets Unavailable."""

    #: While there is no connection. A gateway must answer 503 within 5 s, and may need two writes for it.
    down_seconds: float = 2.0
    #: While there is a connection but no answer: an election takes 4 to 9 s.
    unanswered_seconds: float = 15.0
    #: While NATS stores nothing because its disk was full. It recovers only after space was freed and it was restarted
    #: it, so only a caller that would lose finished work waits for that.
    full_seconds: float = 0.0
    #: For one request, before it is retried.
    answer_seconds: float = 5.0


async def within(work: Coroutine[None, None, None], seconds: float) -> None:
    """Run `work` with a timeout, even if it may lose a cancellation. Raises TimeoutError.

    Before Python 3.12 `wait_for` can swallow a cancellation that comes at the wrong moment, and the library would retry
    without end. So `work` is cancelled repeatedly until it has ended.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError(f"not within {seconds:g} s")
        task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.05)
