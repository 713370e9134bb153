"""A priced run among all others: what is shown of each state, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.core.change import Doer, DoerKind, LastChange, What, last_change
from pyoco_server.core.priced.projection import TAG, is_over, line_of, project, version_of
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.run import ERROR_LENGTH_MAX, PACK
from pyoco_server.core.snapshot import encode, read_snapshot, to_snapshot
from pyoco_server.core.states import RunState
from pyoco_server.core.states.priced import Actor, Money, Stage, Status
from pyoco_server.core.waiting import waits
from support.priced.shown_packs import NOW_US, a_pack, a_row, completed, disputed, expired, failed, started

NOW = NOW_US / 1_000_000
QUEUED = a_row()
BEGUN = started(QUEUED)


@pytest.mark.parametrize(
    ("row", "state", "money"),
    [
        (QUEUED, RunState.PENDING, "RESERVED"),
        (BEGUN, RunState.RUNNING, "RESERVED"),
        (disputed(BEGUN), RunState.RUNNING, "DISPUTED"),
        (completed(BEGUN), RunState.COMPLETED, "SETTLED"),
        (failed(BEGUN), RunState.FAILED, "REFUNDED"),
        (replace(QUEUED, money=Money.NONE, stage=Stage.CLAIMED), RunState.PENDING, "NONE"),
    ],
)
def test_each_state_is_shown_as_one_that_every_list_knows(row: PricedRun, state: RunState, money: str) -> None:
    shown = project(row)
    assert shown is not None
    assert (shown.kind, shown.tag, shown.status) == (PACK, TAG, state)
    assert (shown.extra["priced_status"], shown.extra["money_state"]) == (row.status, money)
    assert (shown.tenant_id, shown.api_key_id, shown.flow_name) == ("acme", "key-1", "decision")
    assert (shown.end_time is None) == (state in (RunState.PENDING, RunState.RUNNING))
    assert version_of(shown) == row.version


@pytest.mark.parametrize("status", Status)
def test_every_status_is_shown_or_over(status: Status) -> None:
    row = replace(QUEUED, status=status)
    assert (project(row) is None) == is_over(row) == (status is Status.EXPIRED)


def test_a_submit_that_may_yet_be_taken_back_is_not_shown() -> None:
    """T3 deletes the row: nobody would ever take its record away."""
    row = replace(QUEUED, money=Money.NONE, version=0)
    assert project(row) is None
    assert not is_over(row)


def test_amounts_are_whole_micros_and_texts_beside_them() -> None:
    """PRICED-75: nothing is used until it has ended."""
    assert a_pack(BEGUN).extra["cost"] == {
        "reserved_usd_micros": 1_234_500,
        "used_usd_micros": 0,
        "minimum_fee_usd_micros": 5_000,
        "reserved_usd": "1.2345",
        "used_usd": "0.0000",
        "minimum_fee_usd": "0.0050",
    }
    ended = a_pack(completed(BEGUN)).extra
    assert (ended["cost"]["used_usd_micros"], ended["cost"]["used_usd"]) == (700_050, "0.7001")
    assert (ended["tokens_consumed"], ended["timebox_sec"]) == (42, 90)


def test_what_is_shown_survives_its_stored_form() -> None:
    for row in (QUEUED, BEGUN, completed(BEGUN), failed(QUEUED, Actor.SWEEPER)):
        shown = a_pack(row)
        assert read_snapshot(encode(to_snapshot(shown))) == shown


def test_no_input_and_no_token_is_shown() -> None:
    row = replace(BEGUN, artifacts={"in": "secret"}, lease_token="secret", finalize_token="secret")
    shown = encode(to_snapshot(a_pack(row)))
    assert b"secret" not in shown
    assert b"a key of 8" not in shown


def test_a_long_detail_is_cut() -> None:
    shown = a_pack(failed(BEGUN, error_detail="x" * 10_000))
    assert shown.error is not None
    assert (len(shown.error), shown.error[:24]) == (ERROR_LENGTH_MAX, "QUEUE_ENQUEUE_FAILED: xx")


@pytest.mark.parametrize(
    ("row", "change"),
    [
        (QUEUED, LastChange(What.SUBMITTED, NOW, Doer(DoerKind.API_KEY, "key-1"))),
        (BEGUN, LastChange(What.STARTED, NOW + 1, Doer(DoerKind.WORKER))),
        (completed(BEGUN), LastChange(What.COMPLETED, NOW + 2, Doer(DoerKind.WORKER))),
        (failed(BEGUN), LastChange(What.FAILED, NOW + 2, Doer(DoerKind.WORKER))),
        (failed(BEGUN, Actor.REAPER), LastChange(What.FAILED, NOW + 2, Doer(DoerKind.KEEPER))),
        (failed(QUEUED, Actor.SWEEPER), LastChange(What.FAILED, NOW + 1, Doer(DoerKind.KEEPER))),
        (failed(BEGUN, Actor.RECONCILE), LastChange(What.FAILED, NOW + 2, Doer(DoerKind.KEEPER))),
        (failed(QUEUED, Actor.API), LastChange(What.FAILED, NOW + 1, Doer(DoerKind.GATEWAY))),
        (failed(BEGUN, Actor.OPERATOR), LastChange(What.FAILED, NOW + 2, Doer(DoerKind.OPERATOR))),
    ],
)
def test_who_did_the_last_thing_is_told(row: PricedRun, change: LastChange) -> None:
    """A pack is never handed back, though its record names no worker."""
    assert last_change(a_pack(row)) == change


def test_a_pack_waits_for_a_worker_or_for_an_operator() -> None:
    rows = (QUEUED, BEGUN, disputed(BEGUN), completed(BEGUN))
    assert [waits(a_pack(row)) for row in rows] == [True, False, True, False]


def test_a_line_has_what_a_list_shows() -> None:
    shown = a_pack(failed(BEGUN))
    assert line_of(shown) == {
        "pack_type": "decision",
        "priced_status": "FAILED",
        "money_state": "REFUNDED",
        "reason_code": "QUEUE_ENQUEUE_FAILED",
        "cost": shown.extra["cost"],
    }
    assert "reason_code" not in line_of(a_pack(BEGUN))


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"cost": [1], "money_state": 7, "pack_type": None, "reason_code": {"a": 1}},
        {"cost": {"reserved_usd_micros": 1.5, "used_usd_micros": True, "used_usd": "x" * 65}},
        {"cost": {"reserved_usd_micros": 10**30}, "pack_type": "\0", "money_state": "\ud800", "priced_status": "日本"},
    ],
)
def test_a_strangers_record_makes_no_line_long_or_odd(strange: dict[str, Any]) -> None:
    line = line_of(replace(a_pack(), extra=strange))
    assert line in ({}, {"cost": {}})
    assert version_of(replace(a_pack(), extra=strange)) == -1


def test_an_expired_row_is_over() -> None:
    assert is_over(expired(completed(BEGUN)))
