"""Watching a run: resume after a lost connection, and changes while the watch starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pyoco_server.actions.watch import NOTHING_LEFT, Watch, Watching, watch
from pyoco_server.core.run import Caller
from pyoco_server.errors import RunNotFound
from support.faulty_ports import Trouble, with_trouble
from support.waiting import eventually
from support.watch_places import Place, place, rest, take, told

__all__ = ["place"]


class TestResume:
    async def test_since_leaves_out_what_is_known(self, place: Place) -> None:
        """FLOW-118: only what is strictly newer"""
        await place.claim()  # updated_at is 10.0
        for since, comes in ((9.9, True), (10.0, False), (10.1, False)):
            watching = await place.watch(since=since, timeout_seconds=0.1)
            assert bool(await rest(watching)) == comes, since
            watching.close()

    async def test_a_change_after_it_is_told(self, place: Place) -> None:
        """FLOW-118, FLOW-123"""
        watching = await place.watch(since=1.0)
        taken = await place.claim()
        assert await told(watching) == ("snapshot", "RUNNING", taken.revision)
        watching.close()

    async def test_since_the_end_there_is_nothing(self, place: Place) -> None:
        """FLOW-118, FLOW-125: and it is over at once"""
        await place.claim()
        await place.end(30.0)
        watching = await place.watch(since=30.0)
        assert await take(watching) is None
        watching.close()

    async def test_a_clock_that_was_ahead_does_not_hide_the_end(self, place: Place) -> None:
        """FLOW-118, FLOW-124: the gateway asked to cancel at 40, the worker's clock says that it ended at 30"""
        await place.claim()
        end = await place.end(30.0)
        watching = await place.watch(since=40.0, heartbeat_seconds=0.2)
        assert await told(watching) == ("heartbeat", "COMPLETED", end.revision)
        assert await take(watching) is None
        watching.close()

    async def test_the_last_event_s_id_leaves_out_exactly_that_event(self, place: Place) -> None:
        taken = await place.claim()
        for last, comes in ((taken.revision, False), (taken.revision - 1, True), (taken.revision + 1, True)):
            watching = await place.watch(last_revision=last, timeout_seconds=0.1)
            assert bool(await rest(watching)) == comes, last
            watching.close()

    async def test_the_id_says_more_than_since(self, place: Place) -> None:
        """A browser repeats the address with its old `since`; and clocks differ, revisions do not."""
        taken = await place.claim()
        watching = await place.watch(last_revision=taken.revision, since=0.0, timeout_seconds=0.1)
        assert await rest(watching) == []
        watching.close()
        watching = await place.watch(last_revision=taken.revision - 1, since=99.0, timeout_seconds=0.1)
        assert len(await rest(watching)) == 1
        watching.close()

    async def test_an_id_of_another_store_is_no_id(self, place: Place) -> None:
        watching = await place.watch(last_revision=10**9, since=1.0, timeout_seconds=0.1)
        assert await rest(watching) == []
        watching.close()

    async def test_whoever_has_the_end_has_nothing_left(self, place: Place) -> None:
        await place.claim()
        end = await place.end()
        ask = Watch(run_id=place.run_id, last_revision=end.revision)
        assert await watch(place.backend, Caller(), place.hub, ask) is NOTHING_LEFT
        ask = Watch(run_id=place.run_id, last_revision=end.revision - 1)
        watching = await watch(place.backend, Caller(), place.hub, ask)
        assert isinstance(watching, Watching)
        assert len(await rest(watching)) == 1
        watching.close()


class TestRaces:
    async def _between(self, place: Place, before: Callable[[], Awaitable[Any]] | None, trouble: Trouble) -> Watching:
        """A watch, while whose reading something happens: before the leader is asked, or before it has answered."""
        backend = with_trouble(place.backend, trouble, "runs")
        real = backend.runs.find

        async def find(run_id: str) -> Any:
            if before is not None:
                await before()
            return await real(run_id)

        object.__setattr__(backend, "runs", type("Runs", (), {"find": staticmethod(find)})())
        return await place.watch(backend)

    async def test_a_change_before_the_leader_is_asked_is_told_once(self, place: Place) -> None:
        async def happen() -> None:
            await place.told(await place.claim())

        watching = await self._between(place, happen, Trouble())
        assert (await told(watching))[1] == "RUNNING"
        with pytest.raises(TimeoutError):
            await take(watching, 0.2)
        watching.close()

    async def test_a_change_before_the_leader_s_answer_is_told_once(self, place: Place) -> None:
        """The answer is older than what the feed has told by then: it is passed over."""

        async def happen() -> None:
            await place.told(await place.claim())

        watching = await self._between(place, None, Trouble(meanwhile={"runs.find": happen}))
        assert (await told(watching))[1] == "RUNNING"
        with pytest.raises(TimeoutError):
            await take(watching, 0.2)
        watching.close()

    async def test_an_answer_newer_than_the_feed_is_told_once(self, place: Place) -> None:
        """The feed reports it later."""
        place.hold_feed()
        taken = await place.claim()
        watching = await place.watch()
        assert await told(watching) == ("snapshot", "RUNNING", taken.revision)
        await eventually(lambda: place.held > 0)
        place.let_feed_go()
        with pytest.raises(TimeoutError):
            await take(watching, 0.2)
        watching.close()

    async def test_a_run_removed_before_the_leader_s_answer_is_not_found(self, place: Place) -> None:
        async def happen() -> None:
            with place.hub.follow(place.run_id) as follower:
                assert await place.backend.runs.withdraw(place.run_id, 1)
                await eventually(lambda: follower.is_over)

        assert await place.backend.index.applied(1, 60)  # of its beginning the feed has told already
        with pytest.raises(RunNotFound):
            await self._between(place, None, Trouble(meanwhile={"runs.find": happen}))

    async def test_many_changes_around_the_beginning_never_go_back(self, place: Place) -> None:
        await place.claim()
        stop = asyncio.Event()

        async def change() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                await place.report(str(n))
            await place.end()

        async def look() -> None:
            watching = await place.watch()
            revisions = [event.version.stored.revision for event in await rest(watching)]
            assert revisions == sorted(set(revisions))
            ends = await place.backend.runs.find(place.run_id)
            assert revisions[-1] == ends.revision
            watching.close()

        changing = asyncio.create_task(change())
        looking = []
        for _ in range(30):
            looking.append(asyncio.create_task(look()))
            await asyncio.sleep(0.005)
        stop.set()
        await asyncio.gather(changing, *looking)
