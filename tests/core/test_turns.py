"""Whose turn it is: no clock, no server, no waiting."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.programs.turns import Ring, Rounds


def always(exec_name: str) -> str:
    return exec_name


def turns(rounds: Rounds, count: int) -> list[str]:
    picked = [rounds.pick(always) for _ in range(count)]
    return [f"{turn.exec_name}{turn.client_id}" for turn in picked if turn is not None]


def lanes(*names: str) -> Rounds:
    rounds = Rounds()
    for name in names:
        rounds.add(name[0], name[1:])
    return rounds


def test_programs_have_their_turns_one_after_the_other() -> None:
    """GRID-59: A, B, C, A, B, C"""
    assert turns(lanes("A1", "B1", "C1"), 7) == ["A1", "B1", "C1", "A1", "B1", "C1", "A1"]


def test_inside_a_program_its_clients_have_theirs() -> None:
    """GRID-59"""
    assert turns(lanes("A1", "A2", "B1"), 6) == ["A1", "B1", "A2", "B1", "A1", "B1"]


def test_the_pointer_stays_over_idle_times() -> None:
    """GRID-59: also across idle times"""
    rounds = lanes("A1", "B1", "C1")
    assert turns(rounds, 1) == ["A1"]
    for name in "ABC":
        rounds.discard(name, "1")
    assert turns(rounds, 2) == []
    for name in "CBA":
        rounds.add(name, "1")
    assert turns(rounds, 3) == ["B1", "C1", "A1"]


def test_a_program_without_a_seat_is_passed_over_and_delays_nobody() -> None:
    """GRID-61"""
    rounds = lanes("A1", "B1", "C1")
    picked = [rounds.pick(lambda name: None if name == "B" else name) for _ in range(4)]
    assert [turn.exec_name for turn in picked if turn is not None] == ["A", "C", "A", "C"]
    assert rounds.pick(lambda _: None) is None


def test_who_had_nothing_leaves_the_turn_to_the_next_client_of_the_same_program() -> None:
    """GRID-59: an empty look is no assignment"""
    rounds = lanes("A1", "A2", "B1")
    empty = rounds.pick(always)
    assert empty is not None
    rounds.discard("A", "1")
    rounds.undo(empty)
    assert turns(rounds, 3) == ["A2", "B1", "A2"]


def test_a_turn_that_others_had_since_is_not_taken_back() -> None:
    """GRID-59"""
    rounds = lanes("A1", "B1", "C1")
    empty = rounds.pick(always)
    assert empty is not None
    assert turns(rounds, 1) == ["B1"]
    rounds.undo(empty)
    assert turns(rounds, 1) == ["C1"]


def test_a_newcomer_waits_for_its_place_and_not_for_a_whole_round() -> None:
    """GRID-59"""
    rounds = lanes("A1", "C1")
    assert turns(rounds, 1) == ["A1"]
    rounds.add("B", "1")
    assert turns(rounds, 3) == ["B1", "C1", "A1"]


@given(st.lists(st.tuples(st.sampled_from("ABCD"), st.sampled_from("123")), min_size=1), st.integers(1, 60))
def test_over_any_lanes_nobody_is_a_whole_round_behind(names: list[tuple[str, str]], count: int) -> None:
    """GRID-59"""
    rounds = Rounds()
    for name in names:
        rounds.add(*name)
    picked = [turn for turn in (rounds.pick(always) for _ in range(count)) if turn is not None]
    assert len(picked) == count
    by_exec = Counter(turn.exec_name for turn in picked)
    assert max(by_exec.values()) - min(by_exec.get(name, 0) for name, _ in names) <= 1
    for chosen in {name for name, _ in names}:
        by_client = Counter(turn.client_id for turn in picked if turn.exec_name == chosen)
        clients = {client for name, client in names if name == chosen}
        assert max(by_client.values(), default=0) - min(by_client.get(each, 0) for each in clients) <= 1


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef"))))
def test_a_ring_holds_what_was_put_into_it(words: list[tuple[bool, str]]) -> None:
    """GRID-59"""
    ring, names = Ring(), set[str]()
    for is_new, name in words:
        (ring.add if is_new else ring.discard)(name)
        (names.add if is_new else names.discard)(name)
        ring.last = name
        assert (set(ring), len(ring), name in ring) == (names, len(names), is_new)
