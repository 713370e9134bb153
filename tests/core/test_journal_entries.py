"""What each money fact writes: the contract's table, and sums that are always zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.journal import (
    CORRECTION,
    FUNDING,
    REVENUE,
    Closing,
    JournalEntry,
    Kind,
    Txn,
    available,
    correction,
    held,
    refund,
    reserve,
    settle,
    topup,
)
from pyoco_server.core.states.priced import Actor

BY = Closing(actor=Actor.WORKER, finalize_token="f", trace_id="t_1")
AVAILABLE, HELD = "tenant:anna:available", "tenant:anna:held"
AMOUNTS = st.integers(1, MAX_AMOUNT_USD_MICROS)

TABLE = [
    (topup("anna", "r", 7), "topup:r", Kind.TOPUP, {FUNDING: -7, AVAILABLE: 7}),
    (reserve("anna", "x", 7, Actor.API), "reserve:x", Kind.RESERVE, {AVAILABLE: -7, HELD: 7}),
    (settle("anna", "x", 7, 3, BY), "close:x", Kind.SETTLE, {HELD: -7, REVENUE: 3, AVAILABLE: 4}),
    (settle("anna", "x", 7, 7, BY), "close:x", Kind.SETTLE, {HELD: -7, REVENUE: 7}),
    (settle("anna", "x", 7, 0, BY), "close:x", Kind.SETTLE, {HELD: -7, AVAILABLE: 7}),
    (refund("anna", "x", 7, BY), "close:x", Kind.REFUND, {HELD: -7, AVAILABLE: 7}),
    (correction("anna", "r", AVAILABLE, 7, "why"), "correct:r", Kind.CORRECTION, {AVAILABLE: 7, CORRECTION: -7}),
    (correction("anna", "r", HELD, -7, "why"), "correct:r", Kind.CORRECTION, {HELD: -7, CORRECTION: 7}),
]


@pytest.mark.parametrize(("txn", "op_key", "kind", "legs"), TABLE, ids=[each[0].kind for each in TABLE])
def test_a_fact_writes_what_the_table_says(txn: Txn, op_key: str, kind: Kind, legs: dict[str, int]) -> None:
    """PRICED-55, PRICED-57: zero legs are left out, and a run's two ways to close share one name"""
    assert (txn.op_key, txn.kind, txn.tenant_id) == (op_key, kind, "anna")
    assert {entry.account: entry.amount_usd_micros for entry in txn.entries} == legs
    assert len(txn.entries) == len(legs)


def test_a_closing_says_whose_it_was() -> None:
    for txn in (settle("anna", "x", 7, 3, BY), refund("anna", "x", 7, BY)):
        assert (txn.actor, txn.finalize_token, txn.trace_id, txn.run_id) == (Actor.WORKER, "f", "t_1", "x")


@given(AMOUNTS, st.integers(0, MAX_AMOUNT_USD_MICROS))
def test_every_life_of_a_reservation_leaves_nothing_held(reserved: int, asked: int) -> None:
    """PRICED-16, PRICED-55"""
    charge = min(asked, reserved)
    for closing, kept in ((settle("anna", "x", reserved, charge, BY), charge), (refund("anna", "x", reserved, BY), 0)):
        entries = [*reserve("anna", "x", reserved, Actor.API).entries, *closing.entries]
        assert sum(entry.amount_usd_micros for entry in entries) == 0
        assert sum(entry.amount_usd_micros for entry in entries if entry.account == held("anna")) == 0
        assert sum(entry.amount_usd_micros for entry in entries if entry.account == available("anna")) == -kept


@pytest.mark.parametrize(
    "entries",
    [
        (JournalEntry(AVAILABLE, 1),),
        (JournalEntry(AVAILABLE, 1), JournalEntry(HELD, -2)),
        (JournalEntry(AVAILABLE, 0), JournalEntry(HELD, 0)),
    ],
)
def test_a_fact_that_does_not_add_up_cannot_be_made(entries: tuple[JournalEntry, ...]) -> None:
    """PRICED-55"""
    with pytest.raises(AssertionError):
        Txn(op_key="x", kind=Kind.TOPUP, tenant_id="anna", entries=entries, actor=Actor.OPERATOR)


def test_a_correction_has_a_reason_and_stays_with_the_tenant() -> None:
    with pytest.raises(AssertionError):
        correction("anna", "r", AVAILABLE, 1, "")
    with pytest.raises(AssertionError):
        correction("anna", "r", available("bert"), 1, "why")


def test_a_charge_is_within_its_reservation() -> None:
    """PRICED-8"""
    for charge in (-1, 8):
        with pytest.raises(AssertionError):
            settle("anna", "x", 7, charge, BY)
