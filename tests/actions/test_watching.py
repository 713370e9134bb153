"""Watching one run, on a real store: which events are sent, when, and when the watch ends."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import closing
from dataclasses import replace

import pytest

from pyoco_server.actions.watch import Watch, Watching, watch
from pyoco_server.core.api_key import make_key
from pyoco_server.core.run import Caller
from pyoco_server.errors import RunNotFound, TooManyWatchers, Unavailable
from support.faulty_ports import BEFORE, Trouble, with_trouble
from support.watch_places import Place, place, rest, take, told

__all__ = ["place"]

pytestmark = pytest.mark.virtual_time


class TestEvents:
    async def test_first_what_is_then_every_change_then_the_end(self, place: Place) -> None:
        """FLOW-122, FLOW-123, FLOW-125"""
        watching = await place.watch()
        assert await told(watching) == ("snapshot", "PENDING", 1)
        taken = await place.claim()
        assert await told(watching) == ("snapshot", "RUNNING", taken.revision)
        more = await place.report("RUNNING")
        assert await told(watching) == ("snapshot", "RUNNING", more.revision)
        end = await place.end()
        assert await told(watching) == ("snapshot", "COMPLETED", end.revision)
        assert await take(watching) is None
        assert await take(watching) is None
        watching.close()

    async def test_a_run_that_has_ended_is_shown_once(self, place: Place) -> None:
        """FLOW-122, FLOW-125"""
        await place.claim()
        await place.end()
        watching = await place.watch()
        assert [(event.kind, event.version.stored.run.status) for event in await rest(watching)] == [
            ("snapshot", "COMPLETED")
        ]
        watching.close()

    async def test_changes_in_a_burst_are_merged_and_the_last_one_is_told(self, place: Place) -> None:
        """FLOW-123"""
        watching = await place.watch()
        await told(watching)
        await place.claim()
        for n in range(50):
            stored = await place.report(str(n))
        await place.told(stored)
        assert await told(watching) == ("snapshot", "RUNNING", stored.revision)
        with pytest.raises(TimeoutError):
            await take(watching, 0.1)
        watching.close()

    @pytest.mark.virtual_time
    async def test_a_heartbeat_of_the_run_waits_for_the_heartbeat_of_the_stream(self, place: Place) -> None:
        """FLOW-123, FLOW-124: no event of its own, but its instants are in the next one"""
        await place.claim()
        with closing(await place.watch(heartbeat_seconds=0.4)) as watching:
            assert (await told(watching))[0] == "snapshot"
            began = time.monotonic()
            await place.told(await place.beat(78.0))
            event = await take(watching)
            assert event is not None
            assert event.kind == "heartbeat"
            assert time.monotonic() - began > 0.3
            assert event.version.stored.run.heartbeat_at == event.version.stored.run.updated_at == 78.0

    @pytest.mark.virtual_time
    async def test_fields_of_a_newer_version_are_shown_and_are_no_news(self, place: Place) -> None:
        """FLOW-123, FLOW-551: what the feed tells is what the first read told."""
        await place.change(lambda run: replace(run, extra={"priority": 5}))
        with closing(await place.watch(heartbeat_seconds=0.5)) as watching:
            assert (await told(watching))[0] == "snapshot"
            beaten = await place.beat(26.0)
            event = await take(watching)
            assert event is not None
            assert (event.kind, event.version.stored.revision) == ("heartbeat", beaten.revision)
            assert event.version.stored.run.extra == {"priority": 5}
            changed = await place.change(lambda run: replace(run, extra={"priority": 6}))
            assert await told(watching) == ("snapshot", "PENDING", changed.revision)

    @pytest.mark.virtual_time
    async def test_heartbeats_come_in_silence_only_and_again_and_again(self, place: Place) -> None:
        """FLOW-124"""
        await place.claim()
        with closing(await place.watch(heartbeat_seconds=0.3)) as watching:
            assert (await told(watching))[0] == "snapshot"
            for n in range(4):  # longer than a heartbeat, never silent for so long
                await asyncio.sleep(0.15)
                await place.report(f"{n} of 1")
                assert (await told(watching))[0] == "snapshot"
            for _ in range(2):
                began = time.monotonic()
                assert (await told(watching))[0] == "heartbeat"
                assert time.monotonic() - began > 0.25

    async def test_it_ends_after_its_time(self, place: Place) -> None:
        """FLOW-119"""
        began = time.monotonic()
        watching = await place.watch(timeout_seconds=0.3)
        assert len(await rest(watching)) == 1  # and not after a heartbeat
        assert time.monotonic() - began > 0.29
        watching.close()

    async def test_it_ends_when_the_run_is_no_longer_stored(self, place: Place) -> None:
        """FLOW-128"""
        watching = await place.watch()
        await told(watching)
        assert await place.backend.runs.withdraw(place.run_id, 1)
        assert await take(watching) is None
        watching.close()

    async def test_what_was_not_told_yet_is_told_before_the_end(self, place: Place) -> None:
        """The feed breaks off right after the last version: that version still comes."""
        watching = await place.watch()
        await told(watching)
        await place.claim()
        await place.told(await place.end())
        place.hub.break_off()
        assert (await told(watching))[1] == "COMPLETED"
        assert await take(watching) is None
        watching.close()

    async def test_closing_it_ends_who_waits(self, place: Place) -> None:
        watching = await place.watch()
        await told(watching)
        waiting = asyncio.create_task(take(watching))
        await asyncio.sleep(0)
        watching.close()
        assert await waiting is None


class TestRefusals:
    async def test_an_unknown_run_is_not_found_and_takes_no_place(self, place: Place) -> None:
        """FLOW-126"""
        for run_id in (str(uuid.uuid4()), "nonsense", ""):
            with pytest.raises(RunNotFound):
                await watch(place.backend, Caller(), place.hub, Watch(run_id=run_id))
        assert place.hub.count == 0

    async def test_another_tenant_s_run_is_not_found(self, place: Place) -> None:
        """FLOW-273"""
        with pytest.raises(RunNotFound):
            await watch(place.backend, Caller("team-b", "key-b"), place.hub, Watch(run_id=place.run_id))
        assert place.hub.count == 0

    async def test_an_outage_takes_no_place(self, place: Place) -> None:
        """FLOW-126"""
        backend = with_trouble(place.backend, Trouble(plan={"runs.find": [BEFORE]}), "runs")
        with pytest.raises(Unavailable):
            await place.watch(backend)
        assert place.hub.count == 0

    async def test_there_is_an_end_to_places(self, place: Place) -> None:
        place.hub._followers_max = 1
        watching = await place.watch()
        with pytest.raises(TooManyWatchers):
            await place.watch()
        watching.close()
        (await place.watch()).close()

    async def test_a_cancelled_reader_takes_no_place(self, place: Place) -> None:
        asked = asyncio.Event()

        async def hang() -> None:
            asked.set()
            await asyncio.Event().wait()

        backend = with_trouble(place.backend, Trouble(meanwhile={"runs.find": hang}), "runs")
        reading = asyncio.create_task(place.watch(backend))
        await asked.wait()
        reading.cancel()
        await asyncio.wait({reading})
        assert place.hub.count == 0


class TestWhileItLasts:
    async def test_a_revoked_key_sees_nothing_more(self, place: Place) -> None:
        _, record = make_key("team-a", "", 1.0, lambda _: "0123456789abcdef", lambda _: "x" * 43)
        await place.backend.keys.add(record)
        watching = await watch(place.backend, record.caller, place.hub, Watch(run_id=place.run_id))
        assert isinstance(watching, Watching)
        assert (await told(watching))[1] == "PENDING"
        await place.claim()
        assert (await told(watching))[1] == "RUNNING"
        await place.backend.keys.revoke(record.key_id, 2.0)
        await place.report("RUNNING")
        assert await take(watching) is None
        watching.close()

    @pytest.mark.virtual_time
    async def test_a_key_that_expires_sees_nothing_more(self, place: Place) -> None:
        now, key_id = time.time(), f"{1:016x}"
        expires_at = now + 0.5
        _, record = make_key("team-a", "", now, lambda _: key_id, lambda _: "x" * 43, expires_at=expires_at)
        await place.backend.keys.add(record)
        ask = Watch(run_id=place.run_id, heartbeat_seconds=0.2)
        watching = await watch(place.backend, record.caller, place.hub, ask)
        assert isinstance(watching, Watching)
        with closing(watching):
            assert len(await rest(watching)) in {2, 3}  # the first one, and heartbeats for half a second

    async def test_while_the_feed_is_behind_the_leader_is_asked_at_each_heartbeat(self, place: Place) -> None:
        """An index that is being made, or cannot be written, holds the feed up: a watcher must not take that for a
        run that stands still."""
        watching = await place.watch(heartbeat_seconds=0.2)
        await told(watching)
        place.hold_feed()
        place.hub.is_current = False
        taken = await place.claim()
        while (heard := await told(watching))[1] == "PENDING":  # a heartbeat of before: the machine is busy
            assert heard[0] == "heartbeat"
        assert heard == ("snapshot", "RUNNING", taken.revision)
        assert (await told(watching))[0] == "heartbeat"
        watching.close()

    async def test_while_the_feed_is_current_the_leader_is_left_alone(self, place: Place) -> None:
        trouble = Trouble()
        watching = await place.watch(with_trouble(place.backend, trouble, "runs"), heartbeat_seconds=0.05)
        assert [(await told(watching))[0] for _ in range(3)] == ["snapshot", "heartbeat", "heartbeat"]
        assert trouble.calls == ["runs.find"]
        watching.close()

    async def test_an_outage_found_at_a_heartbeat_ends_it(self, place: Place) -> None:
        """FLOW-128"""
        backend = with_trouble(place.backend, Trouble(plan={"runs.find": ["", BEFORE]}), "runs")
        watching = await place.watch(backend, heartbeat_seconds=0.1)
        await told(watching)
        place.hub.is_current = False
        assert await take(watching) is None
        watching.close()
