"""Whose turn it is: no clock, no server, no waiting."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pyoco_server.core.programs.turns import TurnOrder, TurnRing


def always(exec_name: str, _: str | None) -> str:
    return exec_name


def turns(order: TurnOrder, count: int) -> list[str]:
    picked = [order.pick(always) for _ in range(count)]
    return [f"{turn.exec_name}{turn.client_id}" for turn in picked if turn is not None]


def lanes(*names: str) -> TurnOrder:
    order = TurnOrder()
    for name in names:
        order.add(name[0], name[1:])
    return order


def test_programs_have_their_turns_one_after_the_other() -> None:
    """GRID-59: A, B, C, A, B, C"""
    assert turns(lanes("A1", "B1", "C1"), 7) == ["A1", "B1", "C1", "A1", "B1", "C1", "A1"]


def test_inside_a_program_its_clients_have_theirs() -> None:
    """GRID-59"""
    assert turns(lanes("A1", "A2", "B1"), 6) == ["A1", "B1", "A2", "B1", "A1", "B1"]


def test_the_pointer_stays_over_idle_times() -> None:
    """GRID-59: also across idle times"""
    order = lanes("A1", "B1", "C1")
    assert turns(order, 1) == ["A1"]
    for name in "ABC":
        order.discard(name, "1")
    assert turns(order, 2) == []
    for name in "CBA":
        order.add(name, "1")
    assert turns(order, 3) == ["B1", "C1", "A1"]


def test_a_program_without_a_seat_is_passed_over_and_delays_nobody() -> None:
    """GRID-61"""
    order = lanes("A1", "B1", "C1")
    picked = [order.pick(lambda name, _: None if name == "B" else name) for _ in range(4)]
    assert [turn.exec_name for turn in picked if turn is not None] == ["A", "C", "A", "C"]
    assert order.pick(lambda *_: None) is None


def test_who_had_nothing_leaves_the_turn_to_the_next_client_of_the_same_program() -> None:
    """GRID-59: an empty look is no assignment"""
    order = lanes("A1", "A2", "B1")
    empty = order.pick(always)
    assert empty is not None
    order.discard("A", "1")
    order.undo(empty)
    assert turns(order, 3) == ["A2", "B1", "A2"]


def test_a_turn_that_others_had_since_is_not_taken_back() -> None:
    """GRID-59"""
    order = lanes("A1", "B1", "C1")
    empty = order.pick(always)
    assert empty is not None
    assert turns(order, 1) == ["B1"]
    order.undo(empty)
    assert turns(order, 1) == ["C1"]


def test_a_newcomer_waits_for_its_place_and_not_for_a_whole_round() -> None:
    """GRID-59"""
    order = lanes("A1", "C1")
    assert turns(order, 1) == ["A1"]
    order.add("B", "1")
    assert turns(order, 3) == ["B1", "C1", "A1"]


@given(st.lists(st.tuples(st.sampled_from("ABCD"), st.sampled_from("123")), min_size=1), st.integers(1, 60))
def test_over_any_lanes_nobody_is_a_whole_round_behind(names: list[tuple[str, str]], count: int) -> None:
    """GRID-59"""
    order = TurnOrder()
    for name in names:
        order.add(*name)
    picked = [turn for turn in (order.pick(always) for _ in range(count)) if turn is not None]
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
    ring, names = TurnRing(), set[str]()
    for is_new, name in words:
        (ring.add if is_new else ring.discard)(name)
        (names.add if is_new else names.discard)(name)
        ring.last = name
        assert (set(ring), len(ring), name in ring) == (names, len(names), is_new)


def test_a_client_whose_tenant_has_no_seat_is_passed_over_and_delays_nobody() -> None:
    """SAFE-4, GRID-61"""
    order = lanes("A1=t", "A2", "A3=u", "B1=t")
    asked: list[tuple[str, str | None]] = []

    def only_without_tenant(name: str, tenant: str | None) -> str | None:
        asked.append((name, tenant))
        return name if tenant is None else None

    picked = [order.pick(only_without_tenant) for _ in range(2)]
    assert [(turn.exec_name, turn.client_id) for turn in picked if turn is not None] == [("A", "2"), ("A", "2")]
    order.discard("A", "2")
    asked.clear()
    assert order.pick(only_without_tenant) is None
    assert sorted(asked, key=str) == [("A", "t"), ("A", "u"), ("B", "t")]


def test_a_tenant_is_asked_for_once_however_many_clients_it_has() -> None:
    """SAFE-4: a look costs no more than programs and tenants"""
    order = lanes(*(f"A{number}=t" for number in range(100)))
    asked: list[str | None] = []
    assert order.pick(lambda _, tenant: asked.append(tenant)) is None
    assert asked == ["t"]
