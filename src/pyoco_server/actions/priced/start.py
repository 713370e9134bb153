"""Start a run: the worker's right to execute it, and what it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.message import PackMessage
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Stage, Status
from pyoco_server.errors import Corrupt, DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.priced import Priced

__all__ = ["NotHere", "PutBack", "Skip", "Started", "start_run"]

log = get_logger(__name__)

#: PRICED-112
_LEDGER_DELAY_SECONDS = 30
#: A message nobody can act on becomes a dead letter soon, and not within one blink of a worker's eye.
_STRANGE_DELAY_SECONDS = 5
_HINT_SECONDS = 2


@dataclass(frozen=True)
class Started:
    """Ours to execute, once; `run.lease_token` is the proof."""

    run: PricedRun
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Skip:
    """Handled already, or not to be started any more: acknowledge."""

    why: str


@dataclass(frozen=True)
class PutBack:
    """Do not acknowledge: give the message back, with this delay."""

    delay_seconds: int
    why: str
    #: A store did not answer. Otherwise it is this message alone that nobody can act on.
    is_outage: bool = False


class NotHere(Exception):
    """This worker lacks what the inputs need; another may have it. Also raised within the start, to undo it."""


class _Strange(Exception):
    """The message and the row do not agree; whatever was begun is rolled back."""


#: Whether this worker has what the inputs of the run need.
Covers = Callable[[PricedRun, Mapping[str, Any]], bool]


async def start_run(
    priced: Priced, message: PackMessage, delivery: Delivery, covers: Covers = lambda _, __: True
) -> Started | Skip | PutBack | NotHere:
    """T4, and the inputs in the same transaction. A run is started at most once, whatever the queue does (PRICED-108).

    Raises nothing of a store: an outage is `PutBack`. If the start took effect all the same and only its answer was
    lost, it is found by its lease; when that cannot be read either, the reaper ends the run.
    """
    lease_token = priced.new_id()
    try:
        started = await priced.ledger.transact(lambda tx: _start(tx, message, lease_token, covers))
    except NotHere as error:
        return error
    except (_Strange, Corrupt) as strange:  # PRICED-106
        log.error(
            "a message does not fit its run; it is not acknowledged",
            run_id=message.run_id,
            count=delivery.count,
            why=str(strange),
        )
        return PutBack(_STRANGE_DELAY_SECONDS, str(strange))
    except DependencyUnavailable as error:
        log.warning("the ledger did not answer a start", run_id=message.run_id, cause=error)
        found = await _found_started(priced, message.run_id, lease_token)
        if found is None:
            return PutBack(_LEDGER_DELAY_SECONDS, "the ledger did not answer", is_outage=True)
        started = found
    if isinstance(started, Skip):
        log.info("a message is skipped", run_id=message.run_id, tenant_id=message.tenant_id, why=started.why)
        return started
    log.info("a run is started", **facts.step(started.run, started.run.version - 1), count=delivery.count)
    priced.show(started.run)
    await _hint(priced, started.run, lease_token)
    return started


def _start(tx: LedgerTx, message: PackMessage, lease_token: str, covers: Covers) -> Started | Skip:
    """Raises _Strange and NotHere, which undo it."""
    row = tx.runs.get(message.run_id)
    if row is None:
        raise _Strange("the ledger has no such run")
    if (row.tenant_id, row.pack_type) != (message.tenant_id, message.pack_type):
        raise _Strange("its tenant or pack is not the run's")
    run = tx.leases.start(row.run_id, row.version, lease_token)
    if isinstance(run, Lost):
        return Skip(f"the run cannot be started at {row.at}")
    inputs = tx.runs.inputs(run.run_id)
    if inputs is None:
        raise _Strange("the run has no inputs")
    if not covers(run, inputs):
        raise NotHere
    return Started(run, inputs)


async def _found_started(priced: Priced, run_id: str, lease_token: str) -> Started | None:
    try:
        row, inputs = await priced.ledger.read(lambda tx: (tx.runs.get(run_id), tx.runs.inputs(run_id)))
    except (DependencyUnavailable, Corrupt):
        return None
    if row is None or inputs is None or row.lease_token != lease_token:
        return None
    return Started(row, inputs) if row.status is Status.PROCESSING and row.stage is Stage.OPEN else None


async def _hint(priced: Priced, run: PricedRun, lease_token: str) -> None:
    """PRICED-113: advisory; it never decides."""
    if priced.idempotency_locks is None:
        return
    try:
        async with asyncio.timeout(_HINT_SECONDS):  # the run's lease is already running
            await priced.idempotency_locks.lease(run.run_id, lease_token)
    except (DependencyUnavailable, TimeoutError) as error:
        log.warning("a lease could not be shown in Redis", **facts.about(run), cause=error)
