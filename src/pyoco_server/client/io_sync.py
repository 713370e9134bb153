"""I/O primitives of the synchronous client. `io_async.py` defines the same names for the asynchronous one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from threading import Semaphore as Gate
from time import sleep
from typing import ParamSpec, TypeAlias, TypeVar

__all__ = ["Chunks", "Gate", "Stream", "closing", "hear_out", "in_thread", "pieces_of", "sleep"]

T = TypeVar("T")
P = ParamSpec("P")

#: A stream of items that can be closed early.
Stream: TypeAlias = Generator[T, None, None]
#: A body that the caller passes in pieces.
Chunks: TypeAlias = Iterable[bytes]


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function in this thread, since the caller waits for it in any case."""
    return function(*args, **kwargs)


def pieces_of(chunks: Chunks) -> Generator[bytes, None, None]:
    yield from chunks


def hear_out(pieces: Iterator[bytes]) -> None:
    """Do nothing: without an event loop, a read that does not return could not be cancelled."""
