"""Watching one run, on a real store: what is told, when, and when it is over."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server import wiring
from pyoco_server.actions.watch import NOTHING_LEFT, Event, Watch, Watching, watch
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.core.run import Caller, Run, accept, beat, claim, conclude
from pyoco_server.errors import RunNotFound, TooManyWatchers, Unavailable
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.loops.hub import Hub
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.runs.port import Changes, Stored
from support.backends import ANNA, a_submission
from support.faulty_ports import BEFORE, Trouble, with_trouble
from support.unhurried import unhurried
from support.waiting import eventually

ALICE = Caller("team-a", "key-a")


class Place:
    """A gateway's backend with a fed hub, and one run to watch."""

    def __init__(self, backend: GatewayBackend) -> None:
        self.backend, self.hub, self.run_id = backend, Hub(), str(uuid.uuid4())
        self._held: list[Changes] | None = None

    def feed(self, changes: Changes) -> None:
        if self._held is None:
            self.hub.on_changes(changes)
        else:
            self._held.append(changes)

    def hold_feed(self) -> None:
        """Changes arrive, and reach nobody until they are let go."""
        self._held = []

    def let_feed_go(self) -> None:
        held, self._held = self._held or [], None
        for changes in held:
            self.hub.on_changes(changes)

    @property
    def held(self) -> int:
        return len(self._held or ())

    async def change(self, how: Callable[[Run], Run]) -> Stored:
        found = await self.backend.runs.find(self.run_id)
        assert isinstance(found, Stored)
        written = await self.backend.runs.replace(how(found.run), found.revision)
        assert isinstance(written, Stored)
        return written

    async def claim(self) -> Stored:
        return await self.change(lambda run: claim(run, ANNA, "attempt", 10.0))

    async def report(self, task_state: str, now: float = 20.0) -> Stored:
        return await self.change(lambda run: beat(run, Progress(tasks={"a": task_state}), now))

    async def beat(self, now: float) -> Stored:
        return await self.change(lambda run: beat(run, Progress(), now))

    async def end(self, now: float = 30.0) -> Stored:
        return await self.change(lambda run: conclude(run, Completed(progress=Progress()), now))

    async def told(self, stored: Stored) -> None:
        """Returns once the feed has told somebody who follows the run of this revision."""
        with self.hub.follow(self.run_id) as follower:
            await eventually(lambda: follower.word is not None and follower.word.stored.revision >= stored.revision)

    async def watch(self, backend: GatewayBackend | None = None, **asked: Any) -> Watching:
        ask = Watch(run_id=self.run_id, **{"timeout_seconds": 280.0, "heartbeat_seconds": 250.0, **asked})
        watching = await watch(backend or self.backend, Caller(), self.hub, ask)
        assert isinstance(watching, Watching)
        return watching


@pytest.fixture
async def place(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[Place]:
    async with wiring.open_gateway_backend(replace(config, data_dir=str(tmp_path))) as backend:
        place = Place(backend)
        feeder = IndexFeeder(backend.runs, backend.index, place.feed)
        await feeder.start()
        assert await feeder.caught_up(60)
        place.hub.is_current = True
        assert isinstance(await backend.runs.create(accept(a_submission(), ALICE, place.run_id, 1.0)), Stored)
        yield place
        await feeder.stop()
    assert place.hub.count == 0, "a place at the hub was not given back"


async def take(watching: Watching, seconds: float = 60.0) -> Event | None:
    async with asyncio.timeout(seconds):
        return await watching.next()


async def told(watching: Watching) -> tuple[str, str, int]:
    """The next event: its kind, the status and the revision it shows."""
    event = await take(watching)
    assert event is not None
    return str(event.kind), str(event.word.stored.run.status), event.word.stored.revision


async def rest(watching: Watching) -> list[Event]:
    found = []
    while (event := await take(watching)) is not None:
        found.append(event)
    return found


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
        assert [(event.kind, event.word.stored.run.status) for event in await rest(watching)] == [
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

    async def test_a_heartbeat_of_the_run_waits_for_the_heartbeat_of_the_stream(self, place: Place) -> None:
        """FLOW-123, FLOW-124: no event of its own, but its instants are in the next one"""
        await place.claim()

        async def scene(scale: float) -> None:
            with closing(await place.watch(heartbeat_seconds=0.4 * scale)) as watching:
                assert (await told(watching))[0] == "snapshot"
                began = time.monotonic()
                await place.told(await place.beat(77.0 + scale))
                event = await take(watching)
                assert event is not None
                assert event.kind == "heartbeat"
                assert time.monotonic() - began > 0.3 * scale
                assert event.word.stored.run.heartbeat_at == event.word.stored.run.updated_at == 77.0 + scale

        await unhurried(scene)

    async def test_fields_of_a_newer_version_are_shown_and_are_no_news(self, place: Place) -> None:
        """FLOW-123, FLOW-551: what the feed tells is what the first read told."""

        async def scene(scale: float) -> None:
            await place.change(lambda run: replace(run, extra={"priority": 5}))
            with closing(await place.watch(heartbeat_seconds=0.5 * scale)) as watching:
                assert (await told(watching))[0] == "snapshot"
                beaten = await place.beat(25.0 + scale)
                event = await take(watching)
                assert event is not None
                assert (event.kind, event.word.stored.revision) == ("heartbeat", beaten.revision)
                assert event.word.stored.run.extra == {"priority": 5}
                changed = await place.change(lambda run: replace(run, extra={"priority": 6}))
                assert await told(watching) == ("snapshot", "PENDING", changed.revision)

        await unhurried(scene)

    async def test_heartbeats_come_in_silence_only_and_again_and_again(self, place: Place) -> None:
        """FLOW-124"""
        await place.claim()

        async def scene(scale: float) -> None:
            with closing(await place.watch(heartbeat_seconds=0.3 * scale)) as watching:
                assert (await told(watching))[0] == "snapshot"
                for n in range(4):  # longer than a heartbeat, never silent for so long
                    await asyncio.sleep(0.15 * scale)
                    await place.report(f"{n} of {scale}")
                    assert (await told(watching))[0] == "snapshot"
                for _ in range(2):
                    began = time.monotonic()
                    assert (await told(watching))[0] == "heartbeat"
                    assert time.monotonic() - began > 0.25 * scale

        await unhurried(scene)

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
        """The feed breaks off right after the last word: that word still comes."""
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
        """The feed tells of it later."""
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
            revisions = [event.word.stored.revision for event in await rest(watching)]
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

    async def test_a_key_that_expires_sees_nothing_more(self, place: Place) -> None:
        async def scene(scale: float) -> None:
            now, key_id = time.time(), f"{int(scale):016x}"
            expires_at = now + 0.5 * scale
            _, record = make_key("team-a", "", now, lambda _: key_id, lambda _: "x" * 43, expires_at=expires_at)
            await place.backend.keys.add(record)
            ask = Watch(run_id=place.run_id, heartbeat_seconds=0.2 * scale)
            watching = await watch(place.backend, record.caller, place.hub, ask)
            assert isinstance(watching, Watching)
            with closing(watching):
                assert len(await rest(watching)) in {2, 3}  # the first one, and heartbeats for half a second

        await unhurried(scene)

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
