"""What every queue of priced runs promises."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

import pytest

from pyoco_server.core.priced.message import PackMessage, encode
from pyoco_server.ports.pack_queue.port import Delivery, PackQueue
from support.waiting import eventually

__all__ = [
    "BRIEF_SECONDS",
    "VISIBILITY_SECONDS",
    "PackQueueContract",
    "a_body",
    "briefly",
    "delivered_three_times",
    "has_depths",
    "is_buried",
    "none_left",
    "one",
    "send",
]

#: What the fixture `visibility_seconds` of an adapter's tests gives: longer than any test takes.
VISIBILITY_SECONDS = 60
#: Where a message has to come back by itself.
BRIEF_SECONDS = 2
_TRIES = 10
briefly = pytest.mark.parametrize("visibility_seconds", [BRIEF_SECONDS])


def a_body(run_id: str = "") -> bytes:
    run_id = run_id or str(uuid.uuid4())
    return encode(PackMessage(run_id=run_id, tenant_id="t_a", pack_type="decision", enqueued_at="2026-02-13T00:00:00Z"))


async def send(queue: PackQueue, body: bytes | None = None) -> bytes:
    body = body or a_body()
    await queue.send(body, str(uuid.uuid4()))
    return body


async def one(queue: PackQueue, seconds: int = 100) -> Delivery:
    """The next message, which has to come."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        received = await queue.receive(1, 1)
        if received:
            return received[0]
    raise AssertionError("nothing was delivered")


async def none_left(queue: PackQueue) -> bool:
    return not await queue.receive(10, 0)


async def delivered_three_times(queue: PackQueue) -> bytes:
    body = await send(queue)
    for count in (1, 2, 3):
        delivery = await one(queue)
        assert (delivery.body, delivery.count) == (body, count)
        await queue.nack(delivery, 0)
    return body


class PackQueueContract:
    """An adapter passes all of it or does not ship. `rival` is the same queue in another process's hands."""

    async def test_what_is_sent_arrives_byte_for_byte_and_once(self, queue: PackQueue, rival: PackQueue) -> None:
        """PRICED-199, PRICED-205"""
        body = '{"run_id":  "日本語 \\u0041\\n <&> \'",\t"ü": 1.50e3 }\n'.encode()
        await send(queue, body)
        delivery = await one(rival)
        assert (delivery.body, delivery.count) == (body, 1)
        await rival.ack(delivery)
        assert await none_left(queue)

    async def test_an_empty_queue_is_waited_for_as_long_as_asked(self, queue: PackQueue) -> None:
        began = time.monotonic()
        assert not await queue.receive(1, 1)
        assert not await queue.receive(5, 1)
        assert 1.8 < time.monotonic() - began < 60

    async def test_who_waits_gets_what_is_sent_meanwhile(self, queue: PackQueue, rival: PackQueue) -> None:
        waiting = asyncio.create_task(queue.receive(4, 20))
        await asyncio.sleep(0)
        body = await send(rival)
        async with asyncio.timeout(200):
            assert [each.body for each in await waiting] == [body]

    async def test_nobody_gets_more_than_he_asks_for(self, queue: PackQueue) -> None:
        """PRICED-203: a message in a drawer would burn its three deliveries."""
        bodies = {await send(queue) for _ in range(5)}
        got: list[Delivery] = []
        while len(got) < 5:
            some = await queue.receive(2, 20)
            assert 1 <= len(some) <= 2
            got += some
        assert {each.body for each in got} == bodies
        assert {each.count for each in got} == {1}
        for each in got:
            await queue.ack(each)

    async def test_a_message_in_hand_is_nobody_elses(self, queue: PackQueue, rival: PackQueue) -> None:
        """PRICED-200, PRICED-206"""
        bodies = {await send(queue) for _ in range(6)}
        got: list[Delivery] = []
        async with asyncio.timeout(200):
            while len(got) < 6:  # in turn: of receives at one moment some queues may hand out a message twice
                for each, at_most in ((queue, 2), (rival, 1), (rival, 1)):
                    got += await each.receive(min(at_most, 6 - len(got)), 1) if len(got) < 6 else []
        assert sorted(each.body for each in got) == sorted(bodies)
        assert await none_left(rival)
        for delivery in got:
            await queue.ack(delivery)

    @briefly
    async def test_silence_brings_it_to_another(self, queue: PackQueue, rival: PackQueue) -> None:
        """PRICED-200"""
        body = await send(queue)
        began = time.monotonic()
        await one(queue)
        again = await one(rival)
        assert (again.body, again.count) == (body, 2)
        assert time.monotonic() - began > BRIEF_SECONDS * 0.9
        await rival.ack(again)

    @briefly
    async def test_an_extension_begins_the_time_anew(self, queue: PackQueue, rival: PackQueue) -> None:
        """PRICED-201"""
        for _ in range(_TRIES):  # where the machine stands still for a second, the time ends: that proves nothing
            await send(queue)
            delivery = await one(queue)
            came: Sequence[Delivery] = ()
            began = time.monotonic()
            while not came and time.monotonic() - began < BRIEF_SECONDS * 1.3:
                await queue.extend(delivery)
                came = await rival.receive(1, 1)
            if not came:
                await queue.ack(delivery)
                came = await rival.receive(10, 0)
            if not came:
                break
            for each in came:
                await rival.ack(each)
        assert not came

    async def test_a_nack_brings_it_back_after_its_delay(self, queue: PackQueue) -> None:
        """PRICED-200"""
        await send(queue)
        began = time.monotonic()
        await queue.nack(await one(queue), 1)
        again = await one(queue)
        assert again.count == 2
        assert time.monotonic() - began > 0.9
        await queue.nack(again, 0)
        third = await one(queue)
        assert third.count == 3
        await queue.ack(third)

    async def test_an_answered_message_is_answered(self, queue: PackQueue) -> None:
        """PRICED-202: later answers change nothing."""
        await send(queue)
        first = await one(queue)
        await queue.nack(first, 0)
        second = await one(queue)
        await queue.nack(first, 0)
        await queue.extend(first)
        await queue.ack(first)
        assert await none_left(queue)
        await queue.ack(second)
        await queue.ack(second)
        await queue.nack(second, 0)
        assert await none_left(queue)

    @briefly
    async def test_who_comes_too_late_harms_nobody(self, queue: PackQueue, rival: PackQueue) -> None:
        """PRICED-202"""
        for _ in range(_TRIES):  # where the machine stands still for two seconds, it has no owner
            await send(queue)
            late = await one(queue)
            current = await one(rival)
            await queue.extend(late)
            await queue.nack(late, 0)
            await queue.ack(late)
            came = await queue.receive(10, 0)  # it is still in the hands of the other
            if not came:
                break
            await queue.ack(came[0])
        assert not came
        await rival.nack(current, 0)  # and still there
        last = await one(queue)
        assert last.count == 3
        await queue.ack(last)

    async def test_the_third_delivery_is_the_last(self, queue: PackQueue, rival: PackQueue) -> None:
        """PRICED-107, PRICED-203, PRICED-205"""
        body = await delivered_three_times(queue)
        other = await send(queue)
        behind = await one(queue)
        assert behind.body == other
        await queue.ack(behind)
        await eventually(lambda: is_buried(queue, body))
        await eventually(lambda: has_depths(rival, (0, 1)))  # it is buried, and a moment later it leaves the queue

    async def test_a_dead_letter_works_again_when_it_is_redriven(self, queue: PackQueue, rival: PackQueue) -> None:
        """PRICED-109"""
        body = await delivered_three_times(queue)
        letters: list[Delivery] = []
        async with asyncio.timeout(200):
            while not letters:
                assert await none_left(queue)
                letters = list(await rival.dead_letters(10))
        await rival.redrive(letters[0])
        again = await one(queue)
        assert (again.body, again.count) == (body, 1)
        await queue.ack(again)
        await eventually(lambda: is_empty(queue))

    async def test_the_depth_counts_what_waits_and_what_is_in_hand(self, queue: PackQueue) -> None:
        await send(queue)
        await send(queue)
        delivery = await one(queue)
        assert await queue.depth() == (2, 0)
        await queue.ack(delivery)
        await eventually(lambda: has_depth(queue, 1))

    async def test_a_start_may_be_repeated(self, queue: PackQueue, rival: PackQueue) -> None:
        body = await send(queue)
        await asyncio.gather(queue.start(), rival.start())
        assert (await one(queue)).body == body
        await queue.ping()
        await queue.probe()

    async def test_who_is_cancelled_while_he_receives_loses_nothing(self, queue: PackQueue, rival: PackQueue) -> None:
        for _ in range(3):
            receiving = asyncio.create_task(queue.receive(1, 20))
            await asyncio.sleep(0.05)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        body = await send(rival)
        async with asyncio.timeout(200):
            delivery = await one(rival)
        assert delivery.body == body
        await rival.ack(delivery)


async def is_buried(queue: PackQueue, body: bytes) -> bool:
    """It is not delivered meanwhile."""
    assert await none_left(queue)
    return [letter.body for letter in await queue.dead_letters(10)] == [body]


async def is_empty(queue: PackQueue) -> bool:
    return await has_depths(queue, (0, 0))


async def has_depths(queue: PackQueue, wanted: tuple[int, int]) -> bool:
    return await queue.depth() == wanted


async def has_depth(queue: PackQueue, count: int) -> bool:
    return (await queue.depth())[0] == count
