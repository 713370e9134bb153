"""List the packs of a deployment, and whether its workers can execute them (SAFE-3)."""

from __future__ import annotations

from pyoco_server.actions.priced.unserved import living
from pyoco_server.core.packs.ability import Offer, offer_of
from pyoco_server.ports.priced import Priced

__all__ = ["list_packs"]


async def list_packs(priced: Priced) -> list[tuple[str, Offer]]:
    """Return the packs by name, in the order in which they are offered. O(packs * workers), no round trip."""
    workers = await living(priced)
    return [(name, offer_of(name, workers)) for name in priced.packs]
