"""The hub: one feed in, any number of followers out, and nothing that grows."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from pyoco_server.actions.watch import RunVersion
from pyoco_server.core.flow_moves import accept, beat, claim
from pyoco_server.core.outcome import Progress
from pyoco_server.core.run import Caller, Owner, Run, Submission
from pyoco_server.errors import TooManyWatchers
from pyoco_server.loops.hub import Follower, Hub, Lookout
from pyoco_server.ports.runs.port import Changes, Removed, Stored
from support.waiting import eventually


def a_run(run_id: str = "a", **params: Any) -> Run:
    return accept(Submission(flow_name="f", tag="t", tags=(), params=params), Caller(), run_id, 1.0)


def feed(hub: Hub, *items: Stored | Removed, epoch: str = "one") -> None:
    hub.on_changes(Changes(items, caught_up=True, epoch=epoch))


def progress(revision: int, run_id: str = "a") -> Stored:
    """A run in whose revisions something new is to be seen each time."""
    return Stored(beat(a_run(run_id), Progress(tasks={"n": str(revision)}), float(revision)), revision)


def revision_of(follower: Follower) -> int:
    assert follower.version is not None
    return follower.version.stored.revision


def words_alive() -> int:
    gc.collect()
    return sum(isinstance(each, RunVersion) for each in gc.get_objects())


async def wakes(follower: Follower) -> bool:
    """Whether it is woken. If not, the wait is short."""
    loop, is_left = asyncio.get_running_loop(), False

    def leave() -> None:
        nonlocal is_left
        if follower._waiter is not None and not follower._waiter.done():
            is_left = True
            follower.wake()

    timer = loop.call_later(0.05, leave)
    await follower.wait(loop.time() + 600)
    timer.cancel()
    return not is_left


class TestFeed:
    async def test_a_change_reaches_all_who_follow_the_run_and_nobody_else(self) -> None:
        hub = Hub()
        with hub.follow("a") as one, hub.follow("a") as two, hub.follow("b") as other:
            waiting = [asyncio.create_task(wakes(each)) for each in (one, two, other)]
            await asyncio.sleep(0)
            feed(hub, progress(3))
            assert [await each for each in waiting] == [True, True, False]
            assert one.version is two.version
            assert revision_of(one) == 3
            assert other.version is None

    async def test_whoever_is_slow_finds_the_latest_word_and_no_queue(self) -> None:
        """FLOW-123: merged, and the last one is there; memory does not grow with the changes"""
        hub = Hub()
        before = words_alive()
        with hub.follow("a") as follower:
            for revision in range(1, 2001):
                feed(hub, progress(revision))
            assert revision_of(follower) == 2000
            assert words_alive() == before + 1
        del follower
        assert words_alive() == before

    async def test_a_change_while_nobody_waits_is_seen_by_who_looks(self) -> None:
        hub = Hub()
        with hub.follow("a") as follower:
            feed(hub, progress(1))
            feed(hub, progress(2))
            assert revision_of(follower) == 2

    async def test_a_word_never_goes_back(self) -> None:
        """A feed that resumes begins a little earlier, and a reader may be faster than the feed."""
        hub = Hub()
        with hub.follow("a") as follower:
            follower.offer(progress(7))
            feed(hub, progress(5), progress(6), progress(7))
            assert revision_of(follower) == 7
            follower.offer(progress(3))
            assert revision_of(follower) == 7
            feed(hub, Removed("a", 6))
            assert not follower.is_over
            feed(hub, progress(8))
            assert revision_of(follower) == 8

    async def test_a_mere_heartbeat_wakes_nobody_but_is_kept(self) -> None:
        """FLOW-123"""
        hub = Hub()
        running = claim(a_run(), Owner("anna", "1"), "attempt", 2.0)
        with hub.follow("a") as follower:
            feed(hub, Stored(running, 4))
            waiting = asyncio.create_task(wakes(follower))
            await asyncio.sleep(0)
            feed(hub, Stored(beat(running, Progress(), 9.0), 5))
            assert not await waiting
            assert follower.version is not None
            assert (follower.version.content, follower.version.stored.revision) == (4, 5)
            assert follower.version.stored.run.heartbeat_at == 9.0
            feed(hub, Stored(beat(running, Progress(tasks={"a": "RUNNING"}), 10.0), 6))
            assert follower.version.content == 6

    @pytest.mark.parametrize("field", ["status", "tasks", "task_records", "error", "worker_id", "cancel_reason"])
    async def test_whatever_else_changes_is_told(self, field: str) -> None:
        """FLOW-123"""
        hub = Hub()
        run = a_run()
        other = object.__new__(Run)
        other.__dict__.update(run.__dict__ | {field: "something else", "updated_at": 5.0})
        with hub.follow("a") as follower:
            feed(hub, Stored(run, 1))
            waiting = asyncio.create_task(wakes(follower))
            await asyncio.sleep(0)
            feed(hub, Stored(other, 2))
            assert await waiting

    async def test_values_nested_too_deep_to_compare_do_not_hurt_the_feed(self) -> None:
        def deep() -> Any:
            value: Any = []
            for _ in range(100_000):
                value = [value]
            return value

        hub = Hub()
        with hub.follow("a") as follower:
            feed(hub, Stored(a_run(deep=deep()), 1))
            feed(hub, Stored(a_run(deep=deep()), 2))
            assert follower.version is not None
            assert follower.version.content == 2


class TestEnds:
    async def test_a_run_that_is_removed_ends_its_followers(self) -> None:
        """FLOW-128"""
        hub = Hub()
        over: list[str] = []
        with hub.follow("a") as follower, hub.follow("b") as other:
            follower.on_over = lambda: over.append("a")
            other.on_over = lambda: over.append("b")
            feed(hub, progress(1))
            waiting = asyncio.create_task(wakes(follower))
            await asyncio.sleep(0)
            feed(hub, Removed("a", 2))
            assert await waiting
            assert follower.is_over
            assert not other.is_over
            assert over == ["a"]

    async def test_a_removal_that_comes_late_does_not_end_who_knows_better(self) -> None:
        hub = Hub()
        with hub.follow("a") as follower:
            feed(hub, Removed("a", 5))
            was_over = follower.is_over
            follower.offer(progress(8))
            assert (was_over, follower.is_over) == (True, False)

    async def test_breaking_off_ends_everybody_and_new_ones_may_follow(self) -> None:
        """FLOW-128"""
        hub = Hub()
        with hub.follow("a") as one, hub.follow("b") as two:
            waiting = [asyncio.create_task(wakes(each)) for each in (one, two)]
            await asyncio.sleep(0)
            hub.break_off()
            assert [await each for each in waiting] == [True, True]
            assert one.is_over
            assert two.is_over
            with hub.follow("a") as fresh:
                feed(hub, progress(1))
                assert not fresh.is_over
                assert revision_of(fresh) == 1
                assert one.version is None
        assert hub.count == 0

    async def test_another_store_breaks_off_but_the_first_one_does_not(self) -> None:
        hub = Hub()
        with hub.follow("a") as early:
            feed(hub, progress(1), epoch="one")
            feed(hub, epoch="one")
            with hub.follow("b") as late:
                before = [early.is_over, late.is_over]
                feed(hub, progress(1, "b"), epoch="two")
                assert (before, [early.is_over, late.is_over]) == ([False, False], [True, True])
                assert late.version is None, "what the new store says is not for those of the old one"
            with hub.follow("b") as fresh:
                feed(hub, progress(1, "b"), epoch="two")
                assert revision_of(fresh) == 1

    async def test_a_closed_hub_gives_places_where_nothing_happens(self) -> None:
        hub = Hub()
        with hub.follow("a") as before:
            hub.close()
            hub.close()
            assert before.is_over
            with hub.follow("a") as follower:
                assert follower.is_over
                follower.offer(progress(2))
                assert revision_of(follower) == 2
                assert follower.is_over

    async def test_a_follower_that_closes_while_it_waits_wakes(self) -> None:
        hub = Hub()
        follower = hub.follow("a")
        waiting = asyncio.create_task(wakes(follower))
        await asyncio.sleep(0)
        follower.close()
        follower.close()
        assert await waiting
        assert follower.is_over
        assert hub.count == 0

    async def test_who_closes_itself_is_not_told_that_it_is_over(self) -> None:
        hub = Hub()
        told: list[bool] = []
        follower = hub.follow("a")
        follower.on_over = lambda: told.append(True)
        follower.close()
        hub.break_off()
        assert told == []

    @pytest.mark.parametrize("end", ["break_off", "close", "removed", "epoch"])
    async def test_one_watchers_trouble_keeps_nobody_else_in_the_dark(
        self, end: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """And it does not reach the feed."""

        def trouble() -> None:
            raise RuntimeError("Cannot change state of expiring Timeout")

        hub = Hub()
        feed(hub)
        told: list[int] = []
        followers = [hub.follow("a") for _ in range(9)]
        for number, follower in enumerate(followers):
            follower.on_over = trouble if number % 2 else partial(told.append, number)
        ends: dict[str, Callable[[], None]] = {
            "break_off": hub.break_off,
            "close": hub.close,
            "removed": lambda: feed(hub, Removed("a", 1)),
            "epoch": lambda: feed(hub, epoch="two"),
        }
        ends[end]()
        assert sorted(told) == [0, 2, 4, 6, 8]
        assert all(follower.is_over for follower in followers)
        assert caplog.text.count("could not notify a watcher") == 4
        for follower in followers:
            follower.close()


class TestBounds:
    async def test_there_are_so_many_places_and_no_more(self) -> None:
        hub = Hub(followers_max=3)
        places = [hub.follow(name) for name in "aab"]
        with pytest.raises(TooManyWatchers):
            hub.follow("c")
        places[0].close()
        hub.follow("c").close()
        hub.break_off()  # those who were broken off hold their place until they have gone
        assert hub.count == 2

    async def test_nothing_is_kept_of_runs_that_nobody_watches(self) -> None:
        hub = Hub()
        before = words_alive()
        hub.follow("a").close()
        feed(hub, *(progress(n, f"run-{n}") for n in range(1, 1000)), progress(1000))
        assert hub._topics == {}
        assert words_alive() == before

    @pytest.mark.parametrize("seed", range(3))
    async def test_many_come_and_go_at_random_and_nothing_is_left(self, seed: int) -> None:
        chance = random.Random(seed)
        hub = Hub()
        revisions = iter(range(1, 10**6))

        async def watcher() -> None:
            for _ in range(30):
                seen = 0
                with hub.follow(chance.choice("abc")) as follower:
                    for _ in range(chance.randrange(5)):
                        await follower.wait(asyncio.get_running_loop().time() + chance.random() / 200)
                        if follower.version is not None:
                            assert revision_of(follower) >= seen
                            seen = revision_of(follower)

        async def feeder() -> None:
            while True:
                name = chance.choice("abcd")
                if chance.random() < 0.02:
                    hub.break_off()
                feed(hub, Removed(name, next(revisions)) if chance.random() < 0.1 else progress(next(revisions), name))
                await asyncio.sleep(0)

        feeding = asyncio.create_task(feeder())
        await asyncio.gather(*(watcher() for _ in range(50)))
        feeding.cancel()
        assert hub.count == 0
        assert hub._topics == {}


class TestLookout:
    class Facts:
        up, fed, stopping = True, True, False

    def _lookout(self, hub: Hub, facts: Facts) -> Lookout:
        async def is_fed(seconds: float) -> bool:
            assert seconds == 0, "a look never waits"
            return facts.fed

        return Lookout(hub, lambda: facts.up, is_fed, lambda: facts.stopping)

    async def test_without_nats_streams_end_and_with_it_they_go_on(self) -> None:
        """FLOW-128"""
        hub, facts = Hub(), self.Facts()
        lookout = self._lookout(hub, facts)
        with hub.follow("a") as follower:
            await lookout.turn()
            before = follower.is_over
            facts.up = False
            await lookout.turn()
            assert (before, follower.is_over) == (False, True)
        facts.up = True
        await lookout.turn()
        with hub.follow("a") as follower:
            assert not follower.is_over

    async def test_a_server_that_stops_closes_the_hub(self) -> None:
        hub, facts = Hub(), self.Facts()
        facts.stopping = True
        await self._lookout(hub, facts).turn()
        with hub.follow("a") as follower:
            assert follower.is_over

    async def test_followers_know_whether_the_feed_has_caught_up(self) -> None:
        hub, facts = Hub(), self.Facts()
        lookout = self._lookout(hub, facts)
        with hub.follow("a") as follower:
            seen = [follower.is_current]  # not read yet
            for fed in (True, False, True):
                facts.fed = fed
                await lookout.turn()
                seen.append(follower.is_current)
            assert seen == [False, True, False, True]

    async def test_it_looks_again_and_again(self) -> None:
        hub, facts = Hub(), self.Facts()
        lookout = self._lookout(hub, facts)
        await lookout.start()
        with hub.follow("a") as follower:
            facts.up = False
            await eventually(lambda: follower.is_over)
        await lookout.stop()


def test_words_are_compared_by_identity() -> None:
    """They are keys of a weak dictionary: two of the same content must not be taken for one."""
    words: Iterable[RunVersion] = [RunVersion(progress(1), 1), RunVersion(progress(1), 1)]
    assert len(set(words)) == 2
