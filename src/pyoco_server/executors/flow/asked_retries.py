"""Tasks that ask for their own retry: they can see which try this is, and say how long to wait for the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["CurrentTry", "RetryAsked", "current_try", "within"]


@dataclass(frozen=True)
class CurrentTry:
    """The try of a task that has a policy."""

    run_id: str
    #: From 1.
    number: int


class RetryAsked(Exception):
    """Raised by a task whose policy retries this class."""

    def __init__(self, message: str, after: float | None = None) -> None:
        super().__init__(message)
        #: Seconds until the next try. None: as the policy says.
        self.after = after


_current: ContextVar[CurrentTry | None] = ContextVar("pyoco_server_current_try", default=None)


def current_try() -> CurrentTry | None:
    """Return the try that this thread executes. None: it executes no task with a policy."""
    return _current.get()


@contextlib.contextmanager
def within(current: CurrentTry | None) -> Iterator[None]:
    """Execute the block in this try; None: in no try at all."""
    token = _current.set(current)
    try:
        yield
    finally:
        _current.reset(token)
