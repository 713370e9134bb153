"""What last happened to a run, and who did it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from pyoco_server.core.change import Doer, DoerKind, LastChange, What, last_change
from pyoco_server.core.flow_moves import accept, ask_cancel, beat, claim, conclude, put_back
from pyoco_server.core.outcome import Cancelled, Completed, Failed, Progress
from pyoco_server.core.run import KEEPER, Caller, Owner, Run, Submission
from support.earlier_versions import left_running

ASK = Submission(flow_name="f", tag="cpu", tags=(), params={})
RUN_ID = "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11"
OPEN = accept(ASK, Caller(), RUN_ID, 10.0)
KEYED = accept(ASK, Caller("acme", "key-1"), RUN_ID, 10.0)
BEGAN = claim(OPEN, Owner("anna", "i"), "a1", 11.0)
BACK = put_back(BEGAN, 13.0)
ANNA = Doer(DoerKind.WORKER, "anna")
BERT = Doer(DoerKind.WORKER, "bert")
NOBODY = Doer(DoerKind.WORKER)
THE_KEEPER = Doer(DoerKind.KEEPER)

CHANGES: list[tuple[str, Run, LastChange]] = [
    ("submitted", OPEN, LastChange(What.SUBMITTED, 10.0, Doer(DoerKind.CALLER))),
    ("submitted with a key", KEYED, LastChange(What.SUBMITTED, 10.0, Doer(DoerKind.API_KEY, "key-1"))),
    ("started", BEGAN, LastChange(What.STARTED, 11.0, ANNA)),
    (
        "a heartbeat changes nothing",
        beat(BEGAN, Progress({"a": "RUNNING"}), 12.0),
        LastChange(What.STARTED, 11.0, ANNA),
    ),
    ("handed back", BACK, LastChange(What.HANDED_BACK, 13.0, ANNA)),
    ("put back by an earlier version", left_running(BEGAN, 13.0), LastChange(What.HANDED_BACK, 13.0, ANNA)),
    ("taken again", claim(BACK, Owner("bert", "i"), "a2", 14.0), LastChange(What.STARTED, 14.0, BERT)),
    ("asked", ask_cancel(BEGAN, None, 15.0), LastChange(What.CANCEL_REQUESTED, 15.0, Doer(DoerKind.CALLER))),
    (
        "asked with a key, and a sign of life",
        beat(ask_cancel(BEGAN, None, 15.0, "key-2"), Progress(), 16.0),
        LastChange(What.CANCEL_REQUESTED, 15.0, Doer(DoerKind.API_KEY, "key-2")),
    ),
    ("completed", conclude(BEGAN, Completed(), 20.0), LastChange(What.COMPLETED, 20.0, ANNA)),
    ("failed", conclude(BEGAN, Failed(message="x"), 20.0), LastChange(What.FAILED, 20.0, ANNA)),
    (
        "failed by a keeper",
        conclude(BEGAN, Failed(message="x"), 20.0, KEEPER),
        LastChange(What.FAILED, 20.0, THE_KEEPER),
    ),
    ("cancelled", conclude(ask_cancel(BEGAN, None, 15.0), Cancelled(), 20.0), LastChange(What.CANCELLED, 20.0, ANNA)),
    (
        "cancelled by a keeper",
        conclude(ask_cancel(OPEN, None, 15.0), Cancelled(), 20.0, KEEPER),
        LastChange(What.CANCELLED, 20.0, THE_KEEPER),
    ),
    (
        "cancelled before it began, by whoever got its job",
        conclude(ask_cancel(OPEN, None, 15.0), Cancelled(), 20.0),
        LastChange(What.CANCELLED, 20.0, NOBODY),
    ),
]


@pytest.mark.parametrize(("run", "change"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_the_last_change_is_told_from_the_record(run: Run, change: LastChange) -> None:
    assert last_change(run) == change


def test_a_change_reads_as_the_wire_has_it() -> None:
    assert asdict(last_change(KEYED)) == {"what": "submitted", "at": 10.0, "by": {"kind": "api_key", "id": "key-1"}}


@pytest.mark.parametrize(
    "past",
    [
        (),
        ({},),
        *(
            ({"attempt": 1, "why": "handed_back"} | member,)
            for member in (
                {"worker_id": 5, "ended_at": "now"},
                {"ended_at": 10**400},
                {"ended_at": float("nan")},
            )
        ),
        # A worker of an older version gave this attempt back: what is told of another one is not about it.
        ({"attempt": 1, "worker_id": "bert", "ended_at": 5.0, "why": "lost"},),
        ({"attempt": 0, "worker_id": "bert", "ended_at": 5.0, "why": "handed_back"},),
    ],
    ids=str,
)
def test_a_hand_back_is_told_whatever_a_stranger_wrote_of_it(past: tuple[dict[str, Any], ...]) -> None:
    """FLOW-551: a record of an older version says nothing of it."""
    assert last_change(replace(BACK, earlier_attempts=past)) == LastChange(What.HANDED_BACK, 13.0, NOBODY)
