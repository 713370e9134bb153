"""Schedules, for asyncio. The synchronous twin, `sync_schedules.py`, is made from this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyoco_server.client import schedule_calls
from pyoco_server.client.aio_wire import AsyncWire
from pyoco_server.client.schedule_results import (
    AskedSchedule,
    ScheduleBackfilled,
    ScheduleDeleted,
    ScheduleList,
    SchedulePreview,
    ScheduleShown,
    ScheduleTicks,
    ScheduleTriggered,
)

__all__ = ["AsyncSchedules"]


class AsyncSchedules:
    """The operations on schedules of `AsyncPyocoHttpClient`. Not used on its own."""

    _wire: AsyncWire

    async def create_schedule(self, schedule: AskedSchedule, *, idempotency_key: str | None = None) -> ScheduleShown:
        """Create a schedule. The gateway answers 409 if its name is taken, and 422 with every problem."""
        return await self._wire.call(schedule_calls.create_schedule(schedule, idempotency_key))

    async def list_schedules(
        self,
        *,
        label: str | None = None,
        paused: bool | None = None,
        kind: str | None = None,
        flow: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ScheduleList:
        """Return a page of schedules, by name. Pass `next_cursor` with the same filters for the next page."""
        filters = {"label": label, "paused": paused, "kind": kind, "flow": flow, "limit": limit, "cursor": cursor}
        return await self._wire.call(schedule_calls.list_schedules(filters))

    async def get_schedule(self, name: str) -> ScheduleShown:
        """Return a schedule."""
        return await self._wire.call(schedule_calls.get_schedule(name))

    async def put_schedule(
        self, name: str, schedule: AskedSchedule, *, if_match: str | None = None, only_new: bool = False
    ) -> ScheduleShown:
        """Create or replace a schedule as a whole.

        `if_match`: replace only this version, an `ETag`, or `*` for any. `only_new`: create only. Without either the
        gateway creates it, and answers 428 if there is one.
        """
        return await self._wire.call(schedule_calls.put_schedule(name, schedule, if_match, new=only_new))

    async def delete_schedule(self, name: str, *, if_match: str | None = None) -> ScheduleDeleted:
        """Delete a schedule and its waiting ticks. Its runs stay."""
        return await self._wire.call(schedule_calls.delete_schedule(name, if_match))

    async def pause_schedule(self, name: str, *, reason: str | None = None) -> ScheduleShown:
        """Pause a schedule: no tick happens until it is resumed, and none is made up for."""
        return await self._wire.call(schedule_calls.pause_schedule(name, reason))

    async def resume_schedule(self, name: str) -> ScheduleShown:
        """Resume a schedule."""
        return await self._wire.call(schedule_calls.resume_schedule(name))

    async def trigger_schedule(
        self, name: str, *, params: Mapping[str, Any] | None = None, idempotency_key: str | None = None
    ) -> ScheduleTriggered:
        """Run a schedule now, beside its ticks. `params` are laid over those of the schedule."""
        return await self._wire.call(schedule_calls.trigger_schedule(name, params, idempotency_key))

    async def backfill_schedule(
        self, name: str, begin: float | str, end: float | str, *, overlap: str | None = None
    ) -> ScheduleBackfilled:
        """Run the ticks in [begin, end) that have no run. Repeating it changes nothing."""
        asked = {"from": begin, "to": end, "overlap": overlap}
        return await self._wire.call(schedule_calls.backfill_schedule(name, asked))

    async def preview_schedule(
        self, name: str, *, count: int | None = None, begin: float | None = None
    ) -> SchedulePreview:
        """Return the next ticks of a schedule, also of a paused one."""
        return await self._wire.call(schedule_calls.preview_schedule(name, {"n": count, "from": begin}))

    async def preview_new_schedule(
        self, schedule: AskedSchedule, *, count: int | None = None, begin: float | str | None = None
    ) -> SchedulePreview:
        """Return the next ticks of a schedule that need not exist."""
        asked = {"n": count, "from": begin}
        return await self._wire.call(schedule_calls.preview_new_schedule(schedule, asked))

    async def list_schedule_ticks(
        self,
        name: str,
        *,
        outcome: str | None = None,
        begin: float | None = None,
        end: float | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ScheduleTicks:
        """Return what became of the ticks, newest first. Pass `next_cursor` for the next page."""
        query = {"outcome": outcome, "from": begin, "to": end, "limit": limit, "cursor": cursor}
        return await self._wire.call(schedule_calls.list_schedule_ticks(name, query))
