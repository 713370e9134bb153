"""The account of credits, without a connection."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pyoco_server.loops.programs.cpu import HeldBack
from pyoco_server.loops.tcp_worker.credits import CreditAccount


@dataclass
class Scene:
    """A worker with a limit, its clock, its CPU and what it has in hand."""

    limit: int = 4
    now: float = 0.0
    busy: float = 0.0
    unfinished: int = 0
    is_shut: bool = False
    account: CreditAccount = field(init=False)

    def __post_init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        held = HeldBack(0.75, 30.0, lambda: self.busy, lambda: self.now)
        self.account = CreditAccount(self.limit, lambda: self.unfinished, held, lambda: self.is_shut)

    def first(self) -> int:
        count = self.account.first()
        self.account.gave(count)
        return count

    def give(self) -> int:
        count = self.account.due()
        self.account.gave(count)
        return count

    def take(self) -> None:
        self.account.took()
        self.unfinished += 1

    def finish(self) -> int:
        self.unfinished -= 1
        return self.give()


@pytest.mark.parametrize(("running", "expected"), [(0, 4), (1, 3), (4, 0), (9, 0)])
def test_after_hello_a_worker_says_its_limit_less_what_runs(running: int, expected: int) -> None:
    """GRID-65"""
    assert Scene(unfinished=running).first() == expected


def test_the_first_credit_is_not_delayed_by_a_busy_machine() -> None:
    """GRID-65, GRID-70"""
    assert Scene(busy=1.0).first() == 4


def test_one_credit_comes_back_for_each_job() -> None:
    """GRID-69"""
    scene = Scene()
    scene.first()
    for _ in range(4):
        scene.take()
    assert [scene.finish() for _ in range(4)] == [1, 1, 1, 1]
    assert scene.give() == 0


def test_a_duplicate_gives_its_credit_back_although_nothing_ended() -> None:
    """GRID-69, GRID-107"""
    scene = Scene()
    scene.first()
    scene.take()
    scene.account.took()  # the same job again: what is in hand does not grow
    assert scene.give() == 1


def test_jobs_over_the_limit_are_paid_back_one_by_one() -> None:
    """GRID-69, GRID-105"""
    scene = Scene()
    scene.first()
    for _ in range(10):
        scene.take()
    assert scene.give() == 0
    assert sum(scene.finish() for _ in range(10)) == 10


def test_a_new_connection_begins_at_zero() -> None:
    """GRID-65, GRID-68: and jobs of the old one that end on the new one free their places there."""
    scene = Scene()
    scene.first()
    for _ in range(3):
        scene.take()
    scene.connect()
    assert scene.first() == 1
    assert [scene.finish() for _ in range(3)] == [1, 1, 1]
    assert scene.account.given == 4


def test_more_jobs_than_places_at_a_new_connection_leave_no_surplus() -> None:
    """GRID-65: six in hand and four places: the door never has more than four credits."""
    scene = Scene(unfinished=6)
    assert scene.first() == 0
    assert [scene.finish() for _ in range(6)] == [0, 0, 1, 1, 1, 1]


def test_a_busy_machine_delays_a_credit_by_half_a_minute_at_most() -> None:
    """GRID-70"""
    scene = Scene()
    scene.first()
    scene.take()
    scene.busy = 0.75
    assert scene.finish() == 0
    scene.now = 29.5
    assert scene.give() == 0
    scene.now = 30.0
    assert scene.give() == 1
    assert scene.give() == 0


def test_each_credit_has_its_own_half_minute() -> None:
    """GRID-70"""
    scene = Scene()
    scene.first()
    scene.take()
    scene.take()
    scene.busy = 1.0
    scene.finish()
    scene.now = 20.0
    scene.finish()
    scene.now = 30.0
    assert scene.give() == 1
    scene.now = 49.9
    assert scene.give() == 0
    scene.now = 50.0
    assert scene.give() == 1


def test_a_machine_that_has_air_again_gives_all_at_once() -> None:
    """GRID-70"""
    scene = Scene()
    scene.first()
    for _ in range(3):
        scene.take()
    scene.busy = 0.9
    assert [scene.finish() for _ in range(3)] == [0, 0, 0]
    scene.busy, scene.now = 0.749, 0.5
    assert scene.give() == 3


def test_a_full_spool_and_a_drain_give_nothing_however_long_they_last() -> None:
    """GRID-109, GRID-113"""
    scene = Scene(is_shut=True)
    assert scene.first() == 0
    scene.now = 1_000.0
    assert scene.give() == 0
    scene.is_shut = False
    assert scene.give() == 4


def test_what_could_not_be_sent_stays_owed() -> None:
    """GRID-69"""
    scene = Scene()
    scene.first()
    scene.take()
    scene.unfinished -= 1
    assert scene.account.due() == 1
    assert scene.account.due() == 1
    scene.account.gave(1)
    assert scene.account.due() == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_books_balance_over_any_run(seed: int) -> None:
    """GRID-66, GRID-69: AssignJobs received = credits returned + jobs in hand, also with duplicates and a busy CPU."""
    chance = random.Random(seed)
    scene = Scene(limit=chance.randint(1, 8))
    first = scene.first()
    for _ in range(500):
        scene.now += chance.random()
        scene.busy = chance.choice([0.1, 0.1, 0.9])
        at_the_door = scene.account.given - scene.account.received
        assert at_the_door >= 0
        if at_the_door and chance.random() < 0.6:
            if scene.unfinished and chance.random() < 0.2:
                scene.account.took()
            else:
                scene.take()
            scene.give()
        elif scene.unfinished:
            scene.finish()
        assert scene.unfinished <= scene.limit
    scene.busy = 0.0
    scene.give()
    assert scene.account.received == (scene.account.given - first) + scene.unfinished
