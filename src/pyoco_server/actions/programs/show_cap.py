"""Show how many jobs of a client may run at once."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.actions.programs.slots import cap_of
from pyoco_server.core.programs.names import client_id_of
from pyoco_server.ports.programs import Programs

__all__ = ["CapView", "show_cap"]


@dataclass(frozen=True)
class CapView:
    """The cap of a client in a group, as far as this process knows."""

    client_id: str
    group: str
    cap: int
    #: `hello` or `http`; `default`: no cap was ever set.
    source: str
    updated_at: float | None
    #: Slots in use now.
    inflight: int


def show_cap(programs: Programs, group: str, client: str) -> CapView:
    """Return the cap in force for this client (`client_key`), or the default (GRID-71).

    From memory. O(slots of the client).
    """
    held, cap = len(programs.slots.held(group, client)), cap_of(programs, group, client)
    client_id = client_id_of(client)
    stored = programs.slots.cap(group, client)
    if stored is None:
        return CapView(client_id, group, cap, "default", None, held)
    return CapView(client_id, group, cap, stored.source, stored.updated_at, held)
