"""Reads of slow stores, shared by concurrent callers and cached for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from pyoco_server.actions.priced.look_for_trouble import Trouble, look_for_trouble
from pyoco_server.ports.priced import Priced

__all__ = ["Outlook", "SharedRead"]

#: Cache time; every open dashboard polls every five seconds.
_SECONDS: Final = 10.0

_Seen = TypeVar("_Seen")


class SharedRead(Generic[_Seen]):
    """One read at a time: callers that arrive during a read share its result."""

    #: How long a result is reused.
    seconds = 0.0

    def __init__(self, read: Callable[[], Coroutine[Any, Any, _Seen]]) -> None:
        self._read = read
        self._reading: asyncio.Task[_Seen] | None = None
        self._until = 0.0

    async def __call__(self) -> _Seen:
        now = asyncio.get_running_loop().time()
        if self._reading is None or (self._reading.done() and now >= self._until):
            self._until = now + self.seconds
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)  # a caller that gives up must not cancel the read for the others

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


class Outlook(SharedRead[Trouble]):
    """Problems in the stores of priced runs: read every ten seconds at most, and only on request."""

    seconds = _SECONDS

    def __init__(self, priced: Priced) -> None:
        super().__init__(lambda: look_for_trouble(priced))
