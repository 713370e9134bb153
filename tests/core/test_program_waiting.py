"""Why a job has not begun: the one thing that has to change first, and its sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyoco_server.core.programs.waiting import ProgramQueueing, tell_program, why_program
from pyoco_server.core.states import RunState
from pyoco_server.core.waiting import STARTING_SECONDS_MAX, WaitReason, waits
from support.grid.shown_programs import a_program

FREE = ProgramQueueing(
    exec_name="calcA",
    client_id="anna",
    waited_seconds=1.0,
    retry_seconds=0.0,
    ahead=0,
    ahead_capped=False,
    cap=4,
    inflight=1,
    workers_alive=2,
    workers_gone=0,
    places=8,
    places_busy=1,
    running=1,
)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (FREE, WaitReason.STARTING),
        (replace(FREE, waited_seconds=STARTING_SECONDS_MAX + 1), WaitReason.UNCLEAR),
        (replace(FREE, ahead=1), WaitReason.QUEUE),
        (replace(FREE, places_busy=8, ahead=3), WaitReason.BUSY),
        (replace(FREE, inflight=4, places_busy=8, ahead=3), WaitReason.AT_CAP),
        (replace(FREE, inflight=9), WaitReason.AT_CAP),
        (replace(FREE, workers_alive=0, workers_gone=3, inflight=4), WaitReason.WORKERS_DISCONNECTED),
        (replace(FREE, workers_alive=0), WaitReason.NO_WORKER),
        (replace(FREE, workers_alive=0, retry_seconds=0.1), WaitReason.RETRY),
        (replace(FREE, retry_seconds=-3.0), WaitReason.STARTING),
    ],
)
def test_the_reason_is_the_one_thing_that_has_to_change_first(facts: ProgramQueueing, reason: WaitReason) -> None:
    """GRID-61, GRID-72, GRID-79"""
    assert why_program(facts) is reason


@pytest.mark.parametrize("reason", sorted(set(WaitReason) - {WaitReason.DISPUTED, WaitReason.SCHEDULED}))
def test_every_reason_has_a_sentence_in_both_languages(reason: WaitReason) -> None:
    facts = replace(
        FREE, ahead=61, ahead_capped=True, inflight=67, cap=71, places=73, places_busy=79, running=31, retry_seconds=0.2
    )
    english, japanese = tell_program(reason, facts)
    assert english.isascii()
    assert english.endswith((".", "calcA"))
    assert not japanese.isascii()
    told = {
        WaitReason.AT_CAP: ("In flight: 67 of 71. Ahead: 61 or more.", "67/71"),
        WaitReason.BUSY: ("Running: 31 of 73.", "31/73"),
        WaitReason.RETRY: ("Seconds until then: 1.", "1"),
        WaitReason.NO_WORKER: ("pyoco-grid nworker job.assign.calcA",) * 2,
        WaitReason.QUEUE: ("Ahead: 61 or more.", "61件以上"),
    }
    for text, part in zip((english, japanese), told.get(reason, ("calcA", "calcA")), strict=True):
        assert part in text


@pytest.mark.parametrize("status", list(RunState))
def test_a_job_waits_while_it_is_pending_whoever_had_it_before(status: RunState) -> None:
    assert waits(a_program(status=status, worker_id="worker-1")) == (status is RunState.PENDING)
