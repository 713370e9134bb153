"""The queue of priced runs in SQS: a standard queue with a dead-letter queue (contract 12.2)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pyoco_server.core.priced.constants import QUEUE_MAX_RECEIVE_COUNT, RECEIVE_WAIT_SECONDS
from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.logs import get_logger
from pyoco_server.ports.aws.client import ANSWER_SECONDS, aws_errors, code_of
from pyoco_server.ports.pack_queue.hold import Hold
from pyoco_server.ports.pack_queue.port import Delivery

if TYPE_CHECKING:
    from types_aiobotocore_sqs import SQSClient
    from types_aiobotocore_sqs.literals import QueueAttributeNameType
    from types_aiobotocore_sqs.type_defs import MessageTypeDef

__all__ = ["SqsPackQueue"]

log = get_logger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,76}")
#: The batch limit of SQS.
_BATCH_MAX = 10
#: If a worker is killed, its poll continues at the server and consumes a message. So a long wait is split into shorter
#: polls.
_POLL_SECONDS = 5
#: The maximum of SQS.
_VISIBILITY_SECONDS_MAX = 43_200
_DEAD_LETTERS_KEPT_SECONDS = 14 * 86_400
_MISSING = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
_EXISTS = frozenset({"QueueAlreadyExists", "QueueNameExists"})
#: The receipt has expired, or its message was deleted.
_EXPIRED = frozenset(
    {
        "AWS.SimpleQueueService.MessageNotInflight",
        "InvalidParameterValue",
        "MessageNotInflight",
        "ReceiptHandleIsInvalid",
    }
)


@dataclass(frozen=True)
class _Held:
    """The receipt of a delivery, or of a dead letter."""

    handle: str
    hold: Hold
    is_dead_letter: bool = False


class SqsPackQueue:
    """Beyond the port: a cancelled `receive` loses nothing.

    Messages in transit to it are returned soon, which counts as a delivery, like every delivery.
    """

    def __init__(self, sqs: SQSClient, url: str, visibility_seconds: int) -> None:
        """`url` is `sqs://name`. Raises SettingError."""
        self._sqs = sqs
        self._name = url.removeprefix("sqs://").rstrip("/")
        if not _NAME.fullmatch(self._name):
            raise SettingError(
                f"PYOCO_PACK_QUEUE_URL={url!r} names no queue; example: PYOCO_PACK_QUEUE_URL=sqs://dpp-runs"
            )
        self._visibility_seconds = min(visibility_seconds, _VISIBILITY_SECONDS_MAX)
        #: URLs of the queue and of the dead-letter queue; set by `start`.
        self._queue_url = self._dead_letters_url = ""
        #: Polls of cancelled receives, and the return of what they bring.
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Create or correct both queues. The dead-letter queue comes first, because the other one refers to it."""
        visibility = str(self._visibility_seconds)
        async with aws_errors("make the queue of priced runs", 4 * ANSWER_SECONDS):
            kept: dict[QueueAttributeNameType, str] = {
                "MessageRetentionPeriod": str(_DEAD_LETTERS_KEPT_SECONDS),
                "VisibilityTimeout": visibility,
            }
            dead_letters_url = await self._ensure(f"{self._name}-dlq", kept)
            found = await self._sqs.get_queue_attributes(QueueUrl=dead_letters_url, AttributeNames=["QueueArn"])
            policy = {
                "deadLetterTargetArn": found["Attributes"]["QueueArn"],
                "maxReceiveCount": QUEUE_MAX_RECEIVE_COUNT,
            }
            wanted: dict[QueueAttributeNameType, str] = {
                "VisibilityTimeout": visibility,
                "ReceiveMessageWaitTimeSeconds": str(RECEIVE_WAIT_SECONDS),
                "RedrivePolicy": json.dumps(policy),
            }
            self._queue_url = await self._ensure(self._name, wanted)
            self._dead_letters_url = dead_letters_url

    async def close(self) -> None:
        """Wait for the polls of cancelled receives, and for the return of what they bring."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def send(self, body: bytes, message_id: str) -> None:
        """Send a message. A standard queue has no message ids: a repeat is a second message."""
        async with aws_errors("send a priced run"):
            await self._sqs.send_message(QueueUrl=self._queue_url, MessageBody=body.decode())

    async def receive(self, at_most: int, wait_seconds: int) -> Sequence[Delivery]:
        ends_at = time.monotonic() + wait_seconds
        while True:
            left = round(ends_at - time.monotonic())
            received = await self._poll_to_end(min(at_most, _BATCH_MAX), max(0, min(left, _POLL_SECONDS)))
            if received or time.monotonic() >= ends_at - 0.5:
                return received

    async def ack(self, delivery: Delivery) -> None:
        held = _holding(delivery)
        if held is not None:
            held.hold.end()
            await self._delete(self._queue_url, held)

    async def nack(self, delivery: Delivery, delay_seconds: int) -> None:
        held = _holding(delivery)
        if held is not None:
            held.hold.end()
            await self._show_after(held, min(delay_seconds, _VISIBILITY_SECONDS_MAX))

    async def extend(self, delivery: Delivery) -> None:
        held = _holding(delivery)
        if held is not None:
            await self._show_after(held, self._visibility_seconds)
            held.hold.begin_anew()

    async def dead_letters(self, at_most: int) -> Sequence[Delivery]:
        dead_letters: list[Delivery] = []
        while len(dead_letters) < at_most:
            some = await self._receive(self._dead_letters_url, min(at_most - len(dead_letters), _BATCH_MAX), 0)
            if not some:
                break
            dead_letters += [self._dead_letter(message) for message in some]
        return dead_letters

    async def redrive(self, dead_letter: Delivery) -> None:
        """Send first, then delete: a crash in between leaves a harmless second message, rather than none."""
        held = dead_letter.receipt
        assert isinstance(held, _Held), "not a dead letter"
        assert held.is_dead_letter, "not a dead letter"
        await self.send(dead_letter.body, "")
        await self._delete(self._dead_letters_url, held)

    async def depth(self) -> tuple[int, int]:
        queued, dead_letters = await asyncio.gather(self._count(self._queue_url), self._count(self._dead_letters_url))
        return queued, dead_letters

    async def begun_at(self) -> int | None:
        return None

    async def ping(self) -> None:
        async with aws_errors("reach the queue of priced runs"):
            await self._sqs.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=["QueueArn"])

    async def probe(self) -> None:
        """Like `ping`: SQS has no disk of ours that could be full, so if it answers, it stores messages."""
        await self.ping()

    async def _ensure(self, name: str, wanted: Mapping[QueueAttributeNameType, str]) -> str:
        """Find or create a queue, and correct settings that differ. Return its URL."""
        url = await self._find(name)
        if not url:
            try:
                return (await self._sqs.create_queue(QueueName=name, Attributes=wanted))["QueueUrl"]
            except ClientError as error:
                if code_of(error) not in _EXISTS:  # otherwise created concurrently with other settings
                    raise
            url = await self._find(name)
        found = (await self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"]))["Attributes"]
        different = {key: value for key, value in wanted.items() if not _is_same(found.get(key, ""), value)}
        if different:
            await self._sqs.set_queue_attributes(QueueUrl=url, Attributes=different)
            log.warning("existing queue had other settings, corrected", queue=name, settings=list(different))
        return url

    async def _find(self, name: str) -> str:
        try:
            return (await self._sqs.get_queue_url(QueueName=name))["QueueUrl"]
        except ClientError as error:
            if code_of(error) in _MISSING:
                return ""
            raise

    async def _poll_to_end(self, at_most: int, seconds: int) -> list[Delivery]:
        """Poll to the end, even if cancelled: an aborted poll would hide what it brings for the visibility timeout."""
        polling = asyncio.create_task(self._receive(self._queue_url, at_most, seconds))
        try:
            messages = await asyncio.shield(polling)
        except asyncio.CancelledError:
            self._return_later(polling)
            raise
        return [
            Delivery(
                message["Body"].encode(),
                int(message["Attributes"]["ApproximateReceiveCount"]),
                _Held(message["ReceiptHandle"], Hold(self._visibility_seconds)),
            )
            for message in messages
        ]

    async def _receive(self, queue_url: str, at_most: int, seconds: int) -> list[MessageTypeDef]:
        async with aws_errors("receive priced runs", seconds + ANSWER_SECONDS):
            answer = await self._sqs.receive_message(
                QueueUrl=queue_url,
                MaxNumberOfMessages=at_most,
                WaitTimeSeconds=seconds,
                VisibilityTimeout=self._visibility_seconds,
                MessageSystemAttributeNames=["ApproximateReceiveCount"],
            )
        return answer.get("Messages", [])

    def _return_later(self, polling: asyncio.Task[list[MessageTypeDef]]) -> None:
        async def return_messages() -> None:
            # Delayed: polls of other workers that stop would otherwise pass it around until it is a dead letter.
            seconds = min(_POLL_SECONDS, self._visibility_seconds)
            try:
                for message in await polling:
                    await self._show_after(_Held(message["ReceiptHandle"], Hold(self._visibility_seconds)), seconds)
            except DependencyUnavailable as error:
                log.warning(
                    "cannot return a priced run, it will be redelivered after its visibility timeout", error=error
                )

        task = asyncio.create_task(return_messages())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _dead_letter(self, message: MessageTypeDef) -> Delivery:
        held = _Held(message["ReceiptHandle"], Hold(self._visibility_seconds), is_dead_letter=True)
        return Delivery(message["Body"].encode(), QUEUE_MAX_RECEIVE_COUNT, held)

    async def _delete(self, queue_url: str, held: _Held) -> None:
        async with aws_errors("acknowledge a priced run"):
            try:
                await self._sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=held.handle)
            except ClientError as error:
                _forgive_expired(error)

    async def _show_after(self, held: _Held, seconds: int) -> None:
        async with aws_errors("hold a priced run, or give it back"):
            try:
                await self._sqs.change_message_visibility(
                    QueueUrl=self._queue_url, ReceiptHandle=held.handle, VisibilityTimeout=seconds
                )
            except ClientError as error:
                _forgive_expired(error)

    async def _count(self, queue_url: str) -> int:
        names: tuple[QueueAttributeNameType, ...] = (
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        )
        async with aws_errors("count priced runs"):
            found = await self._sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)
        return sum(int(found["Attributes"].get(name, "0")) for name in names)


def _holding(delivery: Delivery) -> _Held | None:
    """Return the held delivery. None: its visibility timeout has passed."""
    held = delivery.receipt
    assert isinstance(held, _Held), "not a delivery of this queue"
    return None if held.hold.is_over or held.is_dead_letter else held


def _forgive_expired(error: ClientError) -> None:
    """Ignore expired receipts, raise any other error (PRICED-202)."""
    if code_of(error) not in _EXPIRED:
        raise error


def _is_same(found: str, wanted: str) -> bool:
    """Compare attributes. A policy has several notations, for example with the count as text."""
    if not wanted.startswith("{"):
        return found == wanted
    try:
        policy: Any = json.loads(found or "{}")
    except ValueError:
        return False
    return {key: str(value) for key, value in policy.items()} == {
        key: str(value) for key, value in json.loads(wanted).items()
    }
