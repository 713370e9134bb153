"""Schedules that flows of apps declare: written from what live workers announce (APP-13)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.registry import a_worker
from pyoco_server.actions.schedules.reach import scheduling_of
from pyoco_server.actions.schedules.write import replace_schedule
from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.core.schedules import progress
from pyoco_server.core.schedules.ids import schedule_key
from pyoco_server.core.schedules.record import Definition
from pyoco_server.loops.clock.app_schedules import AppSchedules
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.schedules.port import Kept
from support.schedules import keeping_backend
from support.servers import config_for
from support.waiting import eventually

pytestmark = pytest.mark.virtual_time

NAME = "app-reports-measure"
NIGHTLY = {"when": {"cron": "0 6 * * *"}, "timezone": "Asia/Tokyo"}


@pytest.fixture
async def backend(nats_url: str) -> AsyncIterator[Backend]:
    async with keeping_backend(config_for(nats_url)) as backend:
        await backend.registry.start()
        yield backend
        await backend.registry.stop()


async def serve(backend: Backend, schedule: Mapping[str, Any] | None, *, name: str = "measure") -> None:
    now = backend.clock()
    flow = OfferedFlow(name=name, app="reports", tags=("size",), schedule=schedule)
    record = a_worker(last_seen_at=now, last_heartbeat_at=now, flows=(flow,), flows_complete=True, tags=("gpu",))
    await backend.registry.announce(record)


async def kept(backend: Backend) -> Kept | None:
    return await scheduling_of(backend).schedules.find(schedule_key(None, NAME))


async def stored(backend: Backend) -> Kept:
    found = await kept(backend)
    assert found is not None
    await eventually(lambda: scheduling_of(backend).schedules.look(found.schedule.key) == found.schedule)
    return found


async def write(backend: Backend, **change: Any) -> Definition:
    """As an operator does."""
    found = await stored(backend)
    changed = replace(found.schedule.definition, **change)
    now = backend.clock()
    written = await replace_schedule(backend, found, lambda old: progress.edited(old, changed, "key", now))
    assert written is not None
    await stored(backend)
    return changed


async def test_a_declared_schedule_is_created_and_updated_and_stays_paused(backend: Backend) -> None:
    """APP-13"""
    keeper = AppSchedules(backend)
    await serve(backend, None)
    await keeper.turn()
    assert await kept(backend) is None
    await serve(backend, NIGHTLY)
    await keeper.turn()
    made = (await stored(backend)).schedule.definition
    assert made.what == {"kind": "flow", "flow_name": "measure", "tag": "gpu", "tags": ["size"]}
    assert (made.when["cron"], made.timezone, made.labels) == ("0 6 * * *", "Asia/Tokyo", ("app:reports",))
    revision = (await stored(backend)).revision
    await keeper.turn()
    assert (await stored(backend)).revision == revision
    await write(backend, paused=True, pause_reason="moving")
    await serve(backend, {"when": {"every": "1h"}})
    await AppSchedules(backend).turn()
    changed = (await stored(backend)).schedule.definition
    assert (changed.when["every"], changed.timezone) == (3600, "UTC")
    assert (changed.paused, changed.pause_reason) == (True, "moving")


async def test_a_schedule_that_was_changed_by_hand_is_left_alone_with_one_warning(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """APP-13: the label of the app tells who wrote it last."""
    keeper = AppSchedules(backend)
    await serve(backend, NIGHTLY)
    await keeper.turn()
    by_hand = await write(backend, labels=("mine",), timezone="Europe/Paris")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await keeper.turn()
    assert (await stored(backend)).schedule.definition == by_hand
    assert [each.message for each in caplog.records].count(
        "the schedule of a flow was changed by hand; left as it is"
    ) == 1


async def test_a_schedule_that_cannot_be_stored_does_not_stop_the_others(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """APP-13: a name above 64 characters, and a bad cron expression"""
    keeper, now = AppSchedules(backend), backend.clock()
    flows = tuple(
        OfferedFlow(name=name, app="reports", schedule=schedule)
        for name, schedule in (("x" * 60, NIGHTLY), ("bad", {"when": {"cron": "soon"}}), ("measure", NIGHTLY))
    )
    await backend.registry.announce(a_worker(last_seen_at=now, last_heartbeat_at=now, flows=flows))
    with caplog.at_level(logging.WARNING):
        await keeper.turn()
        await keeper.turn()
    assert (await stored(backend)).schedule.name == NAME
    assert [each.message for each in caplog.records].count("the schedule of a flow cannot be stored") == 2
