"""The wheel history in JetStream: the contract, and what only a bucket can do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from contracts.wheel_history import WheelHistoryContract, add_events, an_event
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.wheel_event import WheelAction, WheelEvent, encode_wheel_event
from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.ports.nats import watch as nats_watch
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.watch import WatchBatch
from pyoco_server.ports.wheel_history import jetstream
from pyoco_server.ports.wheel_history.jetstream import JetStreamWheelHistory
from pyoco_server.ports.wheel_history.port import WheelHistory
from support.faults import open_faulty_link
from support.nats_clients import network_client
from support.servers import NatsServer
from support.waiting import eventually


@pytest.fixture
def store(link: Link, prepared: NatsBackendConfig) -> JetStreamWheelHistory:
    return JetStreamWheelHistory(link, prepared.wheel_history_kv_bucket)


class TestJetStreamWheelHistory(WheelHistoryContract):
    @pytest.fixture
    def history(self, store: JetStreamWheelHistory) -> WheelHistory:
        return store


class TestJetStreamWheelHistoryInSmallWindows(WheelHistoryContract):
    """As a history looks that is longer than what is read at once."""

    @pytest.fixture
    def history(self, store: JetStreamWheelHistory, monkeypatch: pytest.MonkeyPatch) -> WheelHistory:
        monkeypatch.setattr(jetstream, "_WINDOW", 3)
        return store


async def test_an_event_lies_under_its_time_and_its_id(
    store: JetStreamWheelHistory, link: Link, prepared: NatsBackendConfig
) -> None:
    """FLOW-222, FLOW-223: as every NATS client reads it."""
    await store.add(an_event(7))
    theirs = await network_client(link).jetstream().key_value(prepared.wheel_history_kv_bucket)
    [key] = await theirs.keys()
    assert key == "1700000007000_00000000-0000-4000-8000-000000000007"
    assert json.loads((await theirs.get(key)).value or b"") == an_event(7).document()


async def test_an_event_nobody_can_read_is_passed_over_and_logged(
    store: JetStreamWheelHistory, link: Link, prepared: NatsBackendConfig, caplog: pytest.LogCaptureFixture
) -> None:
    await store.add(an_event(1))
    await link.store(f"$KV.{prepared.wheel_history_kv_bucket}.odd", b"not json")
    await link.store(f"$KV.{prepared.wheel_history_kv_bucket}.other", b"{}")
    await store.add(an_event(2))
    assert await store.newest(10) == [an_event(2), an_event(1)]
    assert await store.newest(2) == [an_event(2), an_event(1)]
    assert "unreadable event" in caplog.text


async def test_events_that_were_deleted_or_have_expired_leave_no_hole_in_the_answer(
    store: JetStreamWheelHistory, link: Link, prepared: NatsBackendConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """FLOW-226"""
    events = [an_event(number) for number in range(8)]
    await add_events(store, *events)
    stream = f"KV_{prepared.wheel_history_kv_bucket}"
    await link.api(f"STREAM.PURGE.{stream}", {"seq": 3}, dict[str, Any])  # as the oldest expire
    theirs = await network_client(link).jetstream().key_value(prepared.wheel_history_kv_bucket)
    for number in (6, 7):
        await theirs.delete(f"{1_700_000_000_000 + number * 1000}_{events[number].event_id}")
    assert await store.newest(3) == [events[5], events[4], events[3]]
    assert await store.newest(100) == [events[5], events[4], events[3], events[2]]
    await link.api(f"STREAM.PURGE.{stream}", {}, dict[str, Any])
    assert await store.newest(100) == []
    assert await store.newest(100, wheel_name="a-1-py3-none-any.whl") == []
    assert "unreadable event" not in caplog.text


async def test_no_more_is_asked_than_is_told(store: JetStreamWheelHistory, link: Link) -> None:
    """O(limit) without a filter, and with one no further than the newest that fit."""
    await asyncio.gather(*(store.add(an_event(number)) for number in range(jetstream._WINDOW + 50)))
    asked = link._count
    assert len(await store.newest(5)) == 5
    assert link._count - asked == 6
    asked = link._count
    assert len(await store.newest(5, action=WheelAction.UPLOAD)) == 5
    assert link._count - asked == jetstream._WINDOW + 1


class TestFewAmongMany:
    """Events further back than the newest that are asked for one by one."""

    @pytest.fixture(autouse=True)
    def small_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jetstream, "_WINDOW", 8)

    @pytest.fixture
    async def events(self, store: JetStreamWheelHistory) -> list[WheelEvent]:
        """Each tenth is a deletion, the oldest and the newest among them."""
        up, down = WheelAction.UPLOAD, WheelAction.DELETE
        events = [an_event(number, action=up if number % 10 else down) for number in range(101)]
        await add_events(store, *events)
        return events

    async def test_are_found_newest_first_and_asked_for_in_few_questions(
        self, store: JetStreamWheelHistory, events: list[WheelEvent], link: Link
    ) -> None:
        """FLOW-150"""
        deletions = events[::-10]
        asked = link._count
        assert await store.newest(500, action=WheelAction.DELETE) == deletions
        assert await store.newest(11, action=WheelAction.DELETE) == deletions
        assert await store.newest(3, action=WheelAction.DELETE) == deletions[:3]
        assert await store.newest(5, wheel_name=events[1].wheel_name) == [events[1]]
        assert await store.newest(5, wheel_name="none-1-py3-none-any.whl") == []
        # Each: about the stream, twice, a window one by one, and a consumer.
        assert link._count - asked <= 5 * (8 + 3)

    async def test_are_read_as_they_are_at_the_far_end(
        self,
        store: JetStreamWheelHistory,
        events: list[WheelEvent],
        link: Link,
        prepared: NatsBackendConfig,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Odd ones are passed over; deleted and expired ones are not there."""
        prefix = f"$KV.{prepared.wheel_history_kv_bucket}."
        odd = [b"\xff", b"[" * 5000, b"[]", b'{"action": "delete"}', b'{"action": ["delete"], "wheel_name": {}}']
        for number, data in enumerate(odd):
            await link.store(f"{prefix}odd{number}", data)
        await link.store(f"{prefix}1700000050000_{events[50].event_id}", b"", {"KV-Operation": "DEL"})
        await add_events(store, *(an_event(number) for number in range(201, 211)))
        await link.api(f"STREAM.PURGE.KV_{prepared.wheel_history_kv_bucket}", {"seq": 12}, dict[str, Any])
        left = [event for event in events[::-10] if event not in (events[0], events[10], events[50])]
        assert await store.newest(500, action=WheelAction.DELETE) == left
        assert caplog.text.count("unreadable event") == 4  # the last of them is not even perhaps a deletion

    @pytest.mark.usefixtures("abandoned_consumers_stay")
    async def test_leave_no_consumer_behind(
        self, store: JetStreamWheelHistory, events: list[WheelEvent], link: Link, prepared: NatsBackendConfig
    ) -> None:
        assert await store.newest(1, wheel_name="none-1-py3-none-any.whl") == []

        async def none_left() -> bool:
            info = await link.api(f"STREAM.INFO.KV_{prepared.wheel_history_kv_bucket}", {}, dict[str, Any])
            return not info["state"]["consumer_count"]

        await eventually(none_left)

    async def test_are_not_waited_for_without_end(
        self, store: JetStreamWheelHistory, events: list[WheelEvent], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def silent(*_: object) -> AsyncGenerator[WatchBatch, None]:
            await asyncio.Event().wait()
            yield WatchBatch((), True, "")

        monkeypatch.setattr(jetstream, "watch", silent)
        monkeypatch.setattr(nats_watch, "_WHOLE_SECONDS", 0.1)
        with pytest.raises(Unavailable):
            await store.newest(500, action=WheelAction.DELETE)


@pytest.mark.parametrize("fault", ["before", "after", "unheard"])
async def test_a_write_without_an_answer_adds_the_event_once(
    nats_url: str, prepared: NatsBackendConfig, fault: str
) -> None:
    """FLOW-221"""
    link = await open_faulty_link(nats_url)
    store = JetStreamWheelHistory(link, prepared.wheel_history_kv_bucket)
    link.faults.append(fault)
    await store.add(an_event(1))
    assert await store.newest(10) == [an_event(1)]
    await link.close()


async def test_two_events_do_not_take_each_others_place(store: JetStreamWheelHistory) -> None:
    await store.add(an_event(1))
    with pytest.raises(NotStored):
        await store.add(an_event(1, "another"))
    assert await store.newest(10) == [an_event(1)]


class TestOutages:
    @pytest.fixture
    async def own_link(self, own_nats_server: NatsServer) -> AsyncIterator[Link]:
        link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.2, unanswered_seconds=0.2))
        yield link
        await link.close()

    async def test_a_server_that_is_away_is_unavailable(self, own_link: Link, own_nats_server: NatsServer) -> None:
        """FLOW-227: the caller decides what a failed event means."""
        store = JetStreamWheelHistory(own_link, "history")
        own_nats_server.kill()
        with pytest.raises(Unavailable):
            await store.add(an_event(1))
        with pytest.raises(Unavailable):
            await store.newest(1)

    async def test_a_bucket_that_is_not_there_is_unavailable(self, own_link: Link) -> None:
        store = JetStreamWheelHistory(own_link, "history")
        with pytest.raises(Unavailable):
            await store.add(an_event(1))
        with pytest.raises(Unavailable):
            await store.newest(1)


def test_a_stored_event_is_small() -> None:
    """A page of 500 stays far below a megabyte."""
    assert len(encode_wheel_event(an_event(1))) < 1000
