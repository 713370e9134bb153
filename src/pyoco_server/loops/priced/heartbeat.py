"""Renews the lease of one priced run while it is executed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.beat import beat, keep_hidden
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.loops.cancelling import cancelled, unless
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["Heartbeat"]

log = get_logger(__name__)

T = TypeVar("T")

#: Pause after a heartbeat that the ledger did not answer.
_AGAIN_SECONDS = 1.0
#: How long a heartbeat that is in flight at the stop may take to complete.
_LAST_BEAT_SECONDS = 2.0


class Heartbeat:
    """Renews the lease (T5) from the start of the run until its end is claimed (PRICED-122).

    It cannot revive a lease, or renew it while this process is suspended. The next heartbeat then shows that another
    process ends the run, and this one does nothing more for it.
    """

    def __init__(self, priced: Priced, run: PricedRun, delivery: Delivery, held_at: float) -> None:
        """`held_at`: monotonic time before the start was requested, so that the lease is never assumed to be longer
        than it is."""
        assert run.lease_token is not None
        self._priced, self._run, self._lease_token, self._delivery = priced, run, run.lease_token, delivery
        self._every = float(priced.config.priced_heartbeat_sec)
        self._ttl = float(priced.config.priced_lease_ttl_sec)
        self._held_until = held_at + self._ttl
        self._stopping = asyncio.Event()
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._hiding: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._beat_on(), name=f"heartbeat {self._run.run_id}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop. No heartbeat is in flight when this returns. May be called twice."""
        self._stopping.set()
        task = self._task
        if task is None:
            return
        await asyncio.wait({task}, timeout=_LAST_BEAT_SECONDS)
        await cancelled({task} if self._hiding is None else {task, self._hiding})

    async def while_mine(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of `work`. Returns None as soon as the lease is lost, and `work` is cancelled then."""
        made = await unless(work, self._lost)
        # Losing the lease in the same moment counts as lost: the process that ends the run then does not have the
        # outcome (PRICED-123).
        return None if self.is_lost else made

    async def _beat_on(self) -> None:
        wait = self._every
        while not await self._stopped_within(wait):
            wait = _AGAIN_SECONDS
            asked_at = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, self._held_until - asked_at)):
                    is_mine = await beat(self._priced, self._run, self._lease_token)
            except (DependencyUnavailable, TimeoutError) as error:
                log.warning("lease not renewed", **facts.about(self._run), cause=error)
                is_mine = time.monotonic() < self._held_until
            except Exception:  # top level of a loop: a defect must not leave a run without heartbeats
                log.exception("heartbeat failed", **facts.about(self._run))
                is_mine = time.monotonic() < self._held_until
            else:
                wait, self._held_until = self._every, asked_at + self._ttl
                if is_mine:
                    self._hide()
            if not is_mine:
                self._lost.set()
                return

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

    async def _stopped_within(self, seconds: float) -> bool:
        """Wait for the stop, at most until the lease would end, so that it is checked in its last moment. Returns
        whether the stop was requested."""
        seconds = max(0.0, min(seconds, self._held_until - time.monotonic()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()
