"""What the asynchronous client waits with. `io_sync.py` has the same names for the other one."""

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

#: How long a server that has told all may take to say so.
_LAST_SECONDS = 0.2

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


async def hear_out(pieces: AsyncIterator[bytes]) -> None:
    """A stream of which nothing more is wanted, up to its end if that is near: only then its connection can be used for
    the next call."""
    with contextlib.suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_LAST_SECONDS):
            async for _ in pieces:
                """What comes after the end of a run is told to nobody."""
