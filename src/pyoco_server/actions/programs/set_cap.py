"""Say how many jobs of a client may run at once."""

from __future__ import annotations

from typing import Literal

from pyoco_server.actions.programs.admit import effective_cap
from pyoco_server.core.programs.names import client_id_of, tenant_token_of
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.program_events.port import Event, EventName
from pyoco_server.ports.slots.port import Cap

__all__ = ["set_cap"]


async def set_cap(backend: Backend, group: str, client: str, desired: int, source: Literal["hello", "http"]) -> Cap:
    """The last word wins (GRID-71), lowered to what the ACL allows (GRID-168); what is in force is returned. `client`
    is named within its tenant (`client_key`): no other tenant's client of that id is touched (SAFE-4).

    One round trip when that cap is in force already: what this process remembers may be overtaken. Else two. Raises
    Unavailable.
    """
    programs = backend.programs
    assert programs is not None, "this process was opened without programs"
    client_id, tenant = client_id_of(client), tenant_token_of(client)
    cap = effective_cap(programs, client_id, desired)
    said = Cap(cap=cap, updated_at=backend.clock(), source=source)
    in_force = await programs.slots.set_cap(group, client, said)
    if in_force is not said:
        return in_force
    await programs.events.tell(
        Event(
            ts=said.updated_at,
            event=EventName.CAP_SET,
            group=group,
            client_id=client_id,
            detail=f"{cap} by {source}" + ("" if tenant is None else f" of tenant {tenant}"),
        )
    )
    return said
