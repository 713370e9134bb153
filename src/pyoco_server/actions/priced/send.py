"""Publish the message that names a run."""

from __future__ import annotations

from pyoco_server.core.priced.instants import iso
from pyoco_server.core.priced.message import PackMessage, encode
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.ports.priced import Priced

__all__ = ["send"]


async def send(priced: Priced, run: PricedRun, at_us: int) -> None:
    """Send one message; the time in it distinguishes a deliberate second sending from a repeat of the first (12.2).

    Raises DependencyUnavailable: it may have been sent.
    """
    enqueued_at = iso(at_us)
    message = PackMessage(run_id=run.run_id, tenant_id=run.tenant_id, pack_type=run.pack_type, enqueued_at=enqueued_at)
    await priced.queue.send(encode(message), f"{run.run_id}:{enqueued_at}")
