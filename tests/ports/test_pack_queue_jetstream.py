"""The queue of priced runs in JetStream: the contract, its settings, and what a network does to it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from contracts.pack_queue import (
    VISIBILITY_SECONDS,
    PackQueueContract,
    a_body,
    briefly,
    delivered_three_times,
    has_depths,
    is_buried,
    none_left,
    one,
    send,
)
from pyoco_server.config import PricedConfig
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.nats.link import Link, Missing, Patience, open_link
from pyoco_server.ports.nats.puller import JetStreamDelivery
from pyoco_server.ports.pack_queue.jetstream import JetStreamPackQueue
from pyoco_server.ports.pack_queue.port import PackQueue
from support.faults import FaultyLink, open_faulty_link
from support.servers import NatsServer, unique
from support.waiting import eventually

SECOND = 10**9
IMPATIENT = Patience(down_seconds=0.5, unanswered_seconds=1.0, answer_seconds=0.5)


def settings(**more: Any) -> PricedConfig:
    own = unique("packs")
    names = {"pack_stream": own, "pack_subject": own.replace("_", ".")}
    return PricedConfig(**{**names, "priced_lease_ttl_sec": VISIBILITY_SECONDS, "priced_heartbeat_sec": 1, **more})


async def made(link: Link, stream: str) -> dict[str, Any]:
    return dict((await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any]))["config"])


async def consumer(link: Link, stream: str) -> dict[str, Any]:
    return dict((await link.api(f"CONSUMER.INFO.{stream}.dpp-worker", {}, dict[str, Any]))["config"])


@pytest.fixture
def visibility_seconds() -> int:
    return VISIBILITY_SECONDS


@pytest.fixture
async def priced(link: Link, visibility_seconds: int) -> AsyncIterator[PricedConfig]:
    config = settings(priced_lease_ttl_sec=visibility_seconds)
    yield config
    for name in (config.pack_stream, f"{config.pack_stream}_DLQ"):
        with contextlib.suppress(Missing):  # never made
            await link.api(f"STREAM.DELETE.{name}", {}, dict[str, Any])


@pytest.fixture
async def queue(link: Link, priced: PricedConfig) -> AsyncIterator[JetStreamPackQueue]:
    queue = JetStreamPackQueue(link, priced, 1)
    await queue.start()
    yield queue
    await queue.close()


class TestJetStreamPackQueue(PackQueueContract):
    @pytest.fixture
    async def rival(self, queue: PackQueue, nats_url: str, priced: PricedConfig) -> AsyncIterator[PackQueue]:
        link = await open_link(nats_url, "rival")
        rival = JetStreamPackQueue(link, priced, 1)
        yield rival
        await rival.close()
        await link.close()


@pytest.fixture
async def faulty(nats_url: str) -> AsyncIterator[FaultyLink]:
    link = await open_faulty_link(nats_url)
    yield link
    await link.close()


class TestSettings:
    async def test_the_streams_are_those_of_the_contract(
        self, link: Link, queue: PackQueue, priced: PricedConfig
    ) -> None:
        """PRICED-200, PRICED-203"""
        work = await made(link, priced.pack_stream)
        assert (work["retention"], work["subjects"]) == ("workqueue", [priced.pack_subject])
        letters = await made(link, f"{priced.pack_stream}_DLQ")
        assert (letters["retention"], letters["subjects"]) == ("limits", [f"{priced.pack_subject}.dlq"])
        assert letters["max_age"] == 30 * 86_400 * SECOND
        assert 0 < letters["max_msgs"] <= 100_000
        consumed = await consumer(link, priced.pack_stream)
        assert (consumed["ack_policy"], consumed["ack_wait"]) == ("explicit", VISIBILITY_SECONDS * SECOND)
        assert consumed["max_deliver"] == -1

    def test_the_names_are_those_of_the_contract(self) -> None:
        config = PricedConfig()
        assert (config.pack_stream, config.pack_subject) == ("DPP_RUNS", "dpp.runs")
        assert config.priced_lease_ttl_sec == 120

    async def test_a_timer_that_was_changed_is_put_right(
        self, link: Link, queue: PackQueue, priced: PricedConfig
    ) -> None:
        """PRICED-200: or a message would come back while its lease is alive."""
        changed = settings(pack_stream=priced.pack_stream, pack_subject=priced.pack_subject, priced_lease_ttl_sec=7)
        other = JetStreamPackQueue(link, changed, 1)
        await other.start()
        assert (await consumer(link, priced.pack_stream))["ack_wait"] == 7 * SECOND
        await send(other)
        await other.ack(await one(other))
        await other.close()

    async def test_a_consumer_that_was_deleted_is_made_again(
        self, link: Link, queue: PackQueue, priced: PricedConfig
    ) -> None:
        assert not await queue.receive(1, 0)
        await link.api(f"CONSUMER.DELETE.{priced.pack_stream}.dpp-worker", {}, dict[str, Any])
        body = await send(queue)
        assert (await one(queue)).body == body


class TestSending:
    async def test_a_repeat_with_the_same_id_is_one_message(self, queue: JetStreamPackQueue) -> None:
        body = a_body()
        for _ in range(2):
            await queue.send(body, "run:1")
        await queue.send(body, "run:2")
        assert await queue.depth() == (2, 0)

    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_silence_is_answered_by_asking_again(
        self, queue: PackQueue, faulty: FaultyLink, priced: PricedConfig, fault: str
    ) -> None:
        """PRICED-199"""
        sender = JetStreamPackQueue(faulty, priced, 1)
        faulty.faults.append(fault)
        await send(sender)
        assert await queue.depth() == (1, 0)


class TestDeadLetters:
    @briefly
    async def test_a_letter_that_cannot_be_stored_is_not_lost(
        self, queue: PackQueue, faulty: FaultyLink, priced: PricedConfig
    ) -> None:
        """PRICED-203, PRICED-205"""
        worker = JetStreamPackQueue(faulty, priced, 1)
        faulty.patience = IMPATIENT
        body = await delivered_three_times(queue)
        faulty.faults.extend(["before"] * 50)
        assert not await worker.receive(1, 1)
        await worker.close()
        assert len(faulty.faults) < 50
        assert await queue.depth() == (1, 0)
        await eventually(lambda: is_buried(queue, body))

    async def test_a_letter_stored_twice_is_one(
        self, queue: PackQueue, faulty: FaultyLink, priced: PricedConfig
    ) -> None:
        """PRICED-203: the message id is the place in the stream."""
        worker = JetStreamPackQueue(faulty, priced, 1)
        await delivered_three_times(queue)
        faulty.faults.append("after")
        assert not await worker.receive(1, 1)
        await worker.close()
        assert not faulty.faults
        await eventually(lambda: has_depths(queue, (0, 1)))

    @briefly
    async def test_a_letter_whose_message_stayed_is_one_after_all(
        self, queue: PackQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-203: the message id is the place in the stream, so a crash between letter and end does no harm."""
        body = await delivered_three_times(queue)

        async def unheard(*_: object) -> None:
            """As if it had been killed."""

        with monkeypatch.context() as patched:
            patched.setattr(JetStreamDelivery, "answer", unheard)
            assert not await queue.receive(1, 1)
            await eventually(lambda: has_depths(queue, (1, 1)))
        await eventually(lambda: are_buried(queue, 1))
        assert await is_buried(queue, body)

    async def test_letters_are_read_and_stay(self, queue: PackQueue) -> None:
        bodies = [await delivered_three_times(queue) for _ in range(2)]
        await eventually(lambda: are_buried(queue, 2))
        for _ in range(2):
            assert [letter.body for letter in await queue.dead_letters(10)] == bodies
        assert len(await queue.dead_letters(1)) == 1

    async def test_two_who_redrive_one_letter_send_it_once(self, queue: PackQueue) -> None:
        body = await delivered_three_times(queue)
        await eventually(lambda: are_buried(queue, 1))
        (letter,) = await queue.dead_letters(10)
        assert letter.body == body
        await asyncio.gather(queue.redrive(letter), queue.redrive(letter))
        await queue.redrive(letter)
        assert await queue.depth() == (1, 0)

    async def test_poison_does_not_hide_what_lies_behind(
        self, queue: JetStreamPackQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def is_poison(message: JetStreamDelivery) -> bool:
            return message.data == b"poison"

        monkeypatch.setattr(queue, "_keep", is_poison)
        for _ in range(3):
            await send(queue, b"poison")
        body = await send(queue)
        assert [each.body for each in await queue.receive(1, 0)] == [body]


async def are_buried(queue: PackQueue, count: int) -> bool:
    assert await none_left(queue)
    return await has_depths(queue, (0, count))


async def is_asked(link: Link, config: PricedConfig) -> bool:
    """Whether somebody waits there."""
    info = await link.api(f"CONSUMER.INFO.{config.pack_stream}.dpp-worker", {}, dict[str, Any])
    return int(info["num_waiting"]) > 0


class TestGivingUp:
    async def test_a_withdrawn_pull_burns_no_delivery(
        self, queue: PackQueue, link: Link, nats_url: str, priced: PricedConfig
    ) -> None:
        """PRICED-203: worker after worker stops while it waits."""
        async with contextlib.AsyncExitStack() as stopping:
            for n in range(5):
                own = await open_link(nats_url, f"stopping {n}")
                stopping.push_async_callback(own.close)
                worker = JetStreamPackQueue(own, priced, 1)
                stopping.push_async_callback(worker.close)
                receiving = asyncio.create_task(worker.receive(1, 20))
                await eventually(lambda: is_asked(link, priced))
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
                await own.nc.flush()
            await send(queue)
            assert (await one(queue)).count == 1

    async def test_what_arrived_for_one_who_was_cancelled_goes_back_at_once(
        self, queue: JetStreamPackQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await send(queue)
        keep = queue._keep

        def cancelling(message: JetStreamDelivery) -> bool:
            receiving.cancel()
            return keep(message)

        monkeypatch.setattr(queue, "_keep", cancelling)
        receiving = asyncio.create_task(queue.receive(1, 20))
        with pytest.raises(asyncio.CancelledError):
            await receiving
        began = time.monotonic()
        monkeypatch.undo()
        queue._pulls.clear()
        assert (await one(queue)).count == 2
        assert time.monotonic() - began < VISIBILITY_SECONDS // 2


class TestOutages:
    async def test_everything_says_so_while_the_server_is_gone(self, own_nats_server: NatsServer) -> None:
        """PRICED-199"""
        link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.5))
        queue = JetStreamPackQueue(link, settings(), 1)
        await queue.start()
        await send(queue)
        delivery = await one(queue)
        own_nats_server.kill()
        await eventually(lambda: not link.is_up, 30.0)
        began = time.monotonic()
        said = await asyncio.gather(
            queue.send(b"{}", "x"),
            queue.receive(1, 20),
            queue.ack(delivery),
            queue.nack(delivery, 0),
            queue.extend(delivery),
            queue.dead_letters(1),
            queue.depth(),
            queue.ping(),
            return_exceptions=True,
        )
        assert all(isinstance(each, DependencyUnavailable) for each in said), said
        assert time.monotonic() - began < 60
        own_nats_server.start()
        await eventually(lambda: link.is_up, 30.0)
        await queue.ack(delivery)

        async def is_empty() -> bool:
            if await has_depths(queue, (0, 0)):
                return True
            with contextlib.suppress(DependencyUnavailable):
                for late in await queue.receive(1, 1):  # on a slow machine the ack came after the visibility time
                    await queue.ack(late)
            return False

        await eventually(is_empty, 60.0)
        await queue.close()
        await link.close()

    async def test_a_silent_server_is_no_empty_queue(self, own_nats_server: NatsServer) -> None:
        link = await open_link(own_nats_server.url, "tests")
        queue = JetStreamPackQueue(link, settings(), 1)
        await queue.start()
        link.patience = IMPATIENT
        with own_nats_server.frozen():
            async with asyncio.timeout(60):
                with pytest.raises(DependencyUnavailable):
                    await queue.receive(1, 20)
                with pytest.raises(DependencyUnavailable):
                    await queue.ping()
        link.patience = Patience()
        body = await send(queue)
        assert (await one(queue)).body == body
        await queue.close()
        await link.close()

    async def test_a_receive_outlives_a_restart(self, own_nats_server: NatsServer) -> None:
        link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=100))
        queue = JetStreamPackQueue(link, settings(), 1)
        await queue.start()
        receiving = asyncio.create_task(queue.receive(1, 20))
        await asyncio.sleep(0.1)
        own_nats_server.restart()
        body = await send(queue)
        assert [each.body for each in await receiving] == [body]
        await queue.close()
        await link.close()
