"""One look at the stores of priced runs for all who ask, and for a while."""

from __future__ import annotations

import asyncio
from typing import Final

from pyoco_server.actions.priced.look_for_trouble import Trouble, look_for_trouble
from pyoco_server.ports.priced import Priced

__all__ = ["Outlook"]

#: Every dashboard asks each five seconds.
_SECONDS: Final = 10.0


class Outlook:
    """However many ask, the stores are asked every ten seconds; and not at all while nobody does."""

    def __init__(self, priced: Priced) -> None:
        self._priced = priced
        self._look: asyncio.Task[Trouble] | None = None
        self._until = 0.0

    async def __call__(self) -> Trouble:
        """Of the last ten seconds; else within a second."""
        now = asyncio.get_running_loop().time()
        if self._look is None or now >= self._until:
            self._until = now + _SECONDS
            self._look = asyncio.create_task(look_for_trouble(self._priced), name="look for trouble")
        return await asyncio.shield(self._look)  # whoever gives up does not give up for the others

    async def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)
