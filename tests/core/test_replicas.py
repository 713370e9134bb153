"""When a stream counts as kept by as many nodes as was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyoco_server.core.replicas import StreamReplica, StreamReplicas

UP = StreamReplica("n2", is_current=True, is_away=False, lag=0)
OTHER = replace(UP, name="n3")
WHOLE = StreamReplicas(stream="S", wanted=3, leader="n1", followers=(UP, OTHER))

BROKEN = {
    "no leader": replace(WHOLE, leader=""),
    "fewer asked for": replace(WHOLE, wanted=1),
    "a node not listed yet": replace(WHOLE, followers=(UP,)),
    "a node that is still there": replace(WHOLE, followers=(UP, OTHER, replace(UP, name="n4"))),
    "one behind": replace(WHOLE, followers=(UP, replace(OTHER, is_current=False, lag=7))),
    "one away": replace(WHOLE, followers=(UP, replace(OTHER, is_away=True))),
    "a consumer behind": replace(WHOLE, consumers_behind=1),
    "a server that is alone": StreamReplicas(stream="S", wanted=3, leader="", followers=(), is_clustered=False),
}


def test_a_leader_and_two_that_keep_up_are_three_copies() -> None:
    """GRID-186"""
    assert WHOLE.is_complete(3)
    assert not WHOLE.is_complete(1)
    assert WHOLE.nodes == ("n1", "n2", "n3")


@pytest.mark.parametrize("found", BROKEN.values(), ids=BROKEN.keys())
def test_anything_less_is_not(found: StreamReplicas) -> None:
    """GRID-186"""
    assert not found.is_complete(3)


def test_one_copy_is_whole_with_its_leader_or_on_a_server_that_is_alone() -> None:
    assert StreamReplicas(stream="S", wanted=1, leader="n1", followers=()).is_complete(1)
    assert StreamReplicas(stream="S", wanted=1, leader="", followers=(), is_clustered=False).is_complete(1)
    assert not StreamReplicas(stream="S", wanted=1, leader="", followers=()).is_complete(1)


def test_what_is_behind_and_who_is_away_can_be_told() -> None:
    late = replace(WHOLE, followers=(replace(UP, lag=3), replace(OTHER, lag=9, is_away=True)))
    assert (late.lag, late.away) == (9, ("n3",))
