"""What the asynchronous client waits with. `io_sync.py` has the same names for the other one."""

from __future__ import annotations

from asyncio import Semaphore as Gate
from asyncio import sleep
from asyncio import to_thread as in_thread
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing
from typing import TypeAlias, TypeVar

__all__ = ["Chunks", "Gate", "Stream", "aclosing", "in_thread", "pieces_of", "sleep"]

T = TypeVar("T")

#: What comes one at a time, and is closed when nobody wants more.
Stream: TypeAlias = AsyncGenerator[T, None]
#: What a caller may give piece by piece.
Chunks: TypeAlias = AsyncIterable[bytes] | Iterable[bytes]


async def pieces_of(chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """Whatever is behind a plain iterator may take its time: the event loop does not wait for it."""
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
        return
    iterator = iter(chunks)
    while (piece := await in_thread(next, iterator, None)) is not None:
        yield piece
