"""A stream that is over while its client does not read: the two ends meet in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pyoco_server.doors.http import event_stream
from pyoco_server.doors.http.event_stream import EventStream
from pyoco_server.loops.hub import Hub


class Silence:
    """A source that never has anything to say."""

    def __init__(self) -> None:
        self.ends_at = asyncio.get_running_loop().time() + 60
        self.is_closed = asyncio.Event()

    async def next(self) -> bytes | None:
        await self.is_closed.wait()
        return None

    def close(self) -> None:
        self.is_closed.set()


async def receive() -> Any:
    await asyncio.Event().wait()


async def send(message: Any) -> None:
    """Takes the head, and nothing of the body."""
    if message["type"] == "http.response.body":
        await asyncio.Event().wait()


async def test_a_stream_that_is_over_just_as_its_send_expires_troubles_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOW-128: the others' streams end as well, though this one's time ran out in the same moment."""
    monkeypatch.setattr(event_stream, "_SEND_SECONDS", 0.1)
    loop = asyncio.get_running_loop()
    hub, stream = Hub(), EventStream(source := Silence())
    told: list[str] = []
    with hub.follow("a") as first, hub.follow("b") as second:
        first.on_over, second.on_over = stream.hurry, lambda: told.append("second")
        serving = asyncio.create_task(stream({"type": "http", "method": "GET"}, receive, send))
        async with asyncio.timeout(120):
            while stream._patience is None:
                await asyncio.sleep(0)  # at the very next turn: later it may have expired
        patience = stream._patience
        assert patience is not None

        def break_off(hurry: Callable[[], None] = stream.hurry) -> None:
            told.append(f"expired: {patience.expired()}")
            hurry()
            hub.break_off()
            told.append("done")

        at = patience.when()
        assert at is not None
        loop.call_at(at, break_off)
        async with asyncio.timeout(120):
            await serving
    assert told == ["expired: True", "second", "done"]
    assert source.is_closed.is_set()
