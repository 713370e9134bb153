"""A tag that is no token of a subject: a stranger's record may have one, and it must reach no wire."""

from __future__ import annotations

import json
import timeit

import pytest

from contracts.queue import a_job, opened
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.dead_letter import DeadLetter
from pyoco_server.core.outcome import DeadReason
from pyoco_server.errors import NotStored, UsageError
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import BadSubject, Link, Rejected
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from support.backends import dead_letters, jobs_left

ODD = ["x y", "x\r\nPUB injected 0\r\n", "x\ty", "x.y", "*", ">", "", "x/y", "\ud800", "x\u2028y", "t" * 129]


@pytest.fixture
async def queue(link: Link, config: NatsBackendConfig) -> JetStreamQueue:
    await ensure(link, resources_of(config))
    return JetStreamQueue(link, config)


@pytest.mark.parametrize("tag", ODD, ids=ascii)
class TestATagThatCanBeNoLane:
    async def test_has_an_empty_stock_and_no_leftover(self, link: Link, queue: JetStreamQueue, tag: str) -> None:
        await queue.put(a_job("other"))  # what a wildcard would find
        connection = link.connection
        stock = await queue.stock(tag)
        assert (stock.waiting_since, stock.in_hand, stock.waiting) == (None, frozenset(), frozenset())
        assert await queue.leftover(tag) is None
        assert link.connection == connection, "NATS hung up"

    async def test_takes_no_job_and_gets_no_consumer(
        self, link: Link, queue: JetStreamQueue, config: NatsBackendConfig, tag: str
    ) -> None:
        connection = link.connection
        with pytest.raises(NotStored):
            await queue.put(a_job(tag))
        with pytest.raises(UsageError):
            async with opened(queue, [tag]):
                pass
        assert await jobs_left(link, config) == []
        consumers = await link.api(f"CONSUMER.NAMES.{config.work_stream}", {}, dict[str, object])
        assert not consumers["consumers"]
        assert link.connection == connection, "NATS hung up"

    async def test_still_has_letters(
        self, link: Link, queue: JetStreamQueue, config: NatsBackendConfig, tag: str
    ) -> None:
        """FLOW-330: a failed run gets a dead letter, whatever its tag is."""
        await queue.bury(DeadLetter(timestamp=1.0, reason=DeadReason.ABANDONED, error="e", tag=tag), "id")
        [letter] = await dead_letters(link, config)
        assert letter["subject"] == f"{config.dlq_subject_prefix}._"
        assert letter["body"]["tag"] == json.loads(json.dumps(tag).replace("\\ud800", "?"))


@pytest.mark.parametrize("odd", ["a b", "a\r\nPING", "a\nb", "a\tb", "a\0b", "a\u00a0b"], ids=ascii)
async def test_a_link_sends_nothing_on_what_is_no_subject(link: Link, odd: str) -> None:
    connection = link.connection
    for send in (lambda: link.ask(odd, b""), lambda: link.store(odd, b""), lambda: link.tell(odd)):
        with pytest.raises(BadSubject) as caught:
            await send()
        assert isinstance(caught.value, Rejected)
        assert caught.value.code == 0
    with pytest.raises(Rejected):
        await link.insist(f"CONSUMER.INFO.{odd}", {}, dict[str, object])
    await link.nc.flush()
    assert link.connection == connection, "NATS hung up"


def test_to_look_at_a_subject_costs_next_to_nothing() -> None:
    """It is on the way of every message: measured, 0.14 µs."""
    subject = "$KV.pyoco_runs.00000000-0000-4000-8000-000000000000"
    assert min(timeit.repeat(lambda: " " in subject or not subject.isprintable(), number=20_000)) / 20_000 < 2e-6
