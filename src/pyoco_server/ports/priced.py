"""The bundle of ports a priced action may reach. `wiring` fills it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pyoco_server.config.priced import PricedConfig
from pyoco_server.core.packs import PACKS, PackSpec
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.budget.port import Budget
from pyoco_server.ports.idempotency_locks.port import IdempotencyLocks
from pyoco_server.ports.inputs.port import Inputs
from pyoco_server.ports.ledger.port import Ledger
from pyoco_server.ports.pack_queue.port import PackQueue
from pyoco_server.ports.results.port import Results

__all__ = ["Priced", "nowhere"]


async def nowhere(_: str) -> None:
    """The points at which a test may pause or kill; there are none in production."""


async def _at_once() -> object:
    return None


@dataclass(frozen=True, kw_only=True)
class Priced:
    """What every process has that deals with priced runs: gateway, worker, keeper."""

    config: PricedConfig
    ledger: Ledger
    budget: Budget
    queue: PackQueue
    results: Results
    #: Files that packs read.
    inputs: Inputs
    #: Split mode alone; None in joint mode, where the ledger is all there is.
    idempotency_locks: IdempotencyLocks | None
    #: The packs that are offered here, by name.
    packs: Mapping[str, PackSpec] = field(default_factory=lambda: PACKS)
    #: The workers that are alive, as the registry tells; without a round trip. None: this process does not know them.
    #: Raises Unavailable.
    living_workers: Callable[[], Awaitable[Sequence[WorkerRecord]]] | None = None
    #: A fresh UUID (version 4) as text.
    new_id: Callable[[], str]
    #: A row has changed: show it in the lists, soon. Never waits, never raises.
    show: Callable[[PricedRun], None]
    #: Waits until every store has answered once; what is asked before that raises DependencyUnavailable.
    until_open: Callable[[], Awaitable[object]] = _at_once
    #: Whether the ledger is the one that the deployment uses, by the last comparison (SAFE-12).
    owns_ledger: Callable[[], bool] = lambda: True
    #: Called with a name at each step of a submit and of an end (contract 23.3).
    reached: Callable[[str], Awaitable[None]] = nowhere
