"""What the queue has given up, and what it holds: looks that take nothing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from contracts.queue import Hand, a_job, opened
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job, decode_job
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.queue import notices as adapter
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.queue.port import Notice, Notices, Queue, Reply
from support.servers import NatsServer, config_for
from support.waiting import eventually

ACK_WAIT = 0.5


@pytest.fixture
def queue(link: Link, prepared: NatsBackendConfig) -> JetStreamQueue:
    return JetStreamQueue(link, _quick(prepared))


_TIMERS: dict[str, Any] = {
    "consumer_ack_wait_sec": ACK_WAIT,
    "ack_progress_interval_sec": 0.1,
    "consumer_max_deliver": 2,
}


def _quick(config: NatsBackendConfig) -> NatsBackendConfig:
    return replace(config, **_TIMERS)


@pytest.fixture
async def notices(queue: JetStreamQueue) -> AsyncIterator[Notices]:
    notices = await queue.open_notices()
    yield notices
    await notices.close()


async def exhaust(queue: Queue, job: Job) -> None:
    """Delivered as often as it may be, and never answered for. Nobody asks for more."""
    await queue.put(job)
    async with opened(queue, [job.tag]) as intake:
        first = await intake.take(60)
        assert first is not None
        await first.answer(Reply.LATER)
        second = await intake.take(60)
        assert second is not None
        assert second.count == 2


async def stirred(notices: Notices, seconds: float = 30.0) -> Notice:
    """The next notice, however often the queue has to be stirred for it."""
    found: list[Notice] = []

    async def has_come() -> bool:
        await notices.stir()
        notice = await notices.take(0.05)
        found.extend([notice] if notice is not None else [])
        return bool(found)

    await eventually(has_come, seconds)
    return found[0]


async def shorten_ack_timers(link: Link, stream: str) -> None:
    """Also of what was delivered before."""
    listed = await link.api(f"CONSUMER.LIST.{stream}", {}, dict[str, Any])
    for each in listed["consumers"]:
        request = {"stream_name": stream, "config": each["config"] | {"ack_wait": int(ACK_WAIT * 10**9)}}
        await link.api(f"CONSUMER.DURABLE.CREATE.{stream}.{each['name']}", request, dict[str, Any])


class TestANotice:
    async def test_comes_at_once_where_a_worker_asks_for_more(self, queue: JetStreamQueue, notices: Notices) -> None:
        """DESIGN 9.8: with no other traffic, and nobody stirs."""
        job = a_job()
        await queue.put(job)
        hand = Hand()
        async with opened(queue, ["a"], hand) as intake:
            for count in (1, 2):
                began = time.monotonic()
                await intake.want(1)
                await hand.holds(count)
            await intake.want(1)
            notice = await notices.take(60)
            assert notice is not None
            assert time.monotonic() - began > ACK_WAIT - 0.1
        assert notice.deliveries == 2
        leftover = await notice.leftover()
        assert leftover is not None
        assert decode_job(leftover.data) == job
        assert (leftover.tag, leftover.subject) == ("a", hand.deliveries[0].subject)

    async def test_comes_when_the_queue_is_stirred_where_nobody_asks(
        self, queue: JetStreamQueue, notices: Notices
    ) -> None:
        await exhaust(queue, a_job())
        assert await notices.take(ACK_WAIT + 0.5) is None
        leftover = await (await stirred(notices)).leftover()
        assert leftover is not None

    async def test_is_kept_while_no_keeper_is_there(self, link: Link, queue: JetStreamQueue) -> None:
        await exhaust(queue, a_job())
        first = await queue.open_notices()

        async def is_kept() -> bool:
            await first.stir()
            info = await link.api(f"STREAM.INFO.{queue._config.advisory_stream}", {}, dict[str, Any])
            return bool(info["state"]["messages"] == 1)

        await eventually(is_kept)
        await first.close()
        later = await queue.open_notices()
        assert await later.take(60) is not None
        await later.close()

    async def test_is_handed_to_one_keeper_and_again_to_another_when_that_one_dies(
        self, link: Link, queue: JetStreamQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(adapter, "_ACK_WAIT_SECONDS", 1)
        async with contextlib.AsyncExitStack() as opened_ones:
            keepers = [await queue.open_notices() for _ in range(3)]
            for keeper in keepers:
                opened_ones.push_async_callback(keeper.close)
            await exhaust(queue, a_job())
            first = await stirred(keepers[0])  # and it does not answer
            found: list[Any] = []

            async def is_handed_on() -> bool:
                for keeper in keepers[1:]:
                    found.extend([await keeper.take(0.1)] if not any(found) else [])
                return any(found)

            await eventually(is_handed_on)
            (again,) = (each for each in found if each is not None)
            # Keepers share one consumer: to each of three of their own it would be the first delivery.
            assert again._delivery.count > first._delivery.count  # type: ignore[attr-defined]
            await again.settle()

            async def is_settled() -> bool:
                path = f"CONSUMER.INFO.{queue._config.advisory_stream}.{adapter._CONSUMER}"
                info = await link.api(path, {}, dict[str, Any])
                return bool(info["num_ack_pending"] == info["num_pending"] == 0)

            await eventually(is_settled)

    async def test_that_is_put_off_comes_again_then(self, queue: JetStreamQueue, notices: Notices) -> None:
        await exhaust(queue, a_job())
        notice = await stirred(notices)
        began = time.monotonic()
        await notice.put_off(0.4)
        assert await notices.take(30) is not None
        assert time.monotonic() - began > 0.3

    async def test_of_a_job_that_has_gone_says_so(self, queue: JetStreamQueue, notices: Notices) -> None:
        await exhaust(queue, a_job())
        notice = await stirred(notices)
        leftover = await notice.leftover()
        assert leftover is not None
        for _ in range(2):  # to remove it twice is no error
            await queue.remove(leftover)
        assert await notice.leftover() is None

    async def test_that_cannot_be_read_is_dropped(self, link: Link, queue: JetStreamQueue, notices: Notices) -> None:
        config = queue._config
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{config.work_stream}.pyoco_worker_a"
        for word in (b"not json", b"{}", b'{"stream_seq": "x"}'):
            await link.store(subject, word)
            assert await notices.take(1) is None
        assert await notices.take(1) is None

        async def are_gone() -> bool:
            info = await link.api(f"STREAM.INFO.{config.advisory_stream}", {}, dict[str, Any])
            return bool(info["state"]["messages"] == 0)

        await eventually(are_gone)

    async def test_without_the_stream_that_keeps_them_there_is_an_error(self, nats_url: str) -> None:
        link = await open_link(nats_url, "tests", Patience(unanswered_seconds=0.3, answer_seconds=0.2))
        with pytest.raises(Unavailable):
            await JetStreamQueue(link, config_for(nats_url)).open_notices()
        await link.close()


class TestStirring:
    async def test_takes_nothing_and_counts_no_delivery(self, queue: JetStreamQueue, notices: Notices) -> None:
        """Jobs that are due again wait for a worker, however often a keeper looks."""
        jobs = [a_job() for _ in range(5)]
        for job in jobs:
            await queue.put(job)
        hand = Hand()
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(3)
            await hand.holds(3)
        await asyncio.sleep(ACK_WAIT + 0.2)  # three are due again, two were never delivered
        for _ in range(10):
            await notices.stir()
        again = Hand()
        async with opened(queue, ["a"], again) as intake:
            await intake.want(5)
            await again.holds(5)
        # The first time that each is taken: on a busy machine it may come once more.
        counts = {decode_job(each.data).run_id: each.count for each in reversed(again.deliveries)}
        assert counts == {job.run_id: 2 if job in jobs[:3] else 1 for job in jobs}

    async def test_reaches_a_job_behind_others_that_are_due(self, link: Link, prepared: NatsBackendConfig) -> None:
        """The ack timers are too long to end during the deliveries, and are shortened afterwards."""
        queue, last, hand = (
            JetStreamQueue(link, replace(_quick(prepared), consumer_ack_wait_sec=3600.0)),
            a_job(),
            Hand(),
        )
        for _ in range(30):
            await queue.put(a_job())
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(30)
            await hand.holds(30)
            await queue.put(last)
            for count in (31, 32):
                await intake.want(1)
                await hand.holds(count)
                if count == 31:
                    await hand.deliveries[-1].answer(Reply.LATER)
        await shorten_ack_timers(link, prepared.work_stream)
        notices = await queue.open_notices()
        try:
            leftover = await (await stirred(notices)).leftover()
        finally:
            await notices.close()
        assert leftover is not None
        assert decode_job(leftover.data).run_id == last.run_id

    async def test_leaves_a_tag_alone_that_a_worker_asks_for(
        self, link: Link, queue: JetStreamQueue, notices: Notices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        ask = link.ask

        async def note(subject: str, *args: Any, **more: Any) -> Any:
            asked.append(subject)
            return await ask(subject, *args, **more)

        hand = Hand()
        await queue.put(a_job())
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(2)
            await hand.holds(1)
            monkeypatch.setattr(link, "ask", note)
            await notices.stir()
        assert not [subject for subject in asked if ".MSG.NEXT." in subject]

    async def test_knows_every_tag(self, link: Link, queue: JetStreamQueue, notices: Notices) -> None:
        """The server tells of 256 consumers at a time."""
        stream, prefix = queue._config.work_stream, queue._config.work_subject_prefix
        for number in range(260):
            name = f"other_{number:03}"
            config = {"durable_name": name, "ack_policy": "explicit", "filter_subject": f"{prefix}.other{number}"}
            request = {"stream_name": stream, "config": config, "action": "create"}
            await link.api(f"CONSUMER.CREATE.{stream}.{name}.{prefix}.other{number}", request, dict[str, Any])
        await exhaust(queue, a_job("zz"))  # the last by name
        assert await stirred(notices) is not None


class TestTheStock:
    async def test_of_a_tag_that_nobody_has_served_waits(self, queue: JetStreamQueue) -> None:
        empty = await queue.stock("a")
        assert (empty.waiting_since, empty.in_hand, empty.waiting) == (None, frozenset(), frozenset())
        began = time.time()
        await queue.put(a_job())
        await queue.put(a_job("b"))
        stock = await queue.stock("a")
        assert stock.waiting_since is not None
        assert began - 1 < stock.waiting_since < time.time() + 1
        assert stock.in_hand == frozenset()

    async def test_tells_what_is_in_hand_from_what_waits(self, queue: JetStreamQueue) -> None:
        jobs = [a_job() for _ in range(3)]
        await queue.put(jobs[0])
        await queue.put(jobs[1])
        hand = Hand()
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(2)
            await hand.holds(2)
            stock = await queue.stock("a")
            assert stock.waiting_since is None
            assert stock.in_hand == {jobs[0].run_id, jobs[1].run_id}
            await hand.deliveries[0].answer(Reply.ACK)
            await queue.put(jobs[2])

            async def has_left() -> bool:
                return (await queue.stock("a")).in_hand == {jobs[1].run_id}

            await eventually(has_left)
            stock = await queue.stock("a")
            assert stock.waiting_since is not None
            assert stock.waiting == frozenset({jobs[2].run_id})

    async def test_counts_a_message_that_is_no_job(self, link: Link, queue: JetStreamQueue) -> None:
        await link.store(f"{queue._config.work_subject_prefix}.a", b"no job")
        hand = Hand()
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(1)
            await hand.holds(1)
            assert (await queue.stock("a")).in_hand == {""}


async def test_what_was_given_up_is_known_after_nats_was_killed(own_nats_server: NatsServer) -> None:
    """The notice is stored before anybody reads it, and the consumer that all keepers share outlives the server."""
    link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=10.0))
    config = _quick(config_for(own_nats_server.url))
    await ensure(link, resources_of(config))
    queue = JetStreamQueue(link, config)
    notices = await queue.open_notices()
    await exhaust(queue, a_job())
    notice = await stirred(notices)
    await notice.put_off(0.0)
    await asyncio.sleep(1.2)  # by default NATS syncs its files once a second
    await asyncio.to_thread(own_nats_server.restart)
    await eventually(lambda: link.is_up)
    leftover = await (await stirred(notices, 40.0)).leftover()
    assert leftover is not None
    await notices.close()
    await link.close()
