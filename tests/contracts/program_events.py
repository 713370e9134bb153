"""What every history of jobs promises."""

from __future__ import annotations

import uuid
from typing import Protocol

from pyoco_server.ports.program_events.port import Event, EventName, Events
from support.waiting import eventually

__all__ = ["EventsContract", "MakeEvents", "an_event"]


class MakeEvents(Protocol):
    """Over the test's one store, as another process would open it."""

    def __call__(self) -> Events: ...


def an_event(group: str, event: EventName = EventName.ENQUEUE, **more: object) -> Event:
    values: dict[str, object] = {"ts": 5.5, "run_id": f"r-{group}", "job_id": "j1"} | more
    return Event(event=event, group=group, **values)  # type: ignore[arg-type]  # any of its fields


async def names(events: Events, group: str, job_id: str | None = None, limit: int = 100) -> list[EventName]:
    """Oldest first."""
    found = await events.recent(job_id=job_id, event=None, group=group, limit=limit)
    return [each.event for each in reversed(found)]


class EventsContract:
    """An adapter passes all of it or does not ship."""

    async def test_what_is_recorded_is_found(self, make_events: MakeEvents, group: str) -> None:
        """GRID-173"""
        told = an_event(
            group, EventName.ACK, exec_name="calcA", client_id="c", attempt=2, worker_id="w", holder="h", detail="d"
        )
        await make_events().record(told)
        assert await make_events().recent(job_id=None, event=None, group=group, limit=5) == [told]

    async def test_they_are_stored_in_the_order_they_were_told(self, make_events: MakeEvents, group: str) -> None:
        """GRID-174: whether waited for or not"""
        events = make_events()
        order = [EventName.ENQUEUE, EventName.ASSIGN, EventName.TIMEOUT_REQUEUE, EventName.REATTACH]
        for attempt in range(10):
            for name in order:
                await events.tell(an_event(group, name, attempt=attempt))
        await events.record(an_event(group, EventName.ACK, attempt=10))
        assert await names(events, group) == order * 10 + [EventName.ACK]

    async def test_repeats_are_stored_once(self, make_events: MakeEvents, group: str) -> None:
        """GRID-173: from whichever process, by run, attempt and event"""
        both, run_id = (make_events(), make_events()), str(uuid.uuid4())
        for turn in range(4):
            await both[turn % 2].record(an_event(group, EventName.DLQ, run_id=run_id))
            await both[turn % 2].tell(an_event(group, EventName.DLQ, run_id=run_id))
        await both[0].record(an_event(group, EventName.DLQ, run_id=run_id, attempt=2))
        await both[0].record(an_event(group, EventName.CANCEL, run_id=run_id))
        await eventually(lambda: has(both[1], group, [EventName.DLQ, EventName.DLQ, EventName.CANCEL]))

    async def test_what_is_about_no_run_is_never_a_repeat(self, make_events: MakeEvents, group: str) -> None:
        events = make_events()
        for cap in ("4", "8"):
            await events.record(an_event(group, EventName.CAP_SET, run_id=None, job_id=None, detail=cap))
        found = await events.recent(job_id=None, event=None, group=group, limit=5)
        assert [each.detail for each in found] == ["8", "4"]

    async def test_the_newest_come_first_and_only_those_asked_for(self, make_events: MakeEvents, group: str) -> None:
        events = make_events()
        for number in range(4):
            for name in (EventName.ENQUEUE, EventName.ACK):
                await events.record(an_event(group, name, run_id=f"{group}{number}", job_id=f"j{number}", ts=number))
        await events.record(an_event(f"{group}-2", job_id="j1"))
        newest = await events.recent(job_id=None, event="ack", group=group, limit=2)
        assert [(each.event, each.ts) for each in newest] == [(EventName.ACK, 3), (EventName.ACK, 2)]
        of_one = await events.recent(job_id="j1", event=None, group=group, limit=9)
        assert [each.event for each in of_one] == [EventName.ACK, EventName.ENQUEUE]
        assert await events.recent(job_id="j", event=None, group=group, limit=9) == []
        everywhere = await events.recent(job_id="j1", event="enqueue", group=None, limit=9)
        assert {each.group for each in everywhere} >= {group, f"{group}-2"}

    async def test_they_are_counted_by_group(self, make_events: MakeEvents, group: str) -> None:
        events = make_events()
        for number in range(3):
            await events.record(an_event(group, EventName.STALE_RESULT, run_id=f"{group}{number}"))
        await events.record(an_event(group, EventName.ACK))
        await events.record(an_event(f"{group}-2", EventName.STALE_RESULT))
        found = await make_events().counts(EventName.STALE_RESULT)
        assert (found[group], found[f"{group}-2"]) == (3, 1)


async def has(events: Events, group: str, wanted: list[EventName]) -> bool:
    return await names(events, group) == wanted
