"""What a process does that JetStream does not answer: a made-up queue and clock."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from pyoco_server.config.grid import GridConfig
from pyoco_server.errors import Unavailable
from pyoco_server.loops.programs.quorum import Quorum, QuorumChange
from pyoco_server.ports.programs import Grace, Programs

LOST, ANSWERS_AGAIN = QuorumChange

pytestmark = pytest.mark.virtual_time


class Stores:
    """A queue that answers, refuses or is silent, and the observed states."""

    def __init__(self) -> None:
        self.now, self.refuses, self.is_silent = 100.0, False, False
        self.config, self.grace, self.queue = GridConfig(), Grace(), self
        self.heard: list[QuorumChange] = []

    async def totals(self) -> object:
        if self.is_silent:
            await asyncio.Event().wait()
        if self.refuses:
            raise Unavailable("there is no leader")
        return SimpleNamespace()

    def watched(self) -> Quorum:
        return Quorum(cast("Programs", self), wall=lambda: self.now + 1_000, clock=lambda: self.now, every_seconds=0.01)

    async def turns(self, quorum: Quorum, seconds: float) -> None:
        """Check every second, as those do who hold attempts."""
        for _ in range(int(seconds)):
            self.now += 1.0
            change = await quorum.check()
            if change is QuorumChange.ANSWERS_AGAIN:
                assert not quorum.is_quorate
                quorum.resume()
            if change is not None:
                self.heard.append(change)


@pytest.fixture
def stores() -> Stores:
    return Stores()


def trouble(stores: Stores, kind: str) -> None:
    setattr(stores, kind, True)


@pytest.mark.parametrize("kind", ["refuses", "is_silent"])
async def test_five_seconds_without_an_answer_are_a_lost_quorum(stores: Stores, kind: str) -> None:
    """GRID-44"""
    quorum = stores.watched()
    await stores.turns(quorum, 3)
    trouble(stores, kind)
    await stores.turns(quorum, 5)
    assert (quorum.is_quorate, stores.heard) == (True, [])
    await stores.turns(quorum, 2)
    assert (quorum.is_quorate, stores.heard) == (False, [LOST])
    await stores.turns(quorum, 60)
    assert stores.heard == [LOST]
    await quorum.close()


async def test_the_first_answer_brings_heartbeats_first_and_makes_every_lease_fresh(stores: Stores) -> None:
    """GRID-44"""
    quorum = stores.watched()
    stores.refuses = True
    await stores.turns(quorum, 10)
    assert not stores.grace.covers(stores.now + 1_000)
    stores.refuses = False
    await stores.turns(quorum, 1)
    assert (quorum.is_quorate, stores.heard) == (True, [LOST, ANSWERS_AGAIN])
    fresh = stores.config.exec_lease_fresh_sec
    assert stores.grace.covers(stores.now + 1_000 + fresh - 0.1)
    assert not stores.grace.covers(stores.now + 1_000 + fresh)


async def test_an_outage_of_a_moment_changes_nothing(stores: Stores) -> None:
    """GRID-44"""
    quorum = stores.watched()
    for _ in range(5):
        stores.refuses = True
        await stores.turns(quorum, 4)
        stores.refuses = False
        await stores.turns(quorum, 1)
    assert (stores.heard, stores.grace.until) == ([], 0.0)


async def test_writes_that_fail_for_five_seconds_count_though_questions_are_answered(stores: Stores) -> None:
    """GRID-44, GRID-182: a leader without a majority still answers for some seconds"""
    quorum = stores.watched()
    for _ in range(7):
        quorum.failed_to_write()
        await stores.turns(quorum, 1)
    assert stores.heard == [LOST]
    quorum.wrote()
    await stores.turns(quorum, 1)
    assert stores.heard == [LOST, ANSWERS_AGAIN]


async def test_a_failed_write_of_long_ago_is_forgotten(stores: Stores) -> None:
    """GRID-44: a process without writes does not stay unavailable for ever"""
    quorum = stores.watched()
    quorum.failed_to_write()
    await stores.turns(quorum, 30)
    quorum.failed_to_write()
    await stores.turns(quorum, 4)
    assert (quorum.is_quorate, stores.heard) == (True, [])
