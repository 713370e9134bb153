"""Whether JetStream stores what it is given: only a write finds out that its disk is full (SAFE-13)."""

from __future__ import annotations

import asyncio
import time

from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import PRICED_BUCKET

__all__ = ["StoreTrial"]

#: Readiness is asked for by everybody: it must not become a way to make NATS write.
_EVERY_SECONDS = 2.0


class StoreTrial:
    """Writes one key of a bucket, not the queue itself: a worker would receive what is put there.

    The bucket is on the same disk and counts towards the same limits of the account.
    """

    def __init__(self, link: Link, key: str) -> None:
        self._link, self._subject = link, f"$KV.{PRICED_BUCKET}.{key}"
        self._trial: asyncio.Task[None] | None = None
        self._next_at = float("-inf")

    async def check(self) -> None:
        """Everybody who asks within two seconds gets the outcome of one write. Raises Unavailable, Rejected."""
        now = asyncio.get_running_loop().time()
        if self._trial is None or (self._trial.done() and now >= self._next_at):
            self._next_at = now + _EVERY_SECONDS
            self._trial = asyncio.create_task(self._write(), name="try whether JetStream stores")
            self._trial.add_done_callback(_retrieve)
        await asyncio.shield(self._trial)

    async def close(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.gather(self._trial, return_exceptions=True)

    async def _write(self) -> None:
        await self._link.store(self._subject, str(int(time.time())).encode())


def _retrieve(trial: asyncio.Task[None]) -> None:
    """Whoever asked may have given up: the error is not reported a second time as never retrieved."""
    if not trial.cancelled():
        trial.exception()
