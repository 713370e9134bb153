"""Set how many jobs of a client may run at once."""

from __future__ import annotations

from typing import Literal

from pyoco_server.actions.programs.admit import effective_cap
from pyoco_server.core.programs.names import client_id_of, tenant_token_of
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import Event, EventName
from pyoco_server.ports.slots.port import Cap

__all__ = ["set_cap"]


async def set_cap(backend: Backend, group: str, client: str, desired: int, source: Literal["hello", "http"]) -> Cap:
    """Set the cap of a client, lowered to what the ACL allows (GRID-168), and return the cap in force.

    The last call wins (GRID-71). `client` is named within its tenant (`client_key`): clients of other tenants with the
    same id are not affected (SAFE-4).

    Costs one round trip if the cap is in force already, since the value in memory may be outdated; otherwise two.
    Raises Unavailable.
    """
    programs = backend.programs
    assert programs is not None, "this process was opened without programs"
    client_id, tenant = client_id_of(client), tenant_token_of(client)
    cap = effective_cap(programs, client_id, desired)
    requested = Cap(cap=cap, updated_at=backend.clock(), source=source)
    in_force = await programs.slots.set_cap(group, client, requested)
    if in_force is not requested:
        return in_force
    await programs.events.tell(
        Event(
            ts=requested.updated_at,
            event=EventName.CAP_SET,
            group=group,
            client_id=client_id,
            detail=f"{cap} by {source}" + ("" if tenant is None else f" of tenant {tenant}"),
        )
    )
    return requested
