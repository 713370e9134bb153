"""The queue of priced runs in SQS: the contract, its settings, and what a network does to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from contracts.pack_queue import VISIBILITY_SECONDS, PackQueueContract, a_body, one, send
from pyoco_server.config import AwsSettings
from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.ports.aws import client as aws_client
from pyoco_server.ports.aws.client import open_sqs
from pyoco_server.ports.pack_queue import sqs
from pyoco_server.ports.pack_queue.port import PackQueue
from pyoco_server.ports.pack_queue.sqs import SqsPackQueue
from support.priced.aws_clients import settings_of
from support.priced.servers import Aws, MotoServer

if TYPE_CHECKING:
    from types_aiobotocore_sqs import SQSClient

URL = "sqs://dpp-runs"


@pytest.fixture
async def client(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SQSClient]:
    async with open_sqs(settings_of(aws, monkeypatch)) as client:
        yield client


async def attributes(client: SQSClient, name: str) -> dict[str, str]:
    url = (await client.get_queue_url(QueueName=name))["QueueUrl"]
    found = await client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
    return {str(key): value for key, value in found["Attributes"].items()}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was cancelled is waited for."""
    monkeypatch.setattr(sqs, "_POLL_SECONDS", 1)


@pytest.fixture
def visibility_seconds() -> int:
    return VISIBILITY_SECONDS


@pytest.fixture
async def queue(client: SQSClient, visibility_seconds: int) -> AsyncIterator[SqsPackQueue]:
    queue = SqsPackQueue(client, URL, visibility_seconds)
    await queue.start()
    yield queue
    await queue.close()


@pytest.fixture
async def rival(queue: PackQueue, client: SQSClient, visibility_seconds: int) -> AsyncIterator[PackQueue]:
    rival = SqsPackQueue(client, URL, visibility_seconds)
    await rival.start()
    yield rival
    await rival.close()


class TestSqsPackQueue(PackQueueContract):
    pass


class TestWhatSqsItselfDoes:
    """The part of the contract that its visibility, its letters and its encoding have to keep."""

    test_what_is_sent_arrives_byte_for_byte_and_once = (
        PackQueueContract.test_what_is_sent_arrives_byte_for_byte_and_once
    )
    test_a_message_in_hand_is_nobody_elses = PackQueueContract.test_a_message_in_hand_is_nobody_elses
    test_silence_brings_it_to_another = PackQueueContract.test_silence_brings_it_to_another
    test_who_comes_too_late_harms_nobody = PackQueueContract.test_who_comes_too_late_harms_nobody
    test_the_third_delivery_is_the_last = PackQueueContract.test_the_third_delivery_is_the_last
    test_a_dead_letter_works_again_when_it_is_redriven = (
        PackQueueContract.test_a_dead_letter_works_again_when_it_is_redriven
    )
    test_who_is_cancelled_while_he_receives_loses_nothing = (
        PackQueueContract.test_who_is_cancelled_while_he_receives_loses_nothing
    )


class TestSettings:
    async def test_the_queues_are_those_of_the_contract(self, client: SQSClient) -> None:
        """PRICED-200, PRICED-203"""
        queue = SqsPackQueue(client, URL, 120)
        await queue.start()
        await queue.start()
        made, letters = await attributes(client, "dpp-runs"), await attributes(client, "dpp-runs-dlq")
        assert (made["VisibilityTimeout"], made["ReceiveMessageWaitTimeSeconds"]) == ("120", "20")
        policy = json.loads(made["RedrivePolicy"])
        assert (policy["deadLetterTargetArn"], int(policy["maxReceiveCount"])) == (letters["QueueArn"], 3)
        assert letters["MessageRetentionPeriod"] == str(14 * 86_400)

    async def test_a_queue_that_is_there_is_put_right(self, client: SQSClient) -> None:
        """PRICED-200, PRICED-203"""
        await client.create_queue(QueueName="dpp-runs", Attributes={"VisibilityTimeout": "7", "DelaySeconds": "1"})
        await SqsPackQueue(client, URL, 120).start()
        made = await attributes(client, "dpp-runs")
        assert (made["VisibilityTimeout"], made["DelaySeconds"]) == ("120", "1")
        assert "dpp-runs-dlq" in made["RedrivePolicy"]

    async def test_many_may_start_at_once(self, client: SQSClient) -> None:
        await asyncio.gather(*(SqsPackQueue(client, URL, 120 + n).start() for n in range(4)))
        assert int((await attributes(client, "dpp-runs"))["VisibilityTimeout"]) in range(120, 124)

    @pytest.mark.parametrize("url", ["sqs://", "sqs://a/b", "sqs://dpp runs", "sqs://runs.fifo", "sqs://" + "a" * 77])
    def test_what_is_no_name_is_refused(self, url: str) -> None:
        nobody: Any = None
        with pytest.raises(SettingError, match="PYOCO_PACK_QUEUE_URL"):
            SqsPackQueue(nobody, url, 120)


class TestReceiving:
    async def test_more_than_a_batch_comes_in_several(self, queue: PackQueue) -> None:
        for _ in range(12):
            await send(queue)
        first = await queue.receive(100, 0)
        assert 1 <= len(first) <= 10
        rest = await queue.receive(100, 0)
        assert len(first) + len(rest) == 12

    async def test_what_polls_bring_to_those_who_were_cancelled_goes_back(
        self, client: SQSClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-203: of five who stop at once, one burns a delivery: the others are gone when it is back."""
        queue = SqsPackQueue(client, URL, VISIBILITY_SECONDS)
        await queue.start()
        change, delays = client.change_message_visibility, []

        async def noting(**asked: Any) -> None:
            delays.append(asked["VisibilityTimeout"])
            await change(**asked)

        monkeypatch.setattr(client, "change_message_visibility", noting)
        for poll_seconds in (1, 4, 16):
            monkeypatch.setattr(sqs, "_POLL_SECONDS", poll_seconds)
            receiving = [asyncio.create_task(queue.receive(1, 20)) for _ in range(5)]
            await asyncio.sleep(0)  # now they ask
            for each in receiving:
                each.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)
            await send(queue)
            await queue.close()  # returns when they have brought it, and it has gone back
            if delays:
                break
            await queue.ack(await one(queue))  # on a busy machine nobody asked any more when it came
        assert delays == [1]
        again = await one(queue)
        assert again.count == 2

    async def test_a_receipt_that_sqs_has_forgotten_harms_nobody(self, queue: SqsPackQueue, client: SQSClient) -> None:
        """PRICED-202"""
        await send(queue)
        delivery = await one(queue)
        await client.purge_queue(QueueUrl=queue._queue_url)
        await queue.extend(delivery)
        await queue.ack(delivery)


class TestOutages:
    async def test_a_server_that_is_gone_says_so_in_time(self, client: SQSClient, unused_port: int) -> None:
        """PRICED-199, SAFE-13"""
        async with open_sqs(AwsSettings(endpoint_url=f"http://127.0.0.1:{unused_port}")) as nobody:
            queue = SqsPackQueue(nobody, URL, 120)
            began = time.monotonic()
            results = await asyncio.gather(
                queue.start(),
                queue.send(a_body(), "x"),
                queue.receive(1, 20),
                queue.dead_letters(1),
                queue.depth(),
                queue.ping(),
                queue.probe(),
                return_exceptions=True,
            )
            assert {type(each) for each in results} == {DependencyUnavailable}
            assert time.monotonic() - began < 60

    async def test_a_server_that_stands_still_says_so_in_time(
        self, queue: PackQueue, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-199"""
        await send(queue)
        delivery = await one(queue)
        monkeypatch.setattr(aws_client, "ANSWER_SECONDS", 1.0)
        with moto_server.frozen():
            began = time.monotonic()
            results = await asyncio.gather(
                queue.send(a_body(), "x"), queue.extend(delivery), queue.probe(), return_exceptions=True
            )
            assert {type(each) for each in results} == {DependencyUnavailable}
            assert time.monotonic() - began < 60

    async def test_a_queue_that_was_deleted_is_no_empty_queue(self, queue: SqsPackQueue, client: SQSClient) -> None:
        await client.delete_queue(QueueUrl=queue._queue_url)
        for doing in (queue.receive(1, 1), queue.send(a_body(), "x"), queue.depth(), queue.probe()):
            with pytest.raises(DependencyUnavailable):
                await doing
