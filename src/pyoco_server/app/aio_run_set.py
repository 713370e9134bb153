"""Many runs at once, for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

from pyoco_server.app.aio_handles import AsyncRunHandle
from pyoco_server.app.endings import Endings
from pyoco_server.errors import PyocoError

__all__ = ["as_completed", "gather"]

T = TypeVar("T")


async def as_completed(
    handles: Iterable[AsyncRunHandle[T]], timeout: float | None = None
) -> AsyncIterator[AsyncRunHandle[T]]:
    """Yield the handles as their runs end. Raises RunTimeout after `timeout` seconds."""
    endings = Endings(handles, timeout, time.monotonic)
    while not endings.is_over:
        for handle in endings.ended(await asyncio.gather(*(each.snapshot() for each in endings.to_read()))):
            yield handle
        cursor: str | None = None
        while (filters := endings.to_list()) is not None:
            items, cursor = await endings.reader.list_page({**filters, "cursor": cursor})
            news = endings.ended(items)
            for handle in news:
                yield handle
            if not news or cursor is None:
                break
        if not endings.is_over:
            await endings.reader.pause(endings.pause())


async def gather(
    *handles: AsyncRunHandle[Any], timeout: float | None = None, return_exceptions: bool = False
) -> list[Any]:
    """Wait for all runs and return their values in order. The first error is raised, or returned in its place."""
    ends_at = None if timeout is None else time.monotonic() + timeout
    values: list[Any] = []
    for handle in handles:
        left = None if ends_at is None else max(ends_at - time.monotonic(), 0.0)
        try:
            values.append(await handle.result(left))
        except PyocoError as error:
            if not return_exceptions:
                raise
            values.append(error)
    return values
