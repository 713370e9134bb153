"""Start a run: acquire the worker's lease to execute it, and read its inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.actions.priced import facts
from pyoco_server.core.priced.instants import SECOND_US
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
#: A message that no worker can process should become a dead letter soon, but not immediately.
_MISMATCH_DELAY_SECONDS = 5
_SHOW_LEASE_SECONDS = 2


@dataclass(frozen=True)
class Started:
    """This worker executes the run, once; `run.lease_token` is the proof."""

    run: PricedRun
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Skip:
    """Already processed, or not to be started any more: acknowledge."""

    why: str


@dataclass(frozen=True)
class PutBack:
    """Do not acknowledge: put the message back, with this delay."""

    delay_seconds: int
    why: str
    #: A store did not answer. Otherwise only this message cannot be processed.
    is_outage: bool = False


class NotHere(Exception):
    """This worker lacks what the inputs need; another may have it. Also raised within the start, to undo it."""


class _NotDue(Exception):
    """The run must not start yet; also rolls the transaction back."""

    def __init__(self, seconds: int) -> None:
        super().__init__("it is not due yet")
        self.seconds = seconds


class _Mismatch(Exception):
    """The message and the row do not agree; the start is rolled back."""


#: Whether this worker has what the inputs of the run need.
Covers = Callable[[PricedRun, Mapping[str, Any]], bool]


async def start_run(
    priced: Priced, message: PackMessage, delivery: Delivery, covers: Covers = lambda _, __: True
) -> Started | Skip | PutBack | NotHere:
    """Do T4, and read the inputs in the same transaction. A run is started at most once, whatever the queue does
    (PRICED-108).

    Raises no store errors: an outage is returned as `PutBack`. If the start took effect but its answer was lost, it is
    found by its lease; if that cannot be read either, the reaper ends the run.
    """
    lease_token = priced.new_id()
    try:
        started = await priced.ledger.transact(lambda tx: _start(tx, message, lease_token, covers))
    except NotHere as error:
        return error
    except _NotDue as early:
        return PutBack(early.seconds, str(early))
    except (_Mismatch, Corrupt) as mismatch:  # PRICED-106
        log.error(
            "message does not match its run; not acknowledged",
            run_id=message.run_id,
            count=delivery.count,
            why=str(mismatch),
        )
        return PutBack(_MISMATCH_DELAY_SECONDS, str(mismatch))
    except DependencyUnavailable as error:
        log.warning("ledger did not answer a start", run_id=message.run_id, cause=error)
        found = await _found_started(priced, message.run_id, lease_token)
        if found is None:
            return PutBack(_LEDGER_DELAY_SECONDS, "the ledger did not answer", is_outage=True)
        started = found
    if isinstance(started, Skip):
        log.info("message skipped", run_id=message.run_id, tenant_id=message.tenant_id, why=started.why)
        return started
    log.info("run started", **facts.step(started.run, started.run.version - 1), count=delivery.count)
    priced.show(started.run)
    await _show_lease(priced, started.run, lease_token)
    return started


def _start(tx: LedgerTx, message: PackMessage, lease_token: str, covers: Covers) -> Started | Skip:
    """Start the run. Raises _Mismatch and NotHere, which roll the transaction back."""
    row = tx.runs.get(message.run_id)
    if row is None:
        raise _Mismatch("the ledger has no such run")
    if (row.tenant_id, row.pack_type) != (message.tenant_id, message.pack_type):
        raise _Mismatch("its tenant or pack is not the run's")
    if row.not_before is not None and (early_us := row.not_before - tx.now_us()) > 0:
        raise _NotDue(1 + early_us // SECOND_US)
    run = tx.leases.start(row.run_id, row.version, lease_token)
    if isinstance(run, Lost):
        return Skip(f"the run cannot be started at {row.at}")
    inputs = tx.runs.inputs(run.run_id)
    if inputs is None:
        raise _Mismatch("the run has no inputs")
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


async def _show_lease(priced: Priced, run: PricedRun, lease_token: str) -> None:
    """Show the lease in Redis (PRICED-113): advisory only, it never decides."""
    if priced.idempotency_locks is None:
        return
    try:
        async with asyncio.timeout(_SHOW_LEASE_SECONDS):  # the run's lease is already running
            await priced.idempotency_locks.lease(run.run_id, lease_token)
    except (DependencyUnavailable, TimeoutError) as error:
        log.warning("could not show a lease in Redis", **facts.about(run), cause=error)
