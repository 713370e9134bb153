"""I/O primitives of the asynchronous client. `io_sync.py` defines the same names for the synchronous one."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Semaphore as Gate
from asyncio import sleep
from asyncio import to_thread as in_thread
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from contextlib import aclosing
from typing import TypeAlias, TypeVar

import httpx

__all__ = ["Chunks", "Gate", "Stream", "aclosing", "hear_out", "in_thread", "pieces_of", "sleep"]

T = TypeVar("T")

#: How long a server may take to end a stream after its last event.
_LAST_SECONDS = 0.2

#: A stream of items that can be closed early.
Stream: TypeAlias = AsyncGenerator[T, None]
#: A body that the caller passes in pieces.
Chunks: TypeAlias = AsyncIterable[bytes] | Iterable[bytes]


async def pieces_of(chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """Yield the chunks. A plain iterator runs in a thread, because it may block."""
    if isinstance(chunks, AsyncIterable):
        async for chunk in chunks:
            yield chunk
        return
    iterator = iter(chunks)
    while (piece := await in_thread(next, iterator, None)) is not None:
        yield piece


async def hear_out(pieces: AsyncIterator[bytes]) -> None:
    """Read the rest of a stream if it ends soon: only then can its connection be reused."""
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_LAST_SECONDS):
            async for _ in pieces:
                pass  # events after the run's terminal state are dropped
