"""The queue in JetStream: the contract, and what this one does when its server or its consumers go away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from contracts.queue import ACK_WAIT_SECONDS, Hand, MakeQueue, QueueContract, a_job, opened
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.outcome import DeadReason
from pyoco_server.errors import NotStored, Unavailable
from pyoco_server.ports.nats import puller
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.queue import intake as intakes
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.queue.port import Queue, Reply
from support.faults import open_faulty_link
from support.nats_clients import network_client
from support.servers import NatsServer, config_for
from support.waiting import eventually


async def messages_of(link: Link, stream: str) -> int:
    info = await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
    return int(info["state"]["messages"])


class TestJetStreamQueue(QueueContract):
    @pytest.fixture
    def make_queue(self, link: Link, prepared: NatsBackendConfig) -> MakeQueue:
        def make(ack_wait_seconds: float) -> Queue:
            timers: dict[str, Any] = {
                "consumer_ack_wait_sec": ack_wait_seconds,
                "ack_progress_interval_sec": ack_wait_seconds / 2,
            }
            return JetStreamQueue(link, replace(prepared, **timers))

        return make

    @pytest.fixture
    def queue(self, make_queue: MakeQueue) -> Queue:
        return make_queue(ACK_WAIT_SECONDS)

    async def test_a_parked_pull_brings_a_job_of_every_tag(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        """It expires after the test: no other pull can bring the jobs."""
        monkeypatch.setattr(intakes, "EXPIRES_SECONDS", 3600.0)
        await self.test_a_waiting_intake_hears_of_every_tag(queue)


class TestPutting:
    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_without_an_answer_is_repeated_and_stored_once(
        self, nats_url: str, prepared: NatsBackendConfig, fault: str
    ) -> None:
        """FLOW-77"""
        link = await open_faulty_link(nats_url)
        link.faults.append(fault)
        await JetStreamQueue(link, prepared).put(a_job())
        assert await messages_of(link, prepared.work_stream) == 1
        await link.close()

    async def test_says_what_is_certain_when_it_gives_up(self, nats_url: str, prepared: NatsBackendConfig) -> None:
        link = await open_faulty_link(nats_url, Patience(unanswered_seconds=0.2))
        link.faults.extend(["unheard"] * 20)
        with pytest.raises(NotStored):
            await JetStreamQueue(link, prepared).put(a_job())
        link.faults.clear()
        link.faults.extend(["before", *["unheard"] * 20])
        with pytest.raises(Unavailable) as raised:
            await JetStreamQueue(link, prepared).put(a_job())
        assert not isinstance(raised.value, NotStored)
        await link.close()

    async def test_into_a_stream_that_is_not_there_stores_nothing(self, nats_url: str) -> None:
        link = await open_link(nats_url, "tests", Patience(unanswered_seconds=0.2))
        with pytest.raises(NotStored):
            await JetStreamQueue(link, config_for(nats_url)).put(a_job())
        await link.close()


async def test_a_dead_letter_is_stored_once_per_id(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-330 to FLOW-334, FLOW-337"""
    queue = JetStreamQueue(link, prepared)
    letter = DeadLetter(timestamp=1.5, reason=DeadReason.EXECUTION_ERROR, error="why", tag="a", run_id="r", tags=("x",))
    for letter_id in ("one", "one", "two"):
        await queue.bury(letter, letter_id)
    assert await messages_of(link, prepared.dlq_stream) == 2
    found = await network_client(link).jetstream().get_last_msg(prepared.dlq_stream, f"{prepared.dlq_subject_prefix}.a")
    assert json.loads(found.data or b"") == {
        "timestamp": 1.5,
        "reason": "execution_error",
        "error": "why",
        "tag": "a",
        "run_id": "r",
        "tags": ["x"],
    }


class TestAnExistingConsumer:
    async def test_keeps_its_settings_and_they_are_told(self, link: Link, prepared: NatsBackendConfig) -> None:
        """FLOW-285, FLOW-292"""
        other = replace(prepared, consumer_ack_wait_sec=12.0, consumer_max_deliver=7)
        async with opened(JetStreamQueue(link, other), ["a"]):
            pass
        async with opened(JetStreamQueue(link, prepared), ["a"]) as intake:
            assert (intake.ack_wait_seconds, intake.max_deliver) == (12.0, 7)
        async with opened(JetStreamQueue(link, prepared), ["a", "b"]) as intake:
            assert (intake.ack_wait_seconds, intake.max_deliver) == (12.0, 7)

    async def test_is_the_same_for_workers_that_start_at_once(self, link: Link, prepared: NatsBackendConfig) -> None:
        """FLOW-288"""
        queues = [JetStreamQueue(link, replace(prepared, consumer_max_deliver=n + 1)) for n in range(8)]
        intakes = await asyncio.gather(*(queue.open_intake(["a"], Hand().take) for queue in queues))
        assert len({intake.max_deliver for intake in intakes}) == 1
        for intake in intakes:
            await intake.close()

    async def test_without_a_limit_of_deliveries_says_so(self, link: Link, prepared: NatsBackendConfig) -> None:
        config = {"durable_name": "pyoco_worker_a", "filter_subject": f"{prepared.work_subject_prefix}.a"}
        request = {"stream_name": prepared.work_stream, "config": {**config, "ack_policy": "explicit"}}
        await link.api(f"CONSUMER.DURABLE.CREATE.{prepared.work_stream}.pyoco_worker_a", request, dict[str, Any])
        async with opened(JetStreamQueue(link, prepared), ["a"]) as intake:
            assert intake.max_deliver == 0

    async def test_that_is_deleted_is_made_again(
        self, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(puller, "_DEAF_SECONDS", 0.5)
        hand = Hand()
        queue = JetStreamQueue(link, prepared)
        async with opened(queue, ["a"], hand) as intake:
            await intake.want(1)
            await link.api(f"CONSUMER.DELETE.{prepared.work_stream}.pyoco_worker_a", {}, dict[str, Any])
            await queue.put(a_job())

            async def delivered() -> bool:
                await intake.tick()
                return bool(hand.deliveries)

            await eventually(delivered)


async def test_a_job_delivered_too_often_comes_no_more(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-295"""
    queue = JetStreamQueue(link, replace(prepared, consumer_max_deliver=2))
    await queue.put(a_job())
    async with opened(queue, ["a"]) as intake:
        for count in (1, 2):
            delivery = await intake.take(60)
            assert delivery is not None
            assert delivery.count == count
            await delivery.answer(Reply.LATER)
        assert await intake.take(0.3) is None


class TestAServerThatGoesAway:
    @pytest.fixture
    async def own(self, own_nats_server: NatsServer) -> AsyncIterator[tuple[Link, NatsBackendConfig]]:
        link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.5))
        config = config_for(own_nats_server.url)
        await ensure(link, resources_of(config))
        yield link, config
        await link.close()

    @pytest.mark.parametrize("tags", [["a"], ["a", "b"]])
    async def test_is_asked_again_as_soon_as_it_is_back(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer, tags: list[str]
    ) -> None:
        link, config = own
        hand = Hand()
        queue = JetStreamQueue(link, config)
        async with opened(queue, tags, hand) as intake:
            await intake.want(3)
            await queue.put(a_job())
            await hand.holds(1)
            for count in (2, 3):
                await asyncio.to_thread(own_nats_server.restart)
                await eventually(lambda: link.is_up)
                await queue.put(a_job(tags[-1]))
                back = time.monotonic()
                while len(hand.deliveries) < count:
                    await intake.tick()
                    await asyncio.sleep(0.05)
                assert time.monotonic() - back < 60
            assert len(hand.deliveries) == 3

    async def test_a_take_without_a_connection_says_so(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer
    ) -> None:
        link, config = own
        async with opened(JetStreamQueue(link, config), ["a"]) as intake:
            own_nats_server.kill()
            await eventually(lambda: not link.is_up)
            with pytest.raises(Unavailable):
                await intake.take(0.1)

    async def test_a_hold_without_a_connection_says_so(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer
    ) -> None:
        """FLOW-315"""
        link, config = own
        queue = JetStreamQueue(link, config)
        await queue.put(a_job())
        async with opened(queue, ["a"]) as intake:
            delivery = await intake.take(60)
            assert delivery is not None
            own_nats_server.kill()
            await eventually(lambda: not link.is_up)
            with pytest.raises(Unavailable):
                await delivery.hold()
            await delivery.answer(Reply.ACK)  # best effort: it does not raise

    async def test_an_intake_closes_without_it(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer
    ) -> None:
        link, config = own
        async with opened(JetStreamQueue(link, config), ["a", "b"]) as intake:
            await intake.want(2)
            own_nats_server.kill()
            await eventually(lambda: not link.is_up)
            began = time.monotonic()
        assert time.monotonic() - began < 60


async def test_many_jobs_pass_a_small_hand_each_once(link: Link, prepared: NatsBackendConfig) -> None:
    """The credit loop under load: a thousand jobs, two tags, eight places."""
    queue = JetStreamQueue(link, prepared)
    jobs = [a_job("ab"[n % 2]) for n in range(1000)]
    await asyncio.gather(*map(queue.put, jobs))
    held: set[Any] = set()
    done = Hand()
    most = 0

    def take(delivery: Any) -> None:
        nonlocal most
        held.add(delivery)
        most = max(most, len(held))

    intake = await queue.open_intake(["a", "b"], take)
    async with asyncio.timeout(200):
        while len(done.deliveries) < len(jobs):
            await intake.want(8 - len(held))
            await eventually(lambda: bool(held))
            for delivery in list(held):
                await delivery.answer(Reply.ACK)
                held.discard(delivery)
                done.take(delivery)
    await intake.close()
    assert most <= 8
    assert sorted(done.ids) == sorted(job.run_id for job in jobs)
    assert all(delivery.count == 1 for delivery in done.deliveries)
