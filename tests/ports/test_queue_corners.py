"""The queue after a reconnect, after a refusal, and while a cluster chooses its leader."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from contracts.queue import Hand, a_job, opened
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import decode_job
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats import puller as puller_module
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.queue.intake import JetStreamIntake
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.queue.port import Delivery, Reply
from support.servers import NatsServer, config_for
from support.waiting import eventually


class TestALaterThatComesTooLate:
    """Acks are not fenced: sent after an outage, it might put off a delivery that is another worker's by then."""

    @pytest.fixture
    def sent(self, link: Link, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        words: list[bytes] = []
        send = link.nc.send

        async def note(subject: str, data: bytes, *args: Any) -> None:
            if subject.startswith("$JS.ACK."):
                words.append(data)
            await send(subject, data, *args)

        monkeypatch.setattr(link.nc, "send", note)
        return words

    async def in_hand(self, link: Link, prepared: NatsBackendConfig) -> Delivery:
        queue = JetStreamQueue(link, prepared)
        await queue.put(a_job())
        async with opened(queue, ["a"]) as intake:
            delivery = await intake.take(60)
        assert delivery is not None
        return delivery

    async def test_is_not_sent_over_another_connection(
        self, link: Link, prepared: NatsBackendConfig, sent: list[bytes]
    ) -> None:
        delivery = await self.in_hand(link, prepared)
        link.connection += 1  # as after each loss
        await delivery.answer(Reply.LATER, 1.0)
        assert sent == []
        await delivery.answer(Reply.ACK)  # what is done is done, whoever has it
        assert sent == [b"+ACK"]

    async def test_is_not_kept_for_a_connection_that_comes_back(self, own_nats_server: NatsServer) -> None:
        link = await open_link(own_nats_server.url, "tests")
        config = config_for(own_nats_server.url)
        await ensure(link, resources_of(config))
        delivery = await self.in_hand(link, config)
        own_nats_server.kill()
        await eventually(lambda: not link.is_up)
        await delivery.answer(Reply.LATER)
        own_nats_server.start()
        await eventually(lambda: link.is_up)
        async with opened(JetStreamQueue(link, config), ["a"]) as intake:
            assert await intake.take(1.0) is None  # it waits for its ack timer
        await link.close()

    async def test_is_sent_while_the_connection_lives(
        self, link: Link, prepared: NatsBackendConfig, sent: list[bytes]
    ) -> None:
        await (await self.in_hand(link, prepared)).answer(Reply.LATER, 1.5)
        assert sent == [b'-NAK {"delay": 1500000000}']


class TestALaneThatIsRefused:
    async def test_is_bound_again_and_the_others_go_on(self, link: Link, prepared: NatsBackendConfig) -> None:
        """Somebody deletes one tag's consumer; the worker's other tags are served meanwhile."""
        queue, hand = JetStreamQueue(link, prepared), Hand()
        async with opened(queue, ["a", "b"], hand) as intake:
            await intake.want(1)
            await link.api(f"CONSUMER.DELETE.{prepared.work_stream}.pyoco_worker_b", {}, dict[str, Any])
            await queue.put(a_job("a"))

            async def delivered(count: int) -> bool:
                await intake.tick()
                return len(hand.deliveries) == count

            await eventually(lambda: delivered(1))
            await queue.put(a_job("b"))
            await intake.want(1)
            await eventually(lambda: delivered(2))
        assert [delivery.tag for delivery in hand.deliveries] == ["a", "b"]

    async def test_is_not_asked_in_a_hurry(
        self, link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A queue that goes on refusing hears of us twice a second, and not as often as it answers."""
        queue, hand = JetStreamQueue(link, prepared), Hand()
        asked = bound = 0
        send = link.nc.send

        async def note(subject: str, *args: Any) -> None:
            nonlocal asked
            asked += ".MSG.NEXT." in subject
            await send(subject, *args)

        async with opened(queue, ["a"], hand) as intake:

            async def refuse(tag: str) -> Any:
                nonlocal bound
                bound += 1
                raise Unavailable(f"nobody may bind to {tag}")

            bind = intake._bind  # type: ignore[attr-defined]
            intake._bind = refuse  # type: ignore[attr-defined]
            await link.api(f"CONSUMER.DELETE.{prepared.work_stream}.pyoco_worker_a", {}, dict[str, Any])
            monkeypatch.setattr(link.nc, "send", note)
            began = time.monotonic()
            await intake.want(1)
            for _ in range(20):
                await intake.tick()
                await asyncio.sleep(0.05)
            most = 1 + 2 * (time.monotonic() - began)
            assert 1 <= asked <= most
            assert 1 <= bound <= most
            intake._bind = bind  # type: ignore[attr-defined]
            job = a_job()
            await queue.put(job)

            async def delivered() -> bool:
                await intake.tick()
                return hand.ids == [job.run_id]

            await eventually(delivered)


class TestWhileAClusterChoosesItsLeader:
    """JetStream says "temporarily unavailable" (10008): no more than "ask again"."""

    def refusing(self, link: Link, monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> list[str]:
        asked: list[str] = []
        api = link.api

        async def refuse(subject: str, *args: Any, **more: Any) -> Any:
            asked.append(subject)
            if len(asked) <= times:
                raise Rejected(code, "JetStream system temporarily unavailable")
            return await api(subject, *args, **more)

        monkeypatch.setattr(link, "api", refuse)
        return asked

    async def test_resources_are_asked_for_again(
        self, link: Link, config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resource = resources_of(config)[0]
        asked = self.refusing(link, monkeypatch, 10008, 3)
        await ensure(link, [resource])
        assert len(asked) == 5  # three refusals, then not found, then made

    async def test_any_other_refusal_is_final(
        self, link: Link, config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = self.refusing(link, monkeypatch, 10076, 3)
        with pytest.raises(Unavailable, match=config.work_stream):
            await ensure(link, resources_of(config)[:1])
        assert len(asked) == 1

    async def test_patience_ends(
        self, nats_url: str, config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        link = await open_link(nats_url, "tests", Patience(unanswered_seconds=0.4))
        self.refusing(link, monkeypatch, 10008, 10**9)
        with pytest.raises(Unavailable, match=config.work_stream):
            await ensure(link, resources_of(config)[:1])
        await link.close()


async def test_decoded_jobs_are_what_was_put(link: Link, prepared: NatsBackendConfig) -> None:
    """A leftover carries the job itself, its tag and its subject."""
    queue = JetStreamQueue(link, prepared)
    job = a_job("gpu-large")
    await queue.put(job)
    found = await queue._jobs.at(1)
    assert found is not None
    assert decode_job(found.body) == job
    assert found.subject == f"{prepared.work_subject_prefix}.gpu-large"
    assert await queue._jobs.at(2) is None


async def test_an_inbox_is_listened_to_until_the_server_has_heard_that_it_is_left(
    link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stood still gives a job to whoever asked last, as far as it knows: dropped, it would wait for its
    ack timer."""

    async def unheard(*_: Any) -> None:
        """What we say does not reach the server yet."""

    queue, came = JetStreamQueue(link, prepared), asyncio.Event()
    async with opened(queue, ["a"]) as intake:
        assert isinstance(intake, JetStreamIntake)
        puller = intake._pullers[0]
        monkeypatch.setattr(puller, "_on_delivery", lambda _: came.set())
        await puller.park(1, 200)
        await link.nc.flush()
        monkeypatch.setattr(link.nc, "_send_unsubscribe", unheard)
        monkeypatch.setattr(link.nc, "_send_ping", unheard)
        puller.leave()
        _, listening = await asyncio.wait(set(puller._leaving), timeout=2.5)
        assert listening
        await queue.put(a_job())
        await asyncio.wait_for(came.wait(), 60)
        await puller.left()


async def test_an_inbox_that_went_with_its_connection_is_left_at_once(
    own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_STRAGGLER_SECONDS", "_CONFIRM_SECONDS", "_STOP_SECONDS"):
        monkeypatch.setattr(puller_module, name, 300.0)
    link = await open_link(own_nats_server.url, "tests")
    config = config_for(own_nats_server.url)
    await ensure(link, resources_of(config))
    async with opened(JetStreamQueue(link, config), ["a", "b", "c"]) as intake:
        assert isinstance(intake, JetStreamIntake)
        for puller in intake._pullers:
            await puller.park(1, 20)
        own_nats_server.kill()
        await eventually(lambda: not link.is_up)
        for puller in intake._pullers:
            puller.leave()
        left = asyncio.gather(*(puller.left() for puller in intake._pullers))
        await asyncio.wait_for(left, 60)
        own_nats_server.start()
    await link.close()
