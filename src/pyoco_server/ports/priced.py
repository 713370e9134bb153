"""The ports that an action on priced runs may use, in one bundle. `wiring` fills it."""

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

__all__ = ["Priced"]


async def _at_once() -> object:
    return None


@dataclass(frozen=True, kw_only=True)
class Priced:
    """What every process has that handles priced runs: gateway, worker, keeper."""

    config: PricedConfig
    ledger: Ledger
    budget: Budget
    queue: PackQueue
    results: Results
    #: Input files of packs.
    inputs: Inputs
    #: Split mode only. None in joint mode, where the ledger needs no hints.
    idempotency_locks: IdempotencyLocks | None
    #: The packs that are offered here, by name.
    packs: Mapping[str, PackSpec] = field(default_factory=lambda: PACKS)
    #: Returns the live workers according to the registry, without a round trip. Raises Unavailable. None: this process
    #: does not follow the registry.
    living_workers: Callable[[], Awaitable[Sequence[WorkerRecord]]] | None = None
    #: Returns a new UUID (version 4) as text.
    new_id: Callable[[], str]
    #: Called when a row has changed, to update the lists soon. Never blocks, never raises.
    show: Callable[[PricedRun], None]
    #: Waits until every store has answered once; calls before that raise DependencyUnavailable.
    until_open: Callable[[], Awaitable[object]] = _at_once
    #: Returns whether the ledger is the one that the deployment uses, according to the last comparison (SAFE-12).
    owns_ledger: Callable[[], bool] = lambda: True
