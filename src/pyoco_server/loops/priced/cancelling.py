"""Waiting that something else may cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

__all__ = ["cancelled", "unless"]

T = TypeVar("T")


async def unless(work: Coroutine[Any, Any, T], *events: asyncio.Event) -> T | None:
    """What `work` returns, or None when one of the events is set before: `work` is cancelled then. Should it end all
    the same, what it returns is not lost."""
    working = asyncio.ensure_future(work)
    waiting = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        await asyncio.wait({working, *waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled({working, *waiting})
    return None if working.cancelled() else working.result()


async def cancelled(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancels them and waits for their end. More than once: before Python 3.12 a cancel can be swallowed."""
    while left := {task for task in tasks if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=1.0)
