"""Round-robin scheduling: over programs, and over the clients of each (GRID-59). Pure; nothing here waits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyoco_server.core.programs.names import tenant_token_of

__all__ = ["Turn", "TurnOrder", "TurnRing"]

T = TypeVar("T")


class TurnRing:
    """Names in a circle. A name that is removed and added again keeps its position: order survives idle times."""

    def __init__(self) -> None:
        self._names: list[str] = []
        #: The name that had the last turn. It may have been removed since.
        self.last = ""

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        at = bisect_left(self._names, name)
        return at < len(self._names) and self._names[at] == name

    def add(self, name: str) -> None:
        """Add a name. Idempotent. O(n) to insert, O(log n) to find."""
        at = bisect_left(self._names, name)
        if at == len(self._names) or self._names[at] != name:
            self._names.insert(at, name)

    def discard(self, name: str) -> None:
        at = bisect_left(self._names, name)
        if at < len(self._names) and self._names[at] == name:
            del self._names[at]

    def __iter__(self) -> Iterator[str]:
        """Iterate over all names once, starting after the last turn. The ring must not change meanwhile."""
        begin = bisect_right(self._names, self.last)
        for at in range(begin, len(self._names)):
            yield self._names[at]
        for at in range(begin):
            yield self._names[at]


@dataclass(frozen=True)
class Turn(Generic[T]):
    """One scheduled read of a lane, with the credit reserved for it."""

    exec_name: str
    #: Within its tenant (`client_key`).
    client_id: str
    credit: T
    #: The program that had the previous turn.
    before: str


class TurnOrder:
    """The lanes that may contain jobs, and the order of their turns."""

    def __init__(self) -> None:
        self._execs = TurnRing()
        self._clients: dict[str, TurnRing] = {}
        #: By program: the number of those clients of each tenant.
        self._tenants: dict[str, Counter[str | None]] = {}

    def add(self, exec_name: str, client_id: str) -> None:
        """Mark a lane as one that may contain jobs. Idempotent."""
        clients = self._clients.get(exec_name)
        if clients is None:
            clients = self._clients[exec_name] = TurnRing()
            self._tenants[exec_name] = Counter()
        if client_id not in clients:
            clients.add(client_id)
            self._tenants[exec_name][tenant_token_of(client_id)] += 1
        self._execs.add(exec_name)

    def discard(self, exec_name: str, client_id: str) -> None:
        """Take a lane out of the rotation, so that it delays no other lane (GRID-61)."""
        clients = self._clients.get(exec_name)
        if clients is None or client_id not in clients:
            return
        clients.discard(client_id)
        tenants = self._tenants[exec_name]
        tenants[tenant_token_of(client_id)] -= 1
        tenants += Counter()  # drops zero counts
        if not clients:
            self._execs.discard(exec_name)

    def has(self, exec_name: str, client_id: str) -> bool:
        clients = self._clients.get(exec_name)
        return clients is not None and client_id in clients

    def pick(self, reserve_credit: Callable[[str, str | None], T | None]) -> Turn[T] | None:
        """Reserve a credit for the next program, pick its next client that may use it, and advance both pointers.

        `reserve_credit` is called with a program and a tenant (`tenant_token_of`). None: no worker has a credit, or no
        queue is left. O(programs * tenants); O(clients) once if only some tenants can have a credit.
        """
        before = self._execs.last
        for exec_name in self._execs:
            found = self._pick_client(exec_name, reserve_credit)
            if found is not None:
                client_id, credit = found
                self._clients[exec_name].last = client_id
                self._execs.last = exec_name
                return Turn(exec_name, client_id, credit, before)
        return None

    def _pick_client(
        self, exec_name: str, reserve_credit: Callable[[str, str | None], T | None]
    ) -> tuple[str, T] | None:
        without: set[str | None] = set()
        for client_id in self._clients[exec_name]:
            tenant = tenant_token_of(client_id)
            if tenant in without:
                continue
            credit = reserve_credit(exec_name, tenant)
            if credit is not None:
                return client_id, credit
            without.add(tenant)
            if len(without) == len(self._tenants[exec_name]):
                break
        return None

    def undo(self, turn: Turn[T]) -> None:
        """Give the program's turn to its next client, because the lane was empty. Turns taken since then stay taken."""
        if self._execs.last == turn.exec_name:
            self._execs.last = turn.before
