"""What every history of the wheel registry promises."""

from __future__ import annotations

import asyncio

import pytest

from pyoco_server.core.run import Caller
from pyoco_server.core.wheel_event import WheelAction, WheelEvent, WheelSource
from pyoco_server.ports.wheel_history.port import WheelHistory

__all__ = ["WheelHistoryContract", "add_events", "an_event"]


def an_event(number: int, wheel: str = "a", action: WheelAction = WheelAction.UPLOAD) -> WheelEvent:
    return WheelEvent(
        event_id=f"00000000-0000-4000-8000-{number:012}",
        occurred_at=1_700_000_000.0 + number,
        action=action,
        wheel_name=f"{wheel}-{number}-py3-none-any.whl",
        tags=("gpu",),
        source=WheelSource("http", "192.0.2.1", "tests"),
        actor=Caller("acme", "0123456789abcdef"),
        size_bytes=number,
        sha256_hex="0" * 64,
    )


async def add_events(history: WheelHistory, *events: WheelEvent) -> None:
    for event in events:
        await history.add(event)


class WheelHistoryContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_history_without_events_is_empty(self, history: WheelHistory) -> None:
        assert await history.newest(10) == []

    async def test_the_newest_events_come_first_as_they_were_added(self, history: WheelHistory) -> None:
        """FLOW-221, FLOW-150"""
        events = [an_event(number) for number in range(5)]
        await add_events(history, *events)
        assert await history.newest(500) == events[::-1]
        assert await history.newest(5) == events[::-1]

    @pytest.mark.parametrize("limit", [1, 2, 4])
    async def test_no_more_are_told_than_asked_for(self, history: WheelHistory, limit: int) -> None:
        """FLOW-150"""
        events = [an_event(number) for number in range(5)]
        await add_events(history, *events)
        assert await history.newest(limit) == events[::-1][:limit]
        assert await history.newest(limit, action=WheelAction.UPLOAD) == events[::-1][:limit]

    async def test_whoever_has_added_an_event_reads_it(self, history: WheelHistory) -> None:
        """FLOW-221"""
        for number in range(20):
            await history.add(an_event(number))
            assert await history.newest(1) == [an_event(number)]

    async def test_events_are_chosen_by_wheel_and_by_action(self, history: WheelHistory) -> None:
        """FLOW-150"""
        up, down = WheelAction.UPLOAD, WheelAction.DELETE
        events = [an_event(number // 4, "ab"[number % 2], (up, down)[number // 2 % 2]) for number in range(16)]
        events = [
            WheelEvent(**{**vars(event), "event_id": f"{number}", "occurred_at": float(number)})
            for number, event in enumerate(events)
        ]
        await add_events(history, *events)
        newest = events[::-1]
        assert await history.newest(100, action=down) == [event for event in newest if event.action is down]
        name = "b-2-py3-none-any.whl"
        assert await history.newest(100, wheel_name=name) == [event for event in newest if event.wheel_name == name]
        [both] = await history.newest(100, wheel_name=name, action=down)
        assert (both.wheel_name, both.action) == (name, down)
        assert await history.newest(1, wheel_name=name) == [both]
        assert await history.newest(100, wheel_name="none-1-py3-none-any.whl") == []

    async def test_events_of_the_same_moment_are_all_kept(self, history: WheelHistory) -> None:
        """FLOW-221, FLOW-222"""
        events = [WheelEvent(**{**vars(an_event(number)), "occurred_at": 1_700_000_000.0}) for number in range(20)]
        await asyncio.gather(*map(history.add, events))
        assert sorted(event.event_id for event in await history.newest(100)) == [event.event_id for event in events]
