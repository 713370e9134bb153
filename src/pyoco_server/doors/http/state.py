"""What a gateway keeps while it serves: its backend, and how far it has written."""

from __future__ import annotations

from typing import cast

from starlette.requests import Request

from pyoco_server.core.run import Caller
from pyoco_server.errors import Unavailable
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["State", "caller_of", "state_of"]

#: How long a list waits for the index to be whole, and for the gateway's own last write to show up in it.
_SETTLE_SECONDS = 1.0


class State:
    def __init__(self, backend: GatewayBackend, feeder: IndexFeeder) -> None:
        self.backend, self.feeder = backend, feeder
        self._revision = 0

    def written(self, revision: int) -> None:
        self._revision = max(self._revision, revision)

    async def settled(self) -> None:
        """Whoever was just given a run id finds it in the next list. Raises Unavailable when lists cannot be true."""
        if not self.backend.is_up():
            raise Unavailable("lists stand still while there is no connection to NATS")
        if not await self.feeder.caught_up(_SETTLE_SECONDS):
            raise Unavailable("lists are not whole yet: the index is still being made")
        self.feeder.hurry()
        await self.backend.index.applied(self._revision, _SETTLE_SECONDS)


def state_of(request: Request) -> State:
    return cast(State, request.app.state.gateway)


def caller_of(request: Request) -> Caller:
    """Who asks, as the guard at the entrance found out."""
    return cast(Caller, request.scope["caller"])
