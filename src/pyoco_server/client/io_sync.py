"""What the synchronous client waits with. `io_async.py` has the same names for the other one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from threading import Semaphore as Gate
from time import sleep
from typing import ParamSpec, TypeAlias, TypeVar

__all__ = ["Chunks", "Gate", "Stream", "closing", "hear_out", "in_thread", "pieces_of", "sleep"]

T = TypeVar("T")
P = ParamSpec("P")

#: What comes one at a time, and is closed when nobody wants more.
Stream: TypeAlias = Generator[T, None, None]
#: What a caller may give piece by piece.
Chunks: TypeAlias = Iterable[bytes]


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """In this one: who called it waits anyway."""
    return function(*args, **kwargs)


def pieces_of(chunks: Chunks) -> Generator[bytes, None, None]:
    yield from chunks


def hear_out(pieces: Iterator[bytes]) -> None:
    """Not here: without an event loop nobody can stop waiting for an end that does not come."""
