"""What a run keeps of its history: the attempts before this one, who wanted it stopped, who ended it; and its graph."""

from __future__ import annotations

from dataclasses import replace

from pyoco_server.core.flow_moves import accept, ask_cancel, beat, claim, conclude, put_back
from pyoco_server.core.outcome import Cancelled, Completed, Failed, Progress
from pyoco_server.core.run import EARLIER_ATTEMPTS_MAX, KEEPER, Caller, Owner, Run, Submission
from pyoco_server.core.snapshot import to_snapshot

ANNA, BERT = Owner("anna", "i-1"), Owner("bert", "i-2")
GRAPH = {"a": (), "b": ("a",)}
RUN = accept(
    Submission(flow_name="f", tag="cpu", tags=(), params={}), Caller(), "0b0e9a52-6b1f-4c3c-9d0a-3c1a7d2f9a11", 10.0
)


def began(progress: Progress | None = None) -> Run:
    return beat(claim(RUN, ANNA, "a1", 11.0), progress or Progress({"a": "RUNNING"}), 12.0)


def test_an_attempt_that_another_claim_takes_over_is_lost_since_its_last_sign_of_life() -> None:
    """FLOW-18"""
    lost = {"attempt": 1, "worker_id": "anna", "started_at": 11.0, "ended_at": 12.0, "why": "lost"}
    assert claim(began(), BERT, "a2", 40.0).earlier_attempts == (lost,)


def test_an_attempt_that_was_handed_back_is_told_once_and_is_not_lost_besides() -> None:
    """FLOW-18"""
    back = put_back(began(), 13.0)
    given = {"attempt": 1, "worker_id": "anna", "started_at": 11.0, "ended_at": 13.0, "why": "handed_back"}
    assert back.earlier_attempts == (given,)
    assert claim(back, BERT, "a2", 15.0).earlier_attempts == (given,)


def test_the_newest_twenty_attempts_are_kept_the_oldest_first() -> None:
    run = RUN
    for number in range(50):
        run = claim(run, ANNA, f"a{number}", float(number))
        run = put_back(run, number + 0.5) if number % 2 else run
    assert EARLIER_ATTEMPTS_MAX == 20
    assert [past["attempt"] for past in run.earlier_attempts] == list(range(31, 51))


def test_what_a_newer_version_tells_of_an_attempt_is_carried_along() -> None:
    """FLOW-551"""
    newer = {"attempt": 1, "why": "evicted", "node": {"zone": 3}}
    run = replace(began(), attempt=2, earlier_attempts=(newer,))
    assert claim(run, BERT, "a3", 40.0).earlier_attempts[0] == newer


def test_a_cancel_request_names_the_key_it_came_with() -> None:
    """FLOW-175"""
    assert ask_cancel(RUN, "why", 20.0, "key-1").cancel_requested_by == "key-1"
    assert ask_cancel(RUN, "why", 20.0).cancel_requested_by is None


def test_an_end_says_whether_a_keeper_made_it() -> None:
    assert conclude(began(), Failed(message="gone"), 30.0, KEEPER).ended_by == "keeper"
    assert conclude(ask_cancel(RUN, None, 20.0), Cancelled(), 30.0, KEEPER).ended_by == "keeper"
    assert conclude(began(), Completed(), 30.0).ended_by is None


def test_a_graph_is_kept_until_the_end_and_belongs_to_its_attempt() -> None:
    run = began(Progress({"a": "RUNNING"}, graph=GRAPH))
    assert run.graph == GRAPH
    assert beat(run, Progress({"a": "SUCCEEDED"}), 13.0).graph == GRAPH
    assert conclude(run, Failed(message="killed"), 14.0).graph == GRAPH
    assert conclude(began(), Completed(progress=Progress(graph=GRAPH)), 14.0).graph == GRAPH
    assert claim(run, BERT, "a2", 40.0).graph == {}  # the next worker may have another version of the flow


def test_an_ordinary_run_is_larger_by_its_graph_alone() -> None:
    """Nothing is written while there is nothing to say."""
    new = {"graph", "earlier_attempts", "cancel_requested_by", "ended_by"}
    for run in (RUN, claim(RUN, ANNA, "a1", 11.0), began(), conclude(began(), Completed(), 13.0)):
        assert not new & to_snapshot(run).keys()
    assert new & to_snapshot(conclude(began(Progress(graph=GRAPH)), Completed(), 13.0)).keys() == {"graph"}
