"""Create the row and the reservation of a submission, with the budget outside the ledger (contract 11.3)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from pyoco_server.actions.priced import facts
from pyoco_server.actions.priced.placed import Placed
from pyoco_server.actions.priced.same_key import SameKey, look_at_same_key
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.run import NewRun, PricedRun
from pyoco_server.core.states.priced import Actor
from pyoco_server.errors import DependencyUnavailable, KeyBusy, OverBudget
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import AlreadyReserved, Insufficient, Reserved
from pyoco_server.ports.idempotency_locks.port import IdempotencyLocks, Mapped
from pyoco_server.ports.ledger.port import Exists, LedgerTx, Lost
from pyoco_server.ports.priced import Priced

__all__ = ["place_split"]

log = get_logger(__name__)

#: PRICED-95: one call and two retries.
_RESERVE_TRIES = 3


@contextlib.asynccontextmanager
async def place_split(priced: Priced, ask: NewRun) -> AsyncIterator[Placed]:
    """Create the row, reserve, update the row; all under a lock on the key, which only saves work: the unique key of
    the row decides (D-20).

    Three round trips to the ledger, six to the hints and the budget. Raises as `submit` does. The sweeper or the orphan
    scan cleans up what is left half-done.
    """
    assert priced.idempotency_locks is not None
    lock_token = priced.new_id()
    is_locked = await _lock(priced.idempotency_locks, ask, lock_token)
    try:
        placed = await _replayed(priced, ask)
        if placed is None:
            if not is_locked:
                raise KeyBusy
            await _drop_mapping(priced.idempotency_locks, ask)
            placed = await _place(priced, priced.idempotency_locks, ask)
        yield placed
    finally:
        if is_locked:
            await _unlock(priced.idempotency_locks, ask, lock_token)


async def _replayed(priced: Priced, ask: NewRun) -> Placed | None:
    """Steps 3 and 4: the row decides (PRICED-5). Returns None if the key is unused, or its run was past retention."""
    row, now_us = await priced.ledger.read(
        lambda tx: (tx.runs.find_by_key(ask.tenant_id, ask.idempotency_key), tx.now_us())
    )
    return None if row is None else await _answer(priced, ask, row, now_us)


async def _answer(priced: Priced, ask: NewRun, row: PricedRun, now_us: int) -> Placed | None:
    """Contract 11.2. Returns None if the key is free now."""
    if look_at_same_key(row, ask, now_us) is SameKey.REPLAY:
        return Placed(row, await priced.budget.balance(ask.tenant_id), is_replayed=True)
    expired = await priced.ledger.transact(lambda tx: tx.ends.expire(row.run_id, row.version))
    if isinstance(expired, Lost):
        raise KeyBusy
    log.info("expired run released its idempotency key", **facts.step(expired, row.version))
    priced.show(expired)
    return None


async def _place(priced: Priced, idempotency_locks: IdempotencyLocks, ask: NewRun) -> Placed:
    """Steps 5 to 8."""
    made, now_us = await priced.ledger.transact(lambda tx: (tx.runs.create(ask), tx.now_us()))
    if isinstance(made, Exists):
        replayed = await _answer(priced, ask, made.run, now_us)
        if replayed is None:  # a row that old, and another submission took its key at this very moment
            raise KeyBusy
        return replayed
    answer = await _reserve(priced, made)
    if isinstance(answer, Insufficient):
        await priced.ledger.transact(lambda tx: tx.runs.delete_unreserved(made.run_id))
        raise OverBudget(answer.balance_usd_micros)
    run = await priced.ledger.transact(lambda tx: _confirm(tx, made))
    if isinstance(run, Lost):
        await _refund_reservation(priced, made)
        raise DependencyUnavailable("the submission took too long and was given up; try again")
    log.info("run accepted", **facts.step(run, made.version), **facts.money(run))
    priced.show(run)
    await _remember(idempotency_locks, ask, run)
    balance = answer.balance_usd_micros if isinstance(answer, Reserved) else await priced.budget.balance(ask.tenant_id)
    return Placed(run, balance)


async def _reserve(priced: Priced, run: PricedRun) -> Reserved | Insufficient | AlreadyReserved:
    """Reserve, and repeat the call after a lost answer: each run has only one reservation (PRICED-48)."""
    for tries_left in reversed(range(_RESERVE_TRIES)):
        try:
            return await priced.budget.reserve(run.tenant_id, run.run_id, run.reserved_usd_micros, run.created_at)
        except DependencyUnavailable as error:
            log.warning("budget did not answer a reservation", **facts.about(run), cause=error)
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _confirm(tx: LedgerTx, made: PricedRun) -> PricedRun | Lost:
    """T2, with its journal entry."""
    run = tx.runs.mark_reserved(made.run_id, made.version)
    if isinstance(run, PricedRun):
        fact = journal.reserve(run.tenant_id, run.run_id, run.reserved_usd_micros, Actor.API, run.trace_id)
        is_new = tx.journal.post(fact)
        assert is_new, "T2 is taken once"
    return run


async def _refund_reservation(priced: Priced, run: PricedRun) -> None:
    """PRICED-96. If this fails, the orphan scan finds the reservation."""
    try:
        await priced.budget.refund_full(run.tenant_id, run.run_id, Closing(actor=Actor.API, trace_id=run.trace_id))
    except DependencyUnavailable as error:
        log.warning("reservation of an abandoned run stays for a while", **facts.about(run), cause=error)


async def _drop_mapping(idempotency_locks: IdempotencyLocks, ask: NewRun) -> None:
    """Delete a mapping without a row (PRICED-93)."""
    try:
        if await idempotency_locks.mapped(ask.tenant_id, ask.idempotency_key) is not None:
            await idempotency_locks.forget(ask.tenant_id, ask.idempotency_key)
    except DependencyUnavailable as error:
        log.warning("could not read the mapping of a key", tenant_id=ask.tenant_id, cause=error)


async def _remember(idempotency_locks: IdempotencyLocks, ask: NewRun, run: PricedRun) -> None:
    try:
        mapped = Mapped(run.run_id, run.payload_hash)
        await idempotency_locks.remember(ask.tenant_id, ask.idempotency_key, mapped, run.created_at)
    except DependencyUnavailable as error:
        log.warning("could not write the mapping of a key", **facts.about(run), cause=error)


async def _lock(idempotency_locks: IdempotencyLocks, ask: NewRun, lock_token: str) -> bool:
    try:
        return await idempotency_locks.lock(ask.tenant_id, ask.idempotency_key, lock_token)
    except DependencyUnavailable:
        await _unlock(idempotency_locks, ask, lock_token)  # the lock may have been acquired
        raise


async def _unlock(idempotency_locks: IdempotencyLocks, ask: NewRun, lock_token: str) -> None:
    try:
        await idempotency_locks.unlock(ask.tenant_id, ask.idempotency_key, lock_token)
    except DependencyUnavailable as error:  # the lock expires by itself
        log.warning("could not release the lock on a key", tenant_id=ask.tenant_id, cause=error)
