"""Why a run waits: a table, and sentences in two languages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.flow_moves import ask_cancel, claim, conclude, put_back
from pyoco_server.core.outcome import Cancelled
from pyoco_server.core.run import Owner, Run
from pyoco_server.core.waiting import (
    STARTING_SECONDS_MAX,
    PackQueueing,
    Queueing,
    WaitReason,
    tell,
    tell_pack,
    waits,
    why,
    why_pack,
)
from support.earlier_versions import left_running

ALONE = Queueing(
    tag="gpu",
    waited_seconds=1.0,
    ahead=0,
    ahead_capped=False,
    workers_alive=0,
    workers_gone=0,
    slots=0,
    slots_busy=0,
)
STAFFED = replace(ALONE, workers_alive=2, slots=4)
LONG = STARTING_SECONDS_MAX + 0.1
PENDING = Run(run_id="r", flow_name="f", tag="gpu", submitted_at=1.0, updated_at=1.0, heartbeat_at=1.0)
RUNNING = claim(PENDING, Owner("anna", "a1"), "attempt-1", 2.0)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (ALONE, WaitReason.NO_WORKER),
        (replace(ALONE, ahead=9, waited_seconds=LONG), WaitReason.NO_WORKER),
        (replace(ALONE, workers_gone=1), WaitReason.WORKERS_DISCONNECTED),
        (replace(STAFFED, workers_gone=3), WaitReason.STARTING),
        (STAFFED, WaitReason.STARTING),
        (replace(STAFFED, slots_busy=3), WaitReason.STARTING),
        (replace(STAFFED, slots_busy=4), WaitReason.BUSY),
        (replace(STAFFED, slots_busy=4, waited_seconds=LONG), WaitReason.BUSY),
        (replace(STAFFED, slots_busy=4, ahead=1), WaitReason.QUEUE),
        (replace(STAFFED, slots_busy=3, ahead=1), WaitReason.QUEUE),
        (replace(STAFFED, slots_busy=2, ahead=1), WaitReason.STARTING),
        (replace(STAFFED, ahead=4), WaitReason.QUEUE),
        (replace(STAFFED, ahead=3), WaitReason.STARTING),
        (replace(STAFFED, waited_seconds=STARTING_SECONDS_MAX), WaitReason.STARTING),
        (replace(STAFFED, waited_seconds=LONG), WaitReason.UNCLEAR),
        (replace(STAFFED, waited_seconds=-5.0), WaitReason.STARTING),
        (replace(STAFFED, slots=0), WaitReason.BUSY),
    ],
)
def test_the_reason_is_the_one_thing_that_has_to_change_first(facts: Queueing, reason: WaitReason) -> None:
    assert why(facts) is reason


def test_every_reason_says_what_it_was_concluded_from_in_both_languages() -> None:
    facts = replace(STAFFED, workers_gone=5, ahead=61, slots=71, slots_busy=67, waited_seconds=83.9)
    # Of packs, of programs, of delayed runs.
    elsewhere = {WaitReason.DISPUTED, WaitReason.AT_CAP, WaitReason.RETRY, WaitReason.SCHEDULED}
    assert {reason: tell(reason, facts) for reason in WaitReason if reason not in elsewhere} == {
        "no_worker": (
            "No worker serves tag gpu. Start one with: pyoco-worker --flow-resolver MODULE:CALLABLE --tags gpu",
            "タグ gpu を担当するworkerがいません。次のコマンドで起動してください: "
            "pyoco-worker --flow-resolver MODULE:CALLABLE --tags gpu",
        ),
        "workers_disconnected": (
            "No worker that serves tag gpu is there now. Stopped or silent: 5.",
            "タグ gpu を担当するworkerは現在いません。停止または応答なし: 5",
        ),
        "busy": (
            "The run is next for tag gpu, and every slot is busy. Busy slots: 67 of 71.",
            "タグ gpu の次の順番ですが、空きスロットがありません。使用中のスロット: 67/71",
        ),
        "queue": (
            "Other runs with tag gpu come first. Ahead: 61. Busy slots: 67 of 71.",
            "タグ gpu の他のrunが先に待っています。先行: 61件、使用中のスロット: 67/71",
        ),
        "starting": (
            "A worker for tag gpu has a free slot. The run should begin at any moment.",
            "タグ gpu のworkerに空きスロットがあります。まもなく開始される見込みです",
        ),
        "unclear": (
            "Workers for tag gpu have free slots, and still none has taken the run in 83 s. Look at their logs.",
            "タグ gpu のworkerに空きはありますが、83秒たっても開始されていません。workerのログを確認してください",
        ),
    }


def test_a_place_too_far_back_to_be_counted_is_told_as_such() -> None:
    english, japanese = tell(WaitReason.QUEUE, replace(STAFFED, ahead=1_000, ahead_capped=True))
    assert "Ahead: 1000 or more." in english
    assert "先行: 1000件以上" in japanese


@given(st.text(max_size=20))
def test_a_tag_of_any_letters_is_told_as_it_is(tag: str) -> None:
    """A stranger's record may hold one: braces are no places to fill, and the command can be pasted."""
    english, _ = tell(WaitReason.NO_WORKER, replace(ALONE, tag=tag))
    assert english.startswith(f"No worker serves tag {tag}. ")


def test_the_command_to_paste_is_one_word() -> None:
    english, _ = tell(WaitReason.NO_WORKER, replace(ALONE, tag="a; rm -rf {x}"))
    assert english.endswith("pyoco-worker --flow-resolver MODULE:CALLABLE --tags 'a; rm -rf {x}'")


def test_a_run_waits_while_nobody_has_it_and_it_has_not_ended() -> None:
    cancelled_early = ask_cancel(PENDING, None, 3.0)
    table = [
        (PENDING, True),
        (RUNNING, False),
        (put_back(RUNNING, 3.0), True),
        (left_running(RUNNING, 3.0), True),
        (cancelled_early, False),
        (ask_cancel(RUNNING, None, 3.0), False),
        (conclude(cancelled_early, Cancelled(), 4.0), False),
    ]
    assert [waits(run) for run, _ in table] == [waiting for _, waiting in table]


def test_a_pack_that_every_worker_lacks_something_for_waits_for_that() -> None:
    """SAFE-3"""
    facts = PackQueueing(
        pack_type="ocr",
        waited_seconds=1.0,
        ahead=0,
        ahead_capped=False,
        workers_alive=2,
        workers_gone=0,
        workers_serving=0,
        missing=("no engine", "no language data"),
    )
    assert why_pack(facts) is WaitReason.NO_WORKER
    english, japanese = tell_pack(WaitReason.NO_WORKER, facts)
    assert "Missing: no engine; no language data." in english
    assert "no engine; no language data" in japanese
