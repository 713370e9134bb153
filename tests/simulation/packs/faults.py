"""What goes wrong between a process and the stores of priced runs: the ledger, the budget and the hints."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.ledger.memory import MemoryDatabase
from pyoco_server.ports.memory.network import Network
from simulation.faults import Fault
from simulation.loop import SimLoop
from simulation.process import Killed

__all__ = ["StoreFaults", "draw_store_faults"]

#: How likely each kind is.
_WEIGHTS = {
    "die in transaction": 4,
    "die after commit": 5,
    "unheard commit": 3,
    "lose ledger requests": 2,
    "lose ledger replies": 3,
    "lose budget requests": 2,
    "lose budget replies": 4,
    "die after budget call": 3,
    "skew clock": 3,
}
_SECONDS = (3.0, 10.0, 30.0)
#: Seconds one way, on a network without trouble.
_USUAL_SECONDS = (0.000_1, 0.002)


def draw_store_faults(dice: random.Random, targets: Sequence[str], until: float) -> tuple[Fault, ...]:
    """Between none and sixteen."""
    kinds = dice.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()), k=dice.choice((0, 4, 8, 16)))
    return tuple(_draw(dice, kind, targets, until) for kind in kinds)


def _draw(dice: random.Random, kind: str, targets: Sequence[str], until: float) -> Fault:
    # Keepers have little to do unless another process has failed.
    busy = [name for name in targets if not name.startswith("keeper")]
    at, target = round(dice.uniform(2.0, until), 3), dice.choice([*targets, *busy])
    if kind == "skew clock":  # further than a lease is long, and of those who decide about leases
        keepers = [name for name in targets if name.startswith("keeper")]
        return Fault(at, kind, dice.choice(keepers), amount=round(dice.uniform(15.0, 90.0), 1))
    if kind.startswith("lose"):
        seconds = round(dice.choice(_SECONDS) * dice.uniform(0.5, 1.5), 3)
        return Fault(at, kind, target, seconds, round(dice.choice((0.1, 0.5, 1.0)), 2))
    return Fault(at, kind, target, amount=dice.randrange(1, 40 if kind == "die in transaction" else 8))


@dataclass
class _Loss:
    """A period in which calls of a process to a store fail."""

    process: str
    #: How the names of the calls begin.
    calls: tuple[str, ...]
    is_request: bool
    likelihood: float


class StoreFaults:
    """The hooks of the stores in memory. Every commit and budget call is reported before anything fails."""

    def __init__(
        self, loop: SimLoop, database: MemoryDatabase, networks: Sequence[Network], on_commit: Callable[[], None]
    ) -> None:
        self._loop, self._dice = loop, loop.stream("stores")
        self._on_commit = on_commit
        #: Called after each call to the budget took effect.
        self.on_budget: Callable[[], None] = lambda: None
        self._losses: list[_Loss] = []
        #: How many statements, commits or budget calls of a process are left until it happens, by fault and process.
        self._countdowns: dict[tuple[str, str], int] = {}
        database.between_statements, database.after_commit = self._between_statements, self._after_commit
        for network in (database.network, *networks):
            network.on_request, network.on_reply = self._on_request, self._on_reply

    def injectors(self) -> dict[str, Callable[[Any], None]]:
        return {
            kind: self._lose if kind.startswith("lose") else self._count for kind in _WEIGHTS if kind != "skew clock"
        }

    def _count(self, fault: Fault) -> None:
        self._countdowns[fault.kind, fault.target] = int(fault.amount)

    def _lose(self, fault: Fault) -> None:
        _, store, way = fault.kind.split()
        calls = ("ledger.",) if store == "ledger" else ("budget.", "idempotency_locks.")
        loss = _Loss(fault.target, calls, way == "requests", fault.amount)
        self._losses.append(loss)
        self._loop.call_later(fault.seconds, self._losses.remove, loss)

    def forget(self) -> None:
        """Faults are over: what was counted down and has not happened does not happen any more."""
        self._countdowns.clear()

    def _is_due(self, kind: str) -> bool:
        key = (kind, self._loop.current().name)
        left = self._countdowns.get(key)
        if left is None:
            return False
        if left > 1:
            self._countdowns[key] = left - 1
            return False
        del self._countdowns[key]
        self._loop.record(kind)
        return True

    def _die(self) -> None:
        self._loop.current().kill()
        raise Killed

    def _between_statements(self, _: str) -> None:
        if self._countdowns and self._is_due("die in transaction"):
            self._die()

    def _after_commit(self) -> None:
        self._on_commit()
        if not self._countdowns:
            return
        if self._is_due("die after commit"):
            self._die()
        if self._is_due("unheard commit"):
            raise DependencyUnavailable("the answer to a commit was lost")

    async def _on_request(self, call: str) -> None:
        await asyncio.sleep(self._dice.uniform(*_USUAL_SECONDS))
        self._fail_perhaps(call, is_request=True)

    async def _on_reply(self, call: str) -> None:
        if call.startswith("budget."):
            self.on_budget()
            if self._countdowns and self._is_due("die after budget call"):
                self._die()
        await asyncio.sleep(self._dice.uniform(*_USUAL_SECONDS))
        self._fail_perhaps(call, is_request=False)

    def _fail_perhaps(self, call: str, *, is_request: bool) -> None:
        if not self._losses:
            return
        name = self._loop.current().name
        for loss in self._losses:
            is_hit = loss.process == name and loss.is_request == is_request and call.startswith(loss.calls)
            if is_hit and self._dice.random() < loss.likelihood:
                self._loop.record("call lost", call=call, way="request" if is_request else "reply")
                raise DependencyUnavailable(f"{call} was lost")
