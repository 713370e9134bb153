"""What every queue promises."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence

from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.job import Job, decode_job
from pyoco_server.core.outcome import DeadReason
from pyoco_server.ports.queue.port import Delivery, Intake, Queue, Reply
from support.waiting import eventually

__all__ = ["ACK_WAIT_SECONDS", "Hand", "MakeQueue", "QueueContract", "a_job", "opened"]

#: What the adapter's fixture `queue` has to set as the ack timer: longer than any test takes.
ACK_WAIT_SECONDS = 60.0
#: The adapter's fixture `make_queue`: the same queue with another ack timer, for tags without a consumer.
MakeQueue = Callable[[float], Queue]


def a_job(tag: str = "a", **more: object) -> Job:
    return Job(run_id=str(uuid.uuid4()), flow_name="flow", tag=tag, submitted_at=1.0, **more)  # type: ignore[arg-type]


class Hand:
    """What was delivered, in order, as a worker would hold it."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def take(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)

    @property
    def ids(self) -> list[str]:
        return [decode_job(delivery.data).run_id for delivery in self.deliveries]

    async def holds(self, count: int, seconds: float = 40.0) -> None:
        await eventually(lambda: len(self.deliveries) >= count, seconds)


@contextlib.asynccontextmanager
async def opened(queue: Queue, tags: Sequence[str], hand: Hand | None = None) -> AsyncIterator[Intake]:
    intake = await queue.open_intake(tags, (hand or Hand()).take)
    try:
        yield intake
    finally:
        await intake.close()


async def none_left(queue: Queue, *tags: str) -> bool:
    async with opened(queue, tags) as intake:
        return await intake.take(0.1) is None


async def has_none(queue: Queue, tag: str) -> bool:
    """Neither waiting nor in anybody's hand."""
    stock = await queue.stock(tag)
    return (stock.waiting, stock.in_hand) == (frozenset(), frozenset())


class QueueContract:
    """An adapter passes all of it or does not ship."""

    async def test_a_job_is_delivered_as_it_was_put(self, queue: Queue) -> None:
        job = a_job(params={"text": "日本語"}, tags=("x",), revision=3)
        await queue.put(job)
        async with opened(queue, ["a"]) as intake:
            delivery = await intake.take(60)
        assert delivery is not None
        assert decode_job(delivery.data) == job
        assert (delivery.tag, delivery.count) == ("a", 1)
        assert delivery.subject.endswith(".a")

    async def test_a_job_put_twice_is_delivered_once(self, queue: Queue) -> None:
        """FLOW-77"""
        job = a_job()
        await queue.put(job)
        await queue.put(job)
        async with opened(queue, ["a"]) as intake:
            delivery = await intake.take(60)
            assert delivery is not None
            assert await intake.take(0.1) is None

    async def test_an_answered_job_leaves_the_queue(self, queue: Queue) -> None:
        """FLOW-307, FLOW-316"""
        for reply in (Reply.ACK, Reply.DROP):
            await queue.put(a_job())
            async with opened(queue, ["a"]) as intake:
                delivery = await intake.take(60)
                assert delivery is not None
                await delivery.answer(reply)
                await eventually(lambda: has_none(queue, "a"))

    async def test_a_job_put_off_comes_again_after_its_delay_and_is_counted(self, queue: Queue) -> None:
        """FLOW-319"""
        await queue.put(a_job())
        async with opened(queue, ["a"]) as intake:
            delivery = await intake.take(60)
            assert delivery is not None
            began = time.monotonic()
            await delivery.answer(Reply.LATER, 0.3)
            again = await intake.take(ACK_WAIT_SECONDS / 2)  # so it is not the ack timer that brings it
            assert again is not None
            assert again.count == 2
            assert time.monotonic() - began >= 0.2

    async def test_the_oldest_job_of_a_tag_is_known_by_its_time(self, queue: Queue) -> None:
        assert (await queue.stock("a")).waiting_since is None
        began = time.time()
        await queue.put(a_job())
        first = (await queue.stock("a")).waiting_since
        assert first is not None
        assert began - 1 < first < time.time() + 1
        await queue.put(a_job())
        assert (await queue.stock("a")).waiting_since == first
        assert (await queue.stock("b")).waiting_since is None

    async def test_a_job_nobody_answers_for_comes_again(self, make_queue: MakeQueue) -> None:
        """FLOW-308"""
        queue = make_queue(1.0)
        await queue.put(a_job())
        async with opened(queue, ["a"]) as intake:
            first = await intake.take(60)
            assert first is not None
            await first.answer(Reply.NOTHING)
            again = await intake.take(60)
            assert again is not None
            assert again.count == 2

    async def test_a_held_job_is_not_delivered_again(self, make_queue: MakeQueue) -> None:
        """FLOW-312: while its holder is in time, which it is not when this process or the queue was stopped"""
        ack_wait = 1.0
        queue, hand = make_queue(ack_wait), Hand()
        await queue.put(a_job())
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(2)
            await hand.holds(1)
            sent_at = began = time.monotonic()
            longest = 0.0  # from sending one hold to the certainty that the queue has the next
            while time.monotonic() < began + 2.5 * ack_wait:
                await asyncio.sleep(ack_wait / 8)
                sent_at, before = time.monotonic(), sent_at
                await hand.deliveries[0].hold()
                await queue.stock("a")  # its answer comes after the hold
                longest = max(longest, time.monotonic() - before)
                assert len(hand.deliveries) == 1 or longest > ack_wait / 2

    async def test_an_intake_takes_no_more_than_is_wanted(self, queue: Queue) -> None:
        jobs = [a_job() for _ in range(20)]
        for job in jobs:
            await queue.put(job)
        hand = Hand()
        async with opened(queue, ["a"], hand) as intake:
            for wanted in (3, 1, 5):
                had = len(hand.deliveries)
                await intake.want(wanted)
                await hand.holds(had + wanted)
                await intake.tick()
                assert len(hand.deliveries) == had + wanted
        assert len(set(hand.ids)) == 9

    async def test_several_tags_share_the_room(self, queue: Queue) -> None:
        """FLOW-293"""
        for tag in ("a", "b", "c") * 10:
            await queue.put(a_job(tag))
        hand = Hand()
        async with opened(queue, ["a", "b", "c"], hand) as intake:
            for room in range(1, 8):
                had = len(hand.deliveries)
                await intake.want(room)
                await hand.holds(had + room)
                await intake.tick()
                assert len(hand.deliveries) == had + room
        assert all(delivery.count == 1 for delivery in hand.deliveries)
        assert len(set(hand.ids)) == 28

    async def test_no_tag_starves_another(self, queue: Queue) -> None:
        """FLOW-294"""
        for _ in range(30):
            await queue.put(a_job("a"))
        for _ in range(3):
            await queue.put(a_job("b"))
        hand = Hand()
        async with opened(queue, ["a", "b"], hand) as intake:
            for had in range(10):
                await intake.want(1)
                await hand.holds(had + 1)
        assert [delivery.tag for delivery in hand.deliveries].count("b") == 3

    async def test_a_waiting_intake_hears_of_every_tag(self, queue: Queue) -> None:
        hand = Hand()
        async with opened(queue, ["a", "b"], hand) as intake:
            await intake.want(30)
            assert await none_left(queue, "c")  # by now the first pulls are parked
            put = ["b", "a", "a", "b"]
            for count, tag in enumerate(put, start=1):
                await queue.put(a_job(tag))
                await hand.holds(count)
        assert [delivery.tag for delivery in hand.deliveries] == put

    async def test_a_tag_gets_no_job_of_another(self, queue: Queue) -> None:
        await queue.put(a_job("b"))
        assert await none_left(queue, "a")
        assert not await none_left(queue, "b")

    async def test_an_intake_goes_on_asking_when_nothing_came_for_long(self, queue: Queue) -> None:
        hand = Hand()
        async with opened(queue, ["a"], hand) as intake, opened(queue, ["b", "c"], hand) as other:
            await intake.want(1)
            await other.want(1)
            heard = intake.heard_at
            await asyncio.sleep(2.5)  # longer than one question to a queue lives; no ticks
            await queue.put(a_job("a"))
            await queue.put(a_job("c"))
            await hand.holds(2)
            assert intake.heard_at > heard

    async def test_who_wants_nothing_gets_nothing(self, queue: Queue) -> None:
        hand = Hand()
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(5)
            await intake.want(0)
            await asyncio.sleep(0.1)
            job = a_job()
            await queue.put(job)
            async with opened(queue, ["a"]) as other:
                taken = await other.take(60)
            assert taken is not None
            assert decode_job(taken.data) == job
        assert hand.deliveries == []

    async def test_take_returns_in_time_when_there_is_nothing(self, queue: Queue) -> None:
        """FLOW-365"""
        for tags in (["a"], ["a", "b"]):
            async with opened(queue, tags) as intake:
                for seconds in (0.0, 0.3):
                    began = time.monotonic()
                    assert await intake.take(seconds) is None
                    assert seconds <= time.monotonic() - began < seconds + 60

    async def test_take_returns_one_job_of_two_tags_and_leaves_the_other(self, queue: Queue) -> None:
        """FLOW-365"""
        await queue.put(a_job("a"))
        await queue.put(a_job("b"))
        async with opened(queue, ["a", "b"]) as intake:
            first, second = await intake.take(60), await intake.take(60)
            assert first is not None
            assert second is not None
            assert {first.tag, second.tag} == {"a", "b"}
            assert (first.count, second.count) == (1, 1)

    async def test_take_returns_as_soon_as_a_job_comes(self, queue: Queue) -> None:
        for tags in (["a"], ["a", "b"]):
            async with opened(queue, tags) as intake:
                began = time.monotonic()
                take = asyncio.create_task(intake.take(200))
                await asyncio.sleep(0.2)
                await queue.put(a_job(tags[-1]))
                delivery = await take
                assert delivery is not None
                assert time.monotonic() - began < 100  # and not when the time is over
                await delivery.answer(Reply.ACK)

    async def test_a_cancelled_take_leaves_the_job_to_others(self, queue: Queue) -> None:
        for _ in range(20):
            await queue.put(a_job())
            async with opened(queue, ["a"]) as intake:
                take = asyncio.create_task(intake.take(60))
                await asyncio.sleep(0.001)
                take.cancel()
                await asyncio.wait({take})
                delivery = take.result() if not take.cancelled() else None
            async with opened(queue, ["a"]) as other:
                delivery = delivery or await other.take(ACK_WAIT_SECONDS / 2)
                assert delivery is not None
                await delivery.answer(Reply.ACK)

    async def test_closing_loses_nothing_that_is_under_way(self, queue: Queue) -> None:
        """Each job is either handed over or free for others at once; none waits for its ack timer."""
        jobs = [a_job("ab"[n % 2]) for n in range(300)]
        hand = Hand()
        answers: list[asyncio.Task[None]] = []

        def take(delivery: Delivery) -> None:
            hand.take(delivery)
            answers.append(asyncio.create_task(delivery.answer(Reply.ACK)))

        async def put_all() -> None:
            for job in jobs:
                await queue.put(job)
                await asyncio.sleep(0.001)

        async def open_and_close() -> None:
            while not putting.done():
                intake = await queue.open_intake(["a", "b"], take)
                await intake.want(4)
                await asyncio.sleep(0.004)
                await intake.close()

        putting = asyncio.create_task(put_all())
        await asyncio.gather(*(open_and_close() for _ in range(5)))
        await asyncio.gather(*answers)
        rest = Hand()
        async with opened(queue, ["a", "b"], rest) as intake:
            await intake.want(len(jobs))
            await rest.holds(len(jobs) - len(hand.deliveries), ACK_WAIT_SECONDS / 8)  # on a busy machine, twice as long
        assert sorted(hand.ids + rest.ids) == sorted(job.run_id for job in jobs)

    async def test_dead_letters_are_counted(self, queue: Queue) -> None:
        """FLOW-132"""
        assert await queue.buried() == 0
        for letter_id in ("1", "2", "2"):
            letter = DeadLetter(timestamp=1.0, reason=DeadReason.TIMEOUT, error=None, tag="a")
            await queue.bury(letter, letter_id)
        assert await queue.buried() == 2
        await queue.bury(DeadLetter(timestamp=1.0, reason=DeadReason.TIMEOUT, error=None, tag="b"), "3")
        assert (await queue.buried(), await queue.buried("a"), await queue.buried("c")) == (3, 2, 0)

    async def test_the_ack_timer_is_told(self, queue: Queue) -> None:
        """FLOW-292"""
        async with opened(queue, ["a", "b"]) as intake:
            assert intake.ack_wait_seconds == ACK_WAIT_SECONDS
            assert intake.max_deliver == 20
