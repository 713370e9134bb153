"""Rounds over doors: who is called when, and how long nobody is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import ErrorMessage, NotLeader
from pyoco_server.frames.addresses import Address, Addresses
from pyoco_server.frames.calling import PAUSE_SECONDS_MAX, Caller, search
from pyoco_server.frames.wire import Timers

A, B, C = (Address("127.0.0.1", port) for port in (5001, 5002, 5003))


class Doors:
    """Answers by a list, then takes everybody; remembers calls and pauses."""

    def __init__(self, *answers: NotLeader | ErrorMessage | None) -> None:
        self._answers = list(answers)
        self.called: list[Address] = []
        self.pauses: list[float] = []

    async def call(self, address: Address) -> Address | NotLeader | ErrorMessage | None:
        self.called.append(address)
        return self._answers.pop(0) if self._answers else address

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def found(self, *given: Address) -> Address:
        addresses = Addresses(given, clock=lambda: 0.0, chance=lambda: 0.5)
        return await search(addresses, self.call, self.sleep)


def elsewhere(leader: str | None = None, doors: Sequence[str] = (), retry_after_ms: int = 0) -> NotLeader:
    return NotLeader(group="g", leader=leader, doors=tuple(doors), reason="draining", retry_after_ms=retry_after_ms)


async def test_every_door_is_called_before_anybody_waits() -> None:
    """GRID-123"""
    doors = Doors(None, None, None)
    assert await doors.found(A, B) == B
    assert (doors.called, doors.pauses) == ([A, B, A, B], [0.5])


async def test_a_door_that_is_named_is_called_at_once_and_costs_no_pause() -> None:
    """GRID-45"""
    doors = Doors(elsewhere(str(C), retry_after_ms=9_000))
    assert await doors.found(A, B) == C
    assert (doors.called, doors.pauses) == ([A, C], [])


async def test_doors_that_name_each_other_are_left_after_five_jumps() -> None:
    """GRID-45: five in ten seconds"""
    doors = Doors(*[elsewhere(str(A))] * 6)
    assert await doors.found(A) == A
    assert (len(doors.called), len(doors.pauses)) == (7, 1)


async def test_a_door_that_accepts_and_closes_is_called_with_growing_pauses() -> None:
    """SAFE-17: there is none before the first connection"""
    doors = Doors()
    addresses = Addresses((A,), clock=lambda: 0.0, chance=lambda: 0.5)
    for _ in range(5):
        addresses.attached(await search(addresses, doors.call, doors.sleep))
    assert doors.pauses == [0.5, 1.0, 2.0, 4.0]


async def test_doors_that_are_told_of_are_called_in_the_next_round() -> None:
    """GRID-110"""
    doors = Doors(elsewhere(doors=[str(C)]))
    assert await doors.found(A) == A
    doors = Doors(elsewhere(doors=[str(C)]), None)
    assert await doors.found(A) == C


async def test_a_pause_that_a_door_asks_for_is_kept_within_bounds() -> None:
    """GRID-123"""
    busy = ErrorMessage(code="UNAVAILABLE", message="later", retry=True, retry_after_ms=5_000)
    doors = Doors(busy, elsewhere(retry_after_ms=3_600_000))
    assert await doors.found(A) == A
    assert doors.pauses == [5.0, PAUSE_SECONDS_MAX]


async def test_the_door_and_the_reason_are_fields_of_the_log_too(caplog: pytest.LogCaptureFixture) -> None:
    """FLOW-525: whoever reads JSON lines need not take messages apart"""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    caller = Caller(Type.HELLO_WORKER, bytes, Timers(), None, lambda _, refused: ValueError(refused.code))
    caplog.set_level("INFO", "pyoco_server.frames.calling")
    async with server:
        assert await caller.call(address) is None
    assert await caller.call(address) is None
    closed, unreachable = (record.__dict__ for record in caplog.records)
    assert closed["door"] == unreachable["door"] == str(address)
    assert closed["reason"]
    assert unreachable["reason"]
