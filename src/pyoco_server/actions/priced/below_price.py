"""Refuse a submission whose reservation is below the price computed from its inputs (SAFE-1)."""

from __future__ import annotations

from pyoco_server.actions.priced.placed import Placed
from pyoco_server.actions.priced.same_key import SameKey, look_at_same_key
from pyoco_server.core.packs.prices import RESERVATION_MIN_USD_MICROS
from pyoco_server.core.priced.money import usd_up
from pyoco_server.core.priced.run import NewRun
from pyoco_server.errors import BelowPrice, KeyReused, PyocoError
from pyoco_server.ports.priced import Priced

__all__ = ["accepted_before", "below_price"]


def below_price(priced: Priced, ask: NewRun) -> BelowPrice | None:
    """Return the error. Returns None if the reservation covers the price."""
    least = _least(priced, ask)
    return BelowPrice(usd_up(least)) if ask.reserved_usd_micros < least else None


async def accepted_before(priced: Priced, ask: NewRun, refused: PyocoError) -> Placed:
    """Return the run of the same submission if it was accepted earlier: at another price, while a worker could execute
    it, or by a version without these rules.

    One read of the ledger, and one of the balance if there is such a run; nothing is written. Raises `refused` if there
    is no such run, and the key stays free. Raises KeyBusy, DependencyUnavailable.
    """
    row, now_us = await priced.ledger.read(
        lambda tx: (tx.runs.find_by_key(ask.tenant_id, ask.idempotency_key), tx.now_us())
    )
    if row is None:
        raise refused
    try:
        if look_at_same_key(row, ask, now_us) is SameKey.PAST:
            raise refused
    except KeyReused:  # an error in the submission itself takes precedence over a reused key (PRICED-65)
        raise refused from None
    return Placed(row, await priced.budget.balance(ask.tenant_id), is_replayed=True)


def _least(priced: Priced, ask: NewRun) -> int:
    spec = priced.packs.get(ask.pack_type)
    if spec is None:  # the doors refuse packs that are not offered
        return RESERVATION_MIN_USD_MICROS
    return spec.least_reservation(ask.inputs, priced.config.pack.prices)
