"""A door with long timers, for tests of malformed frames."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.backends import fields_of
from support.grid.peers import OpenDoor, grid_config, open_door
from support.waiting import eventually

__all__ = ["closes", "door", "reasons"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(module_nats_url: str) -> AsyncIterator[OpenDoor]:
    """With long timers: a busy machine may be late with a frame."""
    grid = grid_config(exec_hello_sec=120.0, exec_frame_sec=120.0, exec_idle_sec=120.0, exec_max_conns_per_ip=500)
    async with open_door(module_nats_url, grid) as opened:
        yield opened


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [fields_of(each)["reason"] for each in caplog.records if each.getMessage() == "a connection ended"]


async def closes(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    await eventually(lambda: reason in reasons(caplog))
