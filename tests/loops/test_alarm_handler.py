"""Alarms that a keeper has taken: handled at their time, however early the store delivers them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from pyoco_server.loops.clock.alarm_handler import AlarmHandler
from pyoco_server.ports.alarms.jetstream import JetStreamAlarms
from pyoco_server.ports.alarms.port import Alarm, AlarmKind, DueAlarm, NoAlarms
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import a_world
from support.waiting import eventually


@pytest.fixture
async def backend(link: Link, nats_url: str) -> AsyncIterator[Backend]:
    async with a_world(link, nats_url) as backend:
        yield backend


@dataclass
class ADueAlarm:
    id: str
    due_at: float
    kind: str = AlarmKind.RUN
    is_settled: bool = False

    async def settle(self) -> None:
        self.is_settled = True

    async def put_off(self, seconds: float) -> None:
        raise AssertionError(f"put off for {seconds} s")


class AlarmsByHand(NoAlarms):
    async def open_due(self, on_due: Callable[[DueAlarm], None]) -> AlarmsByHand:
        self.fire = on_due
        return self

    async def want(self, count: int) -> None: ...

    async def tick(self) -> None: ...

    async def close(self) -> None: ...


@pytest.mark.virtual_time
async def test_an_alarm_that_comes_early_is_handled_at_its_time() -> None:
    """DELAY-4: so are one that is late, and one of an earlier version, which does not say its time."""
    clock, alarms = asyncio.get_running_loop().time, AlarmsByHand()
    handled: dict[str, float] = {}

    async def handle(run_id: str) -> float:
        handled[run_id] = clock()
        return 0.0

    handler = AlarmHandler(alarms, {AlarmKind.RUN: handle}, clock)
    await handler.start()
    await eventually(lambda: hasattr(alarms, "fire"))
    now = clock()
    due = [ADueAlarm("early", now + 0.2), ADueAlarm("late", now - 3.0), ADueAlarm("unknown", 0.0)]
    for each in due:
        alarms.fire(each)
    await eventually(lambda: all(each.is_settled for each in due))
    await handler.stop()
    assert handled == pytest.approx({"early": now + 0.2, "late": now, "unknown": now}, abs=0.05)
    assert handled["early"] >= due[0].due_at


async def test_a_stored_alarm_says_its_time_when_it_comes(backend: Backend) -> None:
    """DELAY-4: it comes up to a quarter of a second before"""
    assert isinstance(backend.alarms, JetStreamAlarms)
    due_at = backend.clock() + 0.3
    await backend.alarms.put(Alarm(AlarmKind.RUN, "r1", due_at))
    came: list[DueAlarm] = []
    taking = await backend.alarms.open_due(came.append)
    await taking.want(1)
    await eventually(lambda: bool(came))
    assert (came[0].id, came[0].due_at) == ("r1", due_at)
    await came[0].settle()
    await taking.close()
