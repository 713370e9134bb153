"""The lease of one priced run while it is executed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from pyoco_server.actions.attempt import Standing
from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.beat import beat, keep_hidden
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.logs import get_logger
from pyoco_server.loops.cancelling import cancelled, unless
from pyoco_server.loops.pulse import Live, Pulse, Rhythm
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["Lease"]

log = get_logger(__name__)

T = TypeVar("T")

#: Pause after a heartbeat that the ledger did not answer.
_AGAIN_SECONDS = 1.0
#: How long a heartbeat that is in flight at the stop may take to complete.
_LAST_BEAT_SECONDS = 2.0


class Lease(Live):
    """Renewed by the pulse (T5) from the start of the run until its end is claimed (PRICED-122).

    It cannot be revived, or renewed while this process is suspended. The next heartbeat then shows that another process
    ends the run, and this one does nothing more for it.
    """

    def __init__(self, pulse: Pulse, priced: Priced, run: PricedRun, delivery: Delivery, held_at: float) -> None:
        """`held_at`: monotonic time before the start was requested, so that the lease is never assumed to be longer
        than it is."""
        assert run.lease_token is not None
        ttl = float(priced.config.priced_lease_ttl_sec)
        super().__init__(Rhythm(beat=float(priced.config.priced_heartbeat_sec), beat_again=_AGAIN_SECONDS, lease=ttl))
        self.lease_until = held_at + ttl
        self._pulse, self._priced, self._run, self._delivery = pulse, priced, run, delivery
        self._lease_token = run.lease_token
        self._lost = asyncio.Event()
        self._hiding: asyncio.Task[None] | None = None

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def is_executing(self) -> bool:
        return True

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    async def __aenter__(self) -> Self:
        self._pulse.begin(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Renew it no more. No heartbeat is in flight when this returns. May be called twice."""
        await self._pulse.end_at_rest(self, _LAST_BEAT_SECONDS)
        if self._hiding is not None:
            await cancelled({self._hiding})

    async def while_mine(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`. Returns None as soon as the lease is lost, and `work` is cancelled then."""
        made = await unless(work, self._lost)
        # Losing the lease in the same moment counts as lost: the process that ends the run then does not have the
        # outcome (PRICED-123).
        return None if self.is_lost else made

    async def beat(self) -> Standing:
        if not await beat(self._priced, self._run, self._lease_token):
            return Standing.FENCED
        self._hide()
        return Standing.OURS

    def on_fenced(self) -> None:
        self._lost.set()

    def _hide(self) -> None:
        """Extend the visibility beside the heartbeats: a queue that does not answer must not cost the lease, which
        only the ledger decides."""
        if self._hiding is None or self._hiding.done():
            self._hiding = asyncio.create_task(self._keep_hidden(), name=f"visibility {self._run.run_id}")

    async def _keep_hidden(self) -> None:
        try:
            await keep_hidden(self._priced, self._run, self._lease_token, self._delivery)
        except Exception:  # top level of a task: the next heartbeat tries again
            log.exception("failed to extend the visibility of a message", **facts.about(self._run))
