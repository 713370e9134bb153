"""The queue of programs in JetStream: the contract, and what the server says that may mean several things."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from contracts.program_queue import MakeProgramQueue, ProgramQueueContract, taken
from pyoco_server.config import GridConfig
from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.errors import NotStored, QueueFull, Unavailable
from pyoco_server.ports.nats.grid_resources import LANES_BUCKET, ensure_grid
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from pyoco_server.ports.program_queue import jetstream
from pyoco_server.ports.program_queue.jetstream import JetStreamProgramQueue, consumer_name
from pyoco_server.ports.program_queue.port import ClientQueue, ClientQueueCounts
from pyoco_server.ports.queue.port import Reply
from support.grid.stores import a_job, client_queue_of
from support.servers import NatsServer, config_for, unique
from support.waiting import eventually

STREAM = "PYOCO_EXEC"


def a_queue(link: Link, ack_wait_seconds: float = 30.0, stream: str = STREAM) -> JetStreamProgramQueue:
    return JetStreamProgramQueue(link, stream, LANES_BUCKET, ack_wait_seconds, time.time)


@pytest.fixture
async def queue(links: tuple[Link, Link]) -> AsyncIterator[JetStreamProgramQueue]:
    queue = a_queue(links[0])
    yield queue
    await queue.stop()


class TestJetStreamProgramQueue(ProgramQueueContract):
    @pytest.fixture
    async def make_queue(self, links: tuple[Link, Link]) -> AsyncIterator[MakeProgramQueue]:
        made: list[JetStreamProgramQueue] = []
        turns = itertools.cycle(links)

        def make() -> JetStreamProgramQueue:
            # What is lost would come again after its ack timer, and no test waits for so long.
            made.append(a_queue(next(turns), ack_wait_seconds=300.0))
            return made[-1]

        yield make
        for queue in made:
            await queue.stop()


async def consumer_config(link: Link, client_queue: ClientQueue) -> dict[str, Any]:
    info = await link.api(f"CONSUMER.INFO.{STREAM}.{consumer_name(client_queue)}", {}, dict[str, Any])
    return dict(info["config"])


def test_a_consumer_has_the_name_that_everybody_gives_it() -> None:
    """Section 2.1, with its test value"""
    assert consumer_name(ClientQueue("default", "calcA", "clientA")) == "x_0aabd72524d6186f92d0ec623d016605"


async def test_a_consumer_is_made_as_the_contract_says(
    links: tuple[Link, Link], queue: JetStreamProgramQueue, group: str
) -> None:
    """GRID-7, GRID-63: by whoever asks first, also when several do"""
    client_queue = ClientQueue(group, "calcA", "clientA")
    other = a_queue(links[1])
    assert not any(await asyncio.gather(queue.take(client_queue), other.take(client_queue), queue.take(client_queue)))
    found = await consumer_config(links[0], client_queue)
    assert (
        found
        | {
            "filter_subject": f"pyoco.exec.{group}.calcA.clientA.*",
            "ack_policy": "explicit",
            "ack_wait": 30 * 10**9,
            "max_deliver": -1,
            "max_ack_pending": 10_000,
            "inactive_threshold": 86_400 * 10**9,
            "num_replicas": 0,
        }
        == found
    )
    await other.stop()


async def test_a_consumer_that_was_removed_is_made_again(
    links: tuple[Link, Link], queue: JetStreamProgramQueue, group: str
) -> None:
    """GRID-63: and no job is lost with it, be it in hand or not"""
    jobs = [a_job(group) for _ in range(3)]
    client_queue = client_queue_of(jobs[0])
    for job in jobs:
        await queue.put(job)
    assert len(await queue.take(client_queue)) == 1
    await links[0].api(f"CONSUMER.DELETE.{STREAM}.{consumer_name(client_queue)}", {}, dict[str, Any])
    assert await queue.counts(client_queue) is None
    found = await taken(queue, client_queue, 3)
    assert {each.subject.rpartition(".")[2] for each in found} == {job.run_id for job in jobs}


async def test_a_lane_that_is_not_used_loses_its_consumer_and_no_job(
    links: tuple[Link, Link], queue: JetStreamProgramQueue, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRID-63"""
    job = a_job(group)
    whole = JetStreamProgramQueue._make

    async def make(self: JetStreamProgramQueue, client_queue: ClientQueue) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(jetstream, "_DAY", 1)
            patch.setattr(jetstream, "_SECOND", 200_000_000)
            await whole(self, client_queue)

    monkeypatch.setattr(JetStreamProgramQueue, "_make", make)
    assert await queue.take(client_queue_of(job)) == []
    await queue.put(job)

    async def is_gone() -> bool:
        return await queue.counts(client_queue_of(job)) is None

    await eventually(is_gone)
    assert len(await queue.take(client_queue_of(job))) == 1


async def test_a_job_in_a_dead_hand_comes_again_after_its_ack_timer(links: tuple[Link, Link]) -> None:
    """GRID-12: and not while it is held in time; this process or the queue may be stopped for longer than the timer"""
    ack_wait = 1.0
    queue, job = a_queue(links[0], ack_wait_seconds=ack_wait), a_job(unique("g"))
    try:
        await queue.put(job)
        (delivery,) = await taken(queue, client_queue_of(job), 1)
        found, sent_at = [], time.monotonic()
        longest = 0.0  # from sending one hold to the certainty that the queue has the next
        for _ in range(16):
            await asyncio.sleep(ack_wait / 8)
            sent_at, before = time.monotonic(), sent_at
            await delivery.hold()
            found += await queue.take(client_queue_of(job))  # answered after the hold
            longest = max(longest, time.monotonic() - before)
            assert not found or longest > ack_wait / 2
        (again,) = found[:1] or await taken(queue, client_queue_of(job), 1)
        assert again.count == 2
    finally:
        await queue.stop()


async def test_a_job_that_comes_late_goes_back_at_once(own_nats_server: NatsServer, group: str) -> None:
    """The server stood still while it was asked: whoever asked has gone when the job comes."""
    link = await open_link(own_nats_server.url, "late")
    await ensure_grid(link, config_for(own_nats_server.url), GridConfig())
    queue, job = a_queue(link, ack_wait_seconds=300.0), a_job(group)
    client_queue = client_queue_of(job)
    await queue.take(client_queue)
    await queue.put(job)
    queue._pulls._answer_seconds = 0.2
    with own_nats_server.frozen(), pytest.raises(Unavailable, match="did not answer"):
        await queue.take(client_queue)
    await eventually(lambda: queue._pulls.late == 1)
    queue._pulls._answer_seconds = 60.0
    (again,) = await taken(queue, client_queue, 1)
    assert again.count == 2
    await queue.stop()
    await link.close()


async def test_a_job_that_is_in_hand_when_its_taker_is_cancelled_goes_back(
    links: tuple[Link, Link], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, job = a_queue(links[0], ack_wait_seconds=300.0), a_job(group)
    await queue.take(client_queue_of(job))
    await queue.put(job)
    whole, in_hand = queue._pulls._until_answered, asyncio.Event()

    async def slowly(pull: Any) -> None:
        await whole(pull)
        if pull.deliveries:
            in_hand.set()
            await asyncio.sleep(600)

    async def take() -> None:
        # The server confirms a job a moment before its consumer knows of it: the first look may find nothing.
        while not await queue.take(client_queue_of(job), 2):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(queue._pulls, "_until_answered", slowly)
        taking = asyncio.create_task(take())
        await asyncio.wait_for(in_hand.wait(), 200)
        taking.cancel()
        await asyncio.wait({taking})
    (again,) = await taken(queue, client_queue_of(job), 1)
    assert again.count == 2
    await queue.stop()


async def test_those_who_ask_one_lane_at_once_share_what_there_is(links: tuple[Link, Link], group: str) -> None:
    """Nobody gets more than was asked for, nobody waits in vain, and one who leaves takes nothing along."""
    queue, jobs = a_queue(links[0], ack_wait_seconds=300.0), [a_job(group) for _ in range(30)]
    client_queue = client_queue_of(jobs[0])
    await queue.take(client_queue)
    for job in jobs:
        await queue.put(job)

    async def all_are_known() -> bool:
        return await queue.counts(client_queue) == ClientQueueCounts(len(jobs), 0)

    await eventually(all_are_known)
    takers = [asyncio.create_task(queue.take(client_queue, count)) for count in (1, 5, 2, 7, 3)]
    await asyncio.sleep(0)
    takers[3].cancel()
    found = await asyncio.gather(*takers, return_exceptions=True)
    assert isinstance(found[3], asyncio.CancelledError)
    counts = [len(each) for each in found if not isinstance(each, BaseException)]
    assert counts == [1, 5, 2, 3]
    rest = await taken(queue, client_queue, 30 - sum(counts))
    subjects = [each.subject for some in found if not isinstance(some, BaseException) for each in some]
    assert len({*subjects, *(each.subject for each in rest)}) == 30
    await queue.stop()


async def test_after_a_lost_connection_lanes_are_asked_as_before(own_nats_server: NatsServer, group: str) -> None:
    link = await open_link(own_nats_server.url, "lost")
    await ensure_grid(link, config_for(own_nats_server.url), GridConfig())
    queue, job = a_queue(link), a_job(group)
    await queue.take(client_queue_of(job))
    await queue.put(job)
    own_nats_server.restart()
    (delivery,) = await taken_patiently(queue, client_queue_of(job))
    await delivery.answer(Reply.ACK)
    await eventually(lambda: is_empty(queue, client_queue_of(job)))
    await queue.stop()
    await link.close()


async def taken_patiently(queue: JetStreamProgramQueue, client_queue: ClientQueue) -> list[Any]:
    found: list[Any] = []

    async def look() -> bool:
        try:
            found.extend(await queue.take(client_queue))
        except Unavailable:
            return False
        return bool(found)

    await eventually(look)
    return found


async def is_empty(queue: JetStreamProgramQueue, client_queue: ClientQueue) -> bool:
    return await queue.counts(client_queue) == ClientQueueCounts(0, 0)


class TestFull:
    """GRID-9, GRID-64: the stream at its limit"""

    @pytest.fixture
    async def small(self, own_nats_server: NatsServer) -> AsyncIterator[JetStreamProgramQueue]:
        """Room for three."""
        link = await open_link(own_nats_server.url, "small")
        await ensure_grid(link, config_for(own_nats_server.url), GridConfig(exec_queue_max_jobs=3))
        queue = a_queue(link)
        yield queue
        await queue.stop()
        await link.close()

    async def test_one_job_too_many_is_refused_and_none_is_pushed_out(
        self, small: JetStreamProgramQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = [a_job("default") for _ in range(4)]
        await asyncio.gather(*(small.put(job) for job in jobs[:3]))
        with pytest.raises(QueueFull):
            await small.put(jobs[3])
        assert not await small.has(jobs[3])
        for job in jobs[:3]:
            await small.put(job)  # it is there: that is what the caller wants to know
        assert (await small.totals()).messages == 3
        (delivery,) = await small.take(client_queue_of(jobs[0]))
        await delivery.answer(Reply.ACK)
        await eventually(lambda: has_messages(small, 2))
        await small.put(jobs[3])
        # After silence nobody knows whether the first try is still on its way, full or not.
        self.once_silent(small._link, monkeypatch)
        with pytest.raises(Unavailable) as raised:
            await small.put(a_job("default"))
        assert not isinstance(raised.value, NotStored)

    @staticmethod
    def once_silent(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
        store, calls = link.store, itertools.count()

        async def silent(subject: str, payload: bytes, headers: Mapping[str, str] | None = None, **more: Any) -> int:
            if next(calls) == 0:
                raise Unavailable("no answer")
            return await store(subject, payload, headers, **more)

        monkeypatch.setattr(link, "store", silent)


async def has_messages(queue: JetStreamProgramQueue, count: int) -> bool:
    return (await queue.totals()).messages == count


class TestUnclear:
    """GRID-9, GRID-11: what is not known is found out"""

    async def test_a_put_without_an_answer_is_found_to_be_stored(
        self, queue: JetStreamProgramQueue, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, calls = queue._link.store, itertools.count()

        async def deaf(subject: str, payload: bytes, headers: Mapping[str, str] | None = None, **more: Any) -> int:
            sequence = await store(subject, payload, headers, **more)
            if next(calls) == 0:
                raise Unavailable("no answer")
            return sequence

        monkeypatch.setattr(queue._link, "store", deaf)
        job = a_job(group)
        await queue.put(job)
        assert len(await queue.take(client_queue_of(job), 5)) == 1

    async def test_a_message_that_waits_for_its_majority_is_waited_for(
        self, queue: JetStreamProgramQueue, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The server refuses the second copy while the first cannot yet be read."""
        monkeypatch.setattr(jetstream, "_UNSEEN_PAUSE_SECONDS", 0.01)
        job = a_job(group)
        await queue.put(job)
        look, looks = queue._sequence, itertools.count()

        async def blind(subject: str) -> int | None:
            return None if next(looks) < 3 else await look(subject)

        monkeypatch.setattr(queue, "_sequence", blind)
        await queue.put(job)
        assert next(looks) == 4

    async def test_one_that_is_never_seen_is_not_promised(
        self, queue: JetStreamProgramQueue, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jetstream, "_UNSEEN_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr(jetstream, "_UNSEEN_SECONDS", 0.05)
        job = a_job(group)
        await queue.put(job)

        async def blind(subject: str) -> int | None:
            return None

        monkeypatch.setattr(queue, "_sequence", blind)
        with pytest.raises(Unavailable) as raised:
            await queue.put(job)
        assert not isinstance(raised.value, NotStored)

    async def test_one_that_has_left_meanwhile_is_put_again(
        self, queue: JetStreamProgramQueue, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The copy that stood in the way is acked between the refusal and the look."""
        monkeypatch.setattr(jetstream, "_UNSEEN_PAUSE_SECONDS", 0.01)
        job = a_job(group)
        await queue.put(job)
        look, looks = queue._sequence, itertools.count()

        async def look_late(subject: str) -> int | None:
            if next(looks) == 0:
                assert await queue.remove(job)
            return await look(subject)

        monkeypatch.setattr(queue, "_sequence", look_late)
        await queue.put(job)
        assert await queue.has(job)

    async def test_a_message_that_is_too_large_is_refused_for_good(
        self, queue: JetStreamProgramQueue, group: str
    ) -> None:
        """GRID-148"""
        job = a_job(group, args=("x" * 1_100_000,))
        with pytest.raises(NotStored, match="the queue refuses a job"):
            await queue.put(job)
        assert not await queue.has(job)

    async def test_a_message_that_cannot_be_removed_is_told_of(
        self, queue: JetStreamProgramQueue, group: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = a_job(group)
        await queue.put(job)
        insist = queue._link.insist

        async def refuse(subject: str, request: object, answer: type[Any]) -> Any:
            if subject.startswith("STREAM.MSG.DELETE"):
                raise Rejected(10057, "no")
            return await insist(subject, request, answer)

        monkeypatch.setattr(queue._link, "insist", refuse)
        with pytest.raises(Unavailable, match="cannot remove"):
            await queue.remove(job)


async def test_without_a_connection_nothing_is_stored(own_nats_server: NatsServer) -> None:
    link = await open_link(own_nats_server.url, "down", Patience(down_seconds=0.05, unanswered_seconds=0.2))
    queue = a_queue(link)
    own_nats_server.kill()
    await eventually(lambda: not link.is_up and link.connection > 0)  # all has been told of the loss
    job: ProgramJob = a_job("default")
    with pytest.raises(NotStored):
        await queue.put(job)
    with pytest.raises(NotStored):
        await queue.take(client_queue_of(job))
    with pytest.raises(Unavailable):
        await queue.counts(client_queue_of(job))
    await queue.stop()
    await link.close()


async def test_strange_keys_are_no_lanes(links: tuple[Link, Link], group: str) -> None:
    await links[0].store(f"$KV.{LANES_BUCKET}.{group}.only-two", b"{}")
    queue = a_queue(links[0])
    await queue.start()
    assert queue.client_queues(group) == []
    await queue.stop()
