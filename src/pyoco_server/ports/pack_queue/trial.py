"""Test whether JetStream stores messages: only a write can detect a full disk (SAFE-13)."""

from __future__ import annotations

import asyncio
import time

from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import PRICED_BUCKET

__all__ = ["StoreTrial"]

#: Anyone may call the readiness endpoint: it must not become a way to make NATS write.
_EVERY_SECONDS = 2.0


class StoreTrial:
    """Writes one key of a bucket, not the queue itself, where workers would receive it.

    The bucket is on the same disk and counts towards the same limits of the account.
    """

    def __init__(self, link: Link, key: str) -> None:
        self._link, self._subject = link, f"$KV.{PRICED_BUCKET}.{key}"
        self._trial: asyncio.Task[None] | None = None
        self._next_at = float("-inf")

    async def check(self) -> None:
        """Test one write. All calls within two seconds share its outcome. Raises Unavailable, Rejected."""
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
    """Retrieve the exception: if every caller was cancelled, asyncio would report it as never retrieved."""
    if not trial.cancelled():
        trial.exception()
