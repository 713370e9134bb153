"""Many runs at once, for callers without an event loop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

from pyoco_server.app.clients import Clients
from pyoco_server.app.endings import Endings
from pyoco_server.app.handles import RunHandle
from pyoco_server.app.requests import request_errors
from pyoco_server.errors import PyocoError

__all__ = ["RunSet", "as_completed", "gather"]

T = TypeVar("T")
#: The gateway's limit for one request.
_CANCEL_MAX = 1000


def as_completed(handles: Iterable[RunHandle[T]], timeout: float | None = None) -> Iterator[RunHandle[T]]:
    """Yield the handles as their runs end. Raises RunTimeout after `timeout` seconds."""
    endings = Endings(handles, timeout, time.monotonic)
    while not endings.is_over:
        yield from endings.ended([handle.snapshot() for handle in endings.to_read()])
        yield from _listed(endings)
        if not endings.is_over:
            endings.reader.pause(endings.pause())


def _listed(endings: Endings[RunHandle[T]]) -> Iterator[RunHandle[T]]:
    """Yield the handles that the list of runs shows as ended, page by page while there are any."""
    cursor: str | None = None
    while (filters := endings.to_list()) is not None:
        items, cursor = endings.reader.list_page({**filters, "cursor": cursor})
        news = endings.ended(items)
        yield from news
        if not news or cursor is None:
            return


def gather(*handles: RunHandle[Any], timeout: float | None = None, return_exceptions: bool = False) -> list[Any]:
    """Wait for all runs and return their values in order. The first error is raised, or returned in its place."""
    ends_at = None if timeout is None else time.monotonic() + timeout
    values: list[Any] = []
    for handle in handles:
        left = None if ends_at is None else max(ends_at - time.monotonic(), 0.0)
        try:
            values.append(handle.result(left))
        except PyocoError as error:
            if not return_exceptions:
                raise
            values.append(error)
    return values


class RunSet(Generic[T]):
    """The runs of one `map`, in its order."""

    def __init__(self, clients: Clients, handles: Iterable[RunHandle[T]]) -> None:
        self._clients, self._handles = clients, tuple(handles)

    def __repr__(self) -> str:
        return f"<{len(self)} runs>"

    def __len__(self) -> int:
        return len(self._handles)

    def __iter__(self) -> Iterator[RunHandle[T]]:
        return iter(self._handles)

    def __getitem__(self, number: int) -> RunHandle[T]:
        return self._handles[number]

    def as_completed(self, timeout: float | None = None) -> Iterator[RunHandle[T]]:
        """Yield the handles as their runs end. Raises RunTimeout after `timeout` seconds."""
        return as_completed(self._handles, timeout)

    def results(self, timeout: float | None = None, return_exceptions: bool = False) -> list[T]:
        """Wait for all runs and return their values in order. The first error is raised, or returned in its place."""
        return cast(list[T], gather(*self._handles, timeout=timeout, return_exceptions=return_exceptions))

    def cancel(self, reason: str | None = None) -> None:
        """Request all runs to stop. Those that have ended stay as they are."""
        ids = [handle.id for handle in self._handles]
        more: Any = {} if reason is None else {"reason": reason}
        with request_errors("cancel runs"):
            for first in range(0, len(ids), _CANCEL_MAX):
                some = ids[first : first + _CANCEL_MAX]
                self._clients.blocking().cancel_runs(run_ids=some, limit=len(some), **more)
