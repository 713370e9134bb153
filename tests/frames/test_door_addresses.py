"""Which door a worker tries next, and when."""

from __future__ import annotations

import pytest

from pyoco_server.errors import UsageError
from pyoco_server.frames.addresses import Address, Addresses

A, B, C = (Address("127.0.0.1", port) for port in (5000, 5001, 5002))


def addresses(*given: Address, chance: float = 0.5) -> Addresses:
    return Addresses(given or (A,), clock=lambda: 0.0, chance=lambda: chance)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:5000", Address("127.0.0.1", 5000)),
        (" door.example:1 ", Address("door.example", 1)),
        ("[::1]:65535", Address("::1", 65_535)),
    ],
)
def test_an_address_is_read_and_written(text: str, expected: Address) -> None:
    """GRID-190"""
    assert Address.read(text) == expected
    assert Address.read(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "host", ":5000", "host:", "host:0", "host:65536", "host:5x", "host:-1", "host:٥"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    """GRID-190"""
    with pytest.raises(UsageError, match=r"example: 127\.0\.0\.1:5000"):
        Address.read(text)


def test_delays_double_up_to_half_a_minute() -> None:
    """GRID-123"""
    known = addresses()
    assert [known.delay() for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(("lasted_seconds", "next_delay"), [(0.0, 4), (4.9, 4), (5.0, 0.5), (3_600.0, 0.5)])
def test_only_a_connection_that_lasted_resets_the_delay(lasted_seconds: float, next_delay: float) -> None:
    """SAFE-17"""
    now = [0.0]
    known = Addresses([A], clock=lambda: now[0], chance=lambda: 0.5)
    assert [known.delay() for _ in range(3)] == [0.5, 1, 2]
    known.attached(A)
    now[0] += lasted_seconds
    assert known.delay() == next_delay
    now[0] += 60.0  # without a connection
    assert known.delay() == 2 * next_delay


def test_a_delay_is_as_long_as_a_door_asked_for_once() -> None:
    """SAFE-17"""
    known = addresses()
    known.wait_at_least(5.0)
    assert [known.delay() for _ in range(3)] == [5.0, 1, 2]


def test_orders_to_wait_that_follow_one_another_make_the_delay_grow() -> None:
    """SAFE-17: two workers of one id, each back as soon as its delay is over"""
    now = [0.0]
    known = Addresses([A], clock=lambda: now[0], chance=lambda: 0.5)
    delays: list[float] = []
    begins: list[bool] = []
    for _ in range(8):
        known.attached(A)
        now[0] += delays[-1] if delays else 3_600.0
        begins.append(known.wait_at_least(5.0))
        delays.append(known.delay())
    assert delays == [5, 5, 5, 5, 8, 16, 30, 30]
    assert begins == [True] + [False] * 7


@pytest.mark.parametrize(("lasted_seconds", "is_told"), [(60.0, True), (10.0, False)])
def test_a_series_of_orders_to_wait_ends(lasted_seconds: float, is_told: bool) -> None:
    """SAFE-17: with a connection that lasted a minute, or one that ended in another way"""
    now = [0.0]
    known = Addresses([A], clock=lambda: now[0], chance=lambda: 0.5)
    for _ in range(4):
        known.attached(A)
        now[0] += 5.0
        known.wait_at_least(5.0)
        known.delay()
    known.attached(A)
    now[0] += lasted_seconds
    if is_told:
        assert known.wait_at_least(1.0)
        assert known.delay() == 1.0
    else:
        assert known.delay() == 0.5
        known.attached(A)
        assert known.wait_at_least(5.0)


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.8), (1.0, 1.2), (0.25, 0.9)])
def test_each_delay_is_a_fifth_more_or_less(chance: float, factor: float) -> None:
    """GRID-123"""
    known = addresses(chance=chance)
    assert [known.delay() for _ in range(3)] == pytest.approx([0.5 * factor, factor, 2 * factor])


def test_a_round_begins_where_it_was_and_goes_on_with_all_others() -> None:
    """GRID-110: the same door, then those of HelloAck, then those of the command line."""
    known = addresses(A, B)
    assert known.round() == [A, B]
    known.learn([str(C), "nonsense", str(A)])
    assert known.round() == [A, C, B]
    known.attached(C)
    assert known.round() == [C, A, B]


def test_a_door_cannot_fill_the_memory_with_names() -> None:
    """GRID-195"""
    known = addresses()
    known.learn(f"h{number}:1" for number in range(10_000))
    assert len(known.round()) == 65


def test_a_door_that_names_none_is_not_believed() -> None:
    """GRID-110"""
    known = addresses(A)
    known.learn([str(B)])
    known.learn([])
    assert known.round() == [A, B]


def test_five_jumps_in_ten_seconds_and_no_more() -> None:
    """GRID-45"""
    now = [0.0]
    known = Addresses([A], clock=lambda: now[0], chance=lambda: 0.5)
    assert [known.may_jump() for _ in range(6)] == [True] * 5 + [False]
    now[0] = 9.9
    assert not known.may_jump()
    now[0] = 10.0
    assert known.may_jump()
