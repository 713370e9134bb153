"""The bound of compare-and-set loops."""

from __future__ import annotations

import pytest

from pyoco_server.core.rounds import ROUNDS_MAX, Rounds
from pyoco_server.errors import Unavailable


def test_a_loop_gives_up_after_the_last_round_and_says_what_changes() -> None:
    rounds = Rounds("run 17", most=3)
    for lost in range(3):
        rounds.begin()
        assert rounds.lost == lost
    with pytest.raises(Unavailable, match="run 17 changes too fast"):
        rounds.begin()


def test_the_default_bound_holds() -> None:
    rounds = Rounds("x")
    for _ in range(ROUNDS_MAX):
        rounds.begin()
    with pytest.raises(Unavailable):
        rounds.begin()
