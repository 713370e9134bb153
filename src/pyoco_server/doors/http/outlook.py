"""One look at the stores of priced runs for all who ask, and for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from pyoco_server.actions.priced.look_for_trouble import Trouble, look_for_trouble
from pyoco_server.ports.priced import Priced

__all__ = ["Outlook", "SharedRead"]

#: Every dashboard asks each five seconds.
_SECONDS: Final = 10.0

_Seen = TypeVar("_Seen")


class SharedRead(Generic[_Seen]):
    """However many ask while one looks, nobody else does: all are told what that one sees."""

    #: How long it is told to those who come later.
    seconds = 0.0

    def __init__(self, look: Callable[[], Coroutine[Any, Any, _Seen]]) -> None:
        self._ask = look
        self._look: asyncio.Task[_Seen] | None = None
        self._until = 0.0

    async def __call__(self) -> _Seen:
        now = asyncio.get_running_loop().time()
        if self._look is None or (self._look.done() and now >= self._until):
            self._until = now + self.seconds
            self._look = asyncio.create_task(self._ask())
        return await asyncio.shield(self._look)  # whoever gives up does not give up for the others

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)


class Outlook(SharedRead[Trouble]):
    """What is in need of a hand: asked for every ten seconds, each time within a second, and not at all while nobody
    wants to know."""

    seconds = _SECONDS

    def __init__(self, priced: Priced) -> None:
        super().__init__(lambda: look_for_trouble(priced))
