"""The steps of a priced run, against the contract's table."""

from __future__ import annotations

import pytest

from pyoco_server.core.states.priced import ENDS, STEPS, At, Basis, Money, Stage, StateChange, Status, Step

#: Contract 5.2, written down a second time: where each step may be taken, and where it leads.
TABLE: dict[str, dict[str, set[str]]] = {
    "T2": {"QUEUED/NONE/OPEN": {"QUEUED/RESERVED/OPEN"}},
    "T3": {"QUEUED/NONE/OPEN": set()},
    "T4": {"QUEUED/RESERVED/OPEN": {"PROCESSING/RESERVED/OPEN"}},
    "T5": {"PROCESSING/RESERVED/OPEN": {"PROCESSING/RESERVED/OPEN"}},
    "T6": {"PROCESSING/RESERVED/OPEN": {"PROCESSING/RESERVED/CLAIMED"}},
    "T7": {"PROCESSING/RESERVED/CLAIMED": {"COMPLETED/SETTLED/COMMITTED"}},
    "T8": {"PROCESSING/RESERVED/CLAIMED": {"FAILED/SETTLED/COMMITTED"}},
    "T9": {"PROCESSING/RESERVED/OPEN": {"PROCESSING/RESERVED/CLAIMED"}},
    "T10": {"PROCESSING/RESERVED/CLAIMED": {"FAILED/SETTLED/COMMITTED"}},
    "T11": {"QUEUED/RESERVED/OPEN": {"QUEUED/RESERVED/CLAIMED"}},
    "T12": {"QUEUED/NONE/OPEN": {"QUEUED/NONE/CLAIMED"}},
    "T13": {"QUEUED/RESERVED/OPEN": {"QUEUED/RESERVED/CLAIMED"}},
    "T14": {
        "QUEUED/NONE/CLAIMED": {"FAILED/REFUNDED/COMMITTED"},
        "QUEUED/RESERVED/CLAIMED": {"FAILED/REFUNDED/COMMITTED"},
        "PROCESSING/RESERVED/CLAIMED": {"FAILED/REFUNDED/COMMITTED"},
    },
    "T15": {
        "QUEUED/NONE/CLAIMED": {"QUEUED/NONE/CLAIMED"},
        "QUEUED/RESERVED/CLAIMED": {"QUEUED/RESERVED/CLAIMED"},
        "PROCESSING/RESERVED/CLAIMED": {"PROCESSING/RESERVED/CLAIMED"},
    },
    "T16": {
        "COMPLETED/SETTLED/COMMITTED": {"EXPIRED/SETTLED/COMMITTED"},
        "FAILED/SETTLED/COMMITTED": {"EXPIRED/SETTLED/COMMITTED"},
        "FAILED/REFUNDED/COMMITTED": {"EXPIRED/REFUNDED/COMMITTED"},
    },
    "T17": {
        "QUEUED/NONE/CLAIMED": {"QUEUED/DISPUTED/CLAIMED"},
        "QUEUED/RESERVED/CLAIMED": {"QUEUED/DISPUTED/CLAIMED"},
        "PROCESSING/RESERVED/CLAIMED": {"PROCESSING/DISPUTED/CLAIMED"},
    },
    "T18": {
        place: {"COMPLETED/SETTLED/COMMITTED", "FAILED/SETTLED/COMMITTED", "FAILED/REFUNDED/COMMITTED"}
        for place in ("QUEUED/DISPUTED/CLAIMED", "PROCESSING/DISPUTED/CLAIMED")
    },
    "T19": {
        "QUEUED/NONE/CLAIMED": {"QUEUED/NONE/CLAIMED"},
        "QUEUED/RESERVED/CLAIMED": {"QUEUED/RESERVED/CLAIMED"},
        "PROCESSING/RESERVED/CLAIMED": {"PROCESSING/RESERVED/CLAIMED"},
    },
    "T20": {"QUEUED/RESERVED/OPEN": {"QUEUED/RESERVED/CLAIMED"}},
}

BEGINNING = At(Status.QUEUED, Money.NONE, Stage.OPEN)
ARRIVALS = [(name, source, to) for name, step in STEPS.items() for source, to in step.arrivals()]


def reachable() -> set[At]:
    found, new = set(), {BEGINNING}
    while new:
        found |= new
        new = {to for _, source, to in ARRIVALS if source in found} - found
    return found


@pytest.mark.parametrize("name", TABLE)
def test_a_step_leads_where_the_contract_says(name: str) -> None:
    """PRICED-6"""
    step = STEPS[name]
    assert {str(source) for source in step.sources} == set(TABLE[name])
    for source in step.sources:
        assert {str(change.of(source)) for change in step.changes} == TABLE[name][str(source)]


def test_there_is_no_other_step() -> None:
    """PRICED-6"""
    assert set(STEPS) == set(TABLE)


def test_no_step_leads_back_to_the_queue() -> None:
    """PRICED-6: a run is executed at most once"""
    assert not [name for name, source, to in ARRIVALS if to.status is Status.QUEUED and source.status is not to.status]


def test_only_the_archive_leads_out_of_an_end_and_it_moves_no_money() -> None:
    """PRICED-7"""
    leaving = [(name, source, to) for name, source, to in ARRIVALS if source.status in ENDS]
    assert {name for name, _, _ in leaving} == {"T16"}
    assert all(source.money is to.money and to.status is Status.EXPIRED for _, source, to in leaving)


def test_nothing_leads_out_of_what_has_expired() -> None:
    """PRICED-7"""
    assert not [name for name, source, _ in ARRIVALS if source.status is Status.EXPIRED]


def test_a_run_that_has_ended_has_its_money_closed_and_its_end_committed() -> None:
    """PRICED-9, PRICED-10"""
    assert {Status.COMPLETED, Status.FAILED, Status.EXPIRED} == ENDS
    for at in reachable():
        assert (at.status in ENDS) == (at.stage is Stage.COMMITTED)
        assert at.status not in ENDS or at.money in (Money.SETTLED, Money.REFUNDED)


def test_one_step_refunds_what_was_not_started_or_could_not_be_executed() -> None:
    """PRICED-11, SAFE-3: but for an operator's word"""
    refunding = {name for name, source, to in ARRIVALS if to.money is Money.REFUNDED is not source.money}
    assert refunding == {"T14", "T18"}
    started = {str(source) for source in STEPS["T14"].sources if source.status is Status.PROCESSING}
    assert started == {"PROCESSING/RESERVED/CLAIMED"}


def test_only_an_operator_leads_out_of_a_dispute() -> None:
    """PRICED-6"""
    assert {name for name, source, _ in ARRIVALS if source.money is Money.DISPUTED} == {"T18"}


def test_every_place_a_step_names_can_be_reached() -> None:
    assert {source for step in STEPS.values() for source in step.sources} <= reachable()


def test_every_place_that_is_no_end_has_a_way_to_one() -> None:
    """PRICED-6: nothing is stuck for ever"""
    ways: dict[At, set[At]] = {}
    for _, source, to in ARRIVALS:
        ways.setdefault(source, set()).add(to)
    for at in reachable():
        seen = {at}
        for _ in STEPS:
            seen |= {to for place in list(seen) for to in ways.get(place, ())}
        assert any(place.status in ENDS for place in seen), at


def test_every_step_counts_but_a_heartbeat_and_a_row_that_goes() -> None:
    """PRICED-15"""
    assert {name for name, step in STEPS.items() if not step.counts} == {"T3", "T5"}


def test_a_right_to_claim_is_a_step_that_claims() -> None:
    """PRICED-17"""
    for basis in Basis:
        assert STEPS[basis.value].changes == (StateChange(stage=Stage.CLAIMED),)
        assert all(source.stage is Stage.OPEN for source in STEPS[basis.value].sources)


def test_a_change_keeps_what_it_does_not_say() -> None:
    assert StateChange(money=Money.RESERVED).of(BEGINNING) == At(Status.QUEUED, Money.RESERVED, Stage.OPEN)
    assert list(Step(frozenset({BEGINNING}), (StateChange(),)).arrivals()) == [(BEGINNING, BEGINNING)]
