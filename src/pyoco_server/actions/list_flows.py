"""List the flows that live workers announce."""

from __future__ import annotations

from pyoco_server.core.flow_offers import FlowOffer, Wanted, find_offer, offers_of
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import FlowNotFound
from pyoco_server.ports.backend import Backend

__all__ = ["list_flows", "see_flow"]


async def list_flows(backend: Backend, wanted: Wanted) -> list[FlowOffer]:
    """Return the flows that match, by name. O(workers x flows) in memory, without a round trip. Raises Unavailable
    while the registry may be out of date.

    Flows, as workers, belong to no tenant. Hidden workers count: hiding affects lists of workers only.
    """
    return offers_of(await _live(backend), wanted, backend.config.default_tag)


async def see_flow(backend: Backend, name: str) -> FlowOffer:
    """Return one flow. Raises FlowNotFound, Unavailable."""
    offer = find_offer(await _live(backend), name, backend.config.default_tag)
    if offer is None:
        raise FlowNotFound
    return offer


async def _live(backend: Backend) -> list[WorkerRecord]:
    now, silence = backend.clock(), backend.config.worker_disconnect_timeout_sec
    return [record for record in await backend.registry.all() if record.is_alive(now, silence)]
