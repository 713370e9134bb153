"""How many attempts of a client may be in flight, and which are: exact over all processes (section 12.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Cap", "Slot", "Slots"]


@dataclass(frozen=True)
class Slot:
    """One unit of a client's cap, as it is stored."""

    group: str
    #: Within its tenant (`client_key`), wherever a client is named here.
    client: str
    number: int
    token: str
    #: None: taken, and its run not yet claimed.
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
    #: `hello` or `http`; `default` when nobody ever said one.
    source: str


class Slots(Protocol):
    """Slots and caps by client within its tenant, read from memory that a watch keeps true, written by compare-and-set.

    Memory may be a moment behind: a slot that looks free may be taken (`take` says so), and one that looks taken may
    be free. An outage raises Unavailable.
    """

    async def start(self, on_free: Callable[[str, str], None] | None = None) -> None:
        """Returns once everything is known. May be repeated. `on_free` hears of group and client whenever a slot is
        given back, by whomever; it must not block."""

    async def stop(self) -> None:
        """May be called twice, or without a start."""

    def held(self, group: str, client: str) -> list[Slot]:
        """Those that are held now, as far as is known, by number. O(cap). Of a client with a tenant, also those that a
        version without tenants took for its client id: nobody knows whose they are, so they count for each tenant."""

    def count(self, group: str, client: str) -> int:
        """How many those are. O(1)."""

    def all_held(self, group: str) -> dict[str, list[Slot]]:
        """The same for each client of the group that holds any."""

    async def take(self, slot: Slot) -> Slot | None:
        """Write it over `slot.revision`: 0 when the number is not held, else that of the one which is taken over.
        None: somebody was faster. The answer has the new revision. One round trip."""

    async def fill(self, slot: Slot, run_id: str, token: str, t: float) -> Slot | None:
        """Write down whose attempt it is for. None: somebody has taken it over."""

    async def free(self, slot: Slot) -> bool:
        """Give it back. False: it is another's by now, and nothing changed."""

    def cap(self, group: str, client: str) -> Cap | None:
        """None: nobody ever said one. For a client with a tenant that never said one: what was said for its client id
        in a version without tenants."""

    async def set_cap(self, group: str, client: str, cap: Cap) -> Cap:
        """The last word wins (GRID-71), whatever memory says. Returns what is in force: `cap` itself when it was
        written, else what is stored, which says the same or came later. One round trip, or two."""

    def caps(self, group: str) -> dict[str, Cap]:
        """Every client of the group that has one. O(clients)."""
