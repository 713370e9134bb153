"""Waits that an event can interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

__all__ = ["cancelled", "unless"]

T = TypeVar("T")


async def unless(work: Coroutine[Any, Any, T], *events: asyncio.Event) -> T | None:
    """Return the result of `work`. Returns None if one of the events is set first: `work` is cancelled then.

    If `work` completes in spite of the cancellation, its result is returned.
    """
    working = asyncio.ensure_future(work)
    waiting = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        await asyncio.wait({working, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled({working, *waiting})
    return None if working.cancelled() else working.result()


async def cancelled(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel the tasks and wait until they are done. Cancels repeatedly: before Python 3.12 a cancellation can be
    swallowed."""
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)
