"""Periodically records when each API key was last used."""

from __future__ import annotations

import asyncio
import contextlib

from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger
from pyoco_server.loops.loop import Loop
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["KeyUses"]

log = get_logger(__name__)

_EVERY_SECONDS = 60.0
#: How long a stopping gateway may take to write the last uses.
_LAST_SECONDS = 2.0


class KeyUses(Loop):
    """Collects uses in memory, O(keys), and writes the latest use of each key once a minute: never in the path of a
    request.

    What it cannot do: be exact. A use is visible up to a minute later, and a gateway that is killed loses its unwritten
    uses. Each gateway writes its own uses; the latest one counts, whichever gateway recorded it.
    """

    def __init__(self, backend: GatewayBackend, *, every_seconds: float = _EVERY_SECONDS) -> None:
        super().__init__(every_seconds=every_seconds)
        self._backend = backend
        self._uses: dict[str, float] = {}

    def note(self, key_id: str) -> None:
        """Record a use of the key now. Takes under a microsecond: it is in the path of every request."""
        self._uses[key_id] = self._backend.clock()

    async def turn(self) -> None:
        for key_id, at in list(self._uses.items()):
            try:
                await self._backend.keys.used(key_id, at)
            except PyocoError as error:
                message = "could not record the last use of a key; retrying later"
                self.outage.failed(message, error, key_id=key_id)
                if not self._backend.is_up():
                    return
                continue
            if self._uses.get(key_id) == at:  # unless it was used again in the meantime
                del self._uses[key_id]

    async def stop(self) -> None:
        await super().stop()
        if self._uses and self._backend.is_up():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    await self.turn()
