"""How many attempts of a client may be in flight, and which are: exact across all processes (section 12.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Cap", "Slot", "Slots"]


@dataclass(frozen=True)
class Slot:
    """One unit of a client's cap, as stored."""

    group: str
    #: The client within its tenant (`client_key`), as everywhere in this module.
    client: str
    number: int
    token: str
    #: None: taken, but its run is not claimed yet.
    run_id: str | None
    #: When it was taken or filled.
    t: float
    #: The process that took it.
    holder: str
    revision: int


@dataclass(frozen=True)
class Cap:
    cap: int
    updated_at: float
    #: `hello` or `http`; `default` if none was ever set.
    source: str


class Slots(Protocol):
    """Slots and caps by client within its tenant, read from memory that a watch keeps up to date.

    Written by compare-and-set. Memory may lag briefly: a slot that appears free may be taken (`take` detects that), and
    one that appears taken may be free. An outage raises Unavailable.
    """

    async def start(self, on_free: Callable[[str, str], None] | None = None) -> None:
        """Load all slots, and follow changes. Idempotent.

        `on_free` is called with group and client whenever any process frees a slot; it must not block.
        """

    async def stop(self) -> None:
        """Stop following changes. Idempotent, and harmless without `start`."""

    def held(self, group: str, client: str) -> list[Slot]:
        """Return the slots that are held now according to memory, by number. O(cap).

        For a client with a tenant, this includes slots that a version without tenants took for its client id: their
        tenant is unknown, so they count for every tenant.
        """

    def count(self, group: str, client: str) -> int:
        """Return the number of held slots. O(1)."""

    def all_held(self, group: str) -> dict[str, list[Slot]]:
        """Return the held slots of each client of the group that holds any."""

    async def take(self, slot: Slot) -> Slot | None:
        """Write the slot over `slot.revision`: 0 for a free number, else the revision of the slot to take over.

        Returns the slot with its new revision. None: another process was faster. One round trip.
        """

    async def fill(self, slot: Slot, run_id: str, token: str, t: float) -> Slot | None:
        """Record which attempt the slot is for. None: another process has taken the slot over."""

    async def free(self, slot: Slot) -> bool:
        """Free the slot. False: it belongs to another holder by now, and nothing changed."""

    def cap(self, group: str, client: str) -> Cap | None:
        """Return the client's cap. None: none was ever set.

        For a client with a tenant that never set one: the cap that a version without tenants stored for its client id.
        """

    async def set_cap(self, group: str, client: str, cap: Cap) -> Cap:
        """Store the cap; the last writer wins (GRID-71), whatever memory contains.

        Returns the cap in force: `cap` itself if it was written, otherwise the stored one, which is equal or newer. One
        or two round trips.
        """

    def caps(self, group: str) -> dict[str, Cap]:
        """Return the cap of every client of the group that has one. O(clients)."""
