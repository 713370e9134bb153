"""JetStream operations that are applied to two servers, and what is compared of their answers."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyoco_server.errors import NotStored
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.link import Link

__all__ = ["CONSUMERS", "Kind", "Player", "Step", "steps"]

Answer = dict[str, Any]
#: Differ between any two servers: instants, the server's own name, load and paging details.
_VOLATILE = {"created", "ts", "time", "first_ts", "last_ts", "last_active", "cluster", "timestamp", "id", "metadata"}
CONSUMERS = ("c0", "c1")
_SUBJECTS = ("a", "b", "c.d")
_PATTERNS = (">", "a", "b", "*", "c.>", "c.*", "none")
_WORDS = (b"+ACK", b"", b"-NAK", b"-NAK", b"-NAK", b"+TERM", b"+TERM reason", b"+WPI")
_PULL_SECONDS = 10.0


@dataclass(frozen=True)
class Kind:
    """A stream to play on: its settings, those of its two consumers, and parts of answers that are not compared."""

    name: str
    stream: Mapping[str, Any] = field(default_factory=dict)
    consumers: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    ignored: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Step:
    """One operation: the name of a method of `Player`, and its arguments."""

    verb: str
    arguments: tuple[Any, ...] = ()


class Player:
    """Applies steps to one server and returns what can be compared."""

    def __init__(self, link: Link, name: str, ignored: frozenset[str] = frozenset()) -> None:
        self._link, self._name, self._ignored = link, name, _VOLATILE | ignored
        #: Where all deliveries can be answered: their reply subjects, in the order of delivery.
        self.replies: list[str] = []

    async def play(self, step: Step) -> object:
        play: Callable[..., Any] = getattr(self, step.verb)
        return await play(*step.arguments)

    # Requests.

    async def api(self, path: str, body: Answer | None = None) -> Answer:
        """`{}` in the path stands for the stream."""
        data = json.dumps(body).encode() if body is not None else b""
        try:
            answer = await self._link.ask(f"$JS.API.{path.format(self._name)}", data)
        except NotStored:
            return {"nobody": True}
        return self._comparable(json.loads(answer.data))

    async def publish(self, subject: str, size: int, headers: Mapping[str, str]) -> Answer:
        own = {key: value.format(self._name) for key, value in headers.items()}
        try:
            answer = await self._link.ask(f"{self._name}.{subject}", b"x" * size, own)
        except NotStored:
            return {"nobody": True}
        return self._comparable(json.loads(answer.data))

    async def make_stream(self, config: Mapping[str, Any], verb: str) -> Answer:
        subjects = [f"{self._name}.>"]
        return await self.api(f"STREAM.{verb}.{{}}", {"name": self._name, "subjects": subjects, **config})

    async def make_consumer(self, name: str, config: Mapping[str, Any], action: str) -> Answer:
        known = {"durable_name": name, "name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
        if "filter_subject" in known:
            known["filter_subject"] = f"{self._name}.{known['filter_subject']}"
        body = {"stream_name": self._name, "config": known, "action": action}
        return await self.api(f"CONSUMER.CREATE.{{}}.{name}", body)

    async def get(self, request: Mapping[str, Any]) -> Answer:
        own = {key: f"{self._name}.{value}" if key.endswith("_by_subj") else value for key, value in request.items()}
        return await self.api("STREAM.MSG.GET.{}", own)

    async def purge(self, request: Mapping[str, Any]) -> Answer:
        own = {key: f"{self._name}.{value}" if key == "filter" else value for key, value in request.items()}
        return await self.api("STREAM.PURGE.{}", own)

    async def stream_info(self, pattern: str) -> Answer:
        return await self.api("STREAM.INFO.{}", {"deleted_details": True, "subjects_filter": f"{self._name}.{pattern}"})

    async def names(self, pattern: str) -> Answer:
        return await self.api("STREAM.NAMES", {"subject": f"{self._name}.{pattern}"})

    async def drop_consumer(self, name: str) -> Answer:
        """Its deliveries are not answered any more: a server says nothing to answers for a successor."""
        self.replies = [each for each in self.replies if each.split(".")[3] != name]
        return await self.api(f"CONSUMER.DELETE.{{}}.{name}")

    # Deliveries.

    async def pull(self, consumer: str, batch: int, max_bytes: int) -> list[object]:
        """Everything that the consumer sends before the status line that ends the request."""
        heard: asyncio.Queue[Raw] = asyncio.Queue()
        inbox = self._link.nc.new_inbox()
        subscription = await self._link.nc.listen(inbox, heard.put_nowait)
        body = {"batch": batch, "no_wait": True} | ({"max_bytes": max_bytes} if max_bytes else {})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._name}.{consumer}"
        await self._link.nc.send(subject, json.dumps(body).encode(), inbox)
        received: list[object] = []
        while len(received) < batch:
            message = await asyncio.wait_for(heard.get(), _PULL_SECONDS)
            if message.status is not None:
                # With "no responders", servers from 2.14 on name the subject.
                headers = {} if message.status == "503" else message.headers
                received.append((message.status, message.description, headers))
                break
            received.append(self._delivery(message))
        self._link.nc.forget(subscription)
        await subscription.unsubscribe()
        return received

    def _delivery(self, message: Raw) -> object:
        self.replies.append(message.reply)
        _, _, stream, consumer, count, seq, consumer_seq, _, pending = message.reply.split(".")
        numbers = int(count), int(seq), int(consumer_seq), int(pending)
        return stream == self._name, consumer, numbers, self._own(message.subject), len(message.data), message.headers

    async def answer(self, number: int, word: bytes) -> str:
        """For a delivery of any age; the server confirms it."""
        try:
            await self._link.ask(self.replies[number], word)
        except NotStored:
            return "nobody"
        return "answered"

    # What is compared.

    def _own(self, text: str) -> str:
        return text.replace(self._name, "STREAM")

    def _comparable(self, answer: Answer) -> Answer:
        """Without what differs between servers, and with readable headers."""

        def clean(value: object) -> object:
            if isinstance(value, dict):
                return {key: clean(each) for key, each in value.items() if key not in self._ignored}
            if isinstance(value, list):
                return [clean(each) for each in value]
            return self._own(value) if isinstance(value, str) else value

        cleaned: Answer = json.loads(self._own(json.dumps(clean(answer))))
        message = cleaned.get("message")
        if message and "hdrs" in message:
            message["hdrs"] = base64.b64decode(message["hdrs"]).decode()
        return cleaned


_Maker = Callable[[random.Random, Kind, int], Step]


def steps(kind: Kind, seed: int, count: int, deliveries: Callable[[], int]) -> Iterator[Step]:
    """The stream, its consumers, and then `count` operations chosen by the seed. `deliveries`: how many there are to
    answer."""
    chance = random.Random(seed)
    yield Step("make_stream", (kind.stream, "CREATE"))
    for name, config in zip(CONSUMERS, kind.consumers, strict=True):
        yield Step("make_consumer", (name, config, "create"))
    choices: dict[_Maker, int] = {
        _publish: 36,
        _pull: 20,
        _answer: 24,
        _get: 6,
        _delete: 3,
        _purge: 2,
        _look: 3,
        _change_stream: 2,
        _change_consumer: 4,
    }
    for _ in range(count):
        [make] = chance.choices(list(choices), list(choices.values()))
        yield make(chance, kind, deliveries())


def _publish(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    headers: dict[str, str] = {}
    if chance.random() < 0.25:
        headers["Nats-Msg-Id"] = f"id{chance.randrange(6)}"
    if chance.random() < 0.15:
        headers["Nats-Expected-Last-Sequence"] = str(chance.randrange(30))
    if chance.random() < 0.25:
        headers["Nats-Expected-Last-Subject-Sequence"] = str(chance.choice([0, 0, 1, chance.randrange(30)]))
        if chance.random() < 0.3:
            headers["Nats-Expected-Last-Subject-Sequence-Subject"] = "{}." + chance.choice(["a", "c.>", "none", ">"])
    if chance.random() < 0.08:
        headers["Nats-Expected-Stream"] = chance.choice(["{}", "another"])
    if chance.random() < 0.1:
        headers["Nats-Rollup"] = chance.choice(["sub", "sub", "else"])
    if chance.random() < 0.08:
        headers["Nats-TTL"] = chance.choice(["1h", "3600", "x", "0.5", "never", "100ms"])
    if chance.random() < 0.1:
        headers["Own"] = "value"
    return Step("publish", (chance.choice(_SUBJECTS), chance.choice([0, 1, 50, 300]), headers))


def _pull(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    max_bytes = chance.choice([0, 0, 0, 0, 150])
    return Step("pull", (chance.choice(CONSUMERS), chance.choice([1, 1, 2, 5]), max_bytes))


def _answer(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    if not deliveries:
        return _pull(chance, kind, deliveries)
    number = chance.choice([deliveries - 1, max(0, deliveries - 1 - chance.randrange(4)), chance.randrange(deliveries)])
    return Step("answer", (number, chance.choice(_WORDS)))


def _get(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    request = chance.choice(
        [
            {"seq": chance.randrange(1, 40)},
            {"last_by_subj": chance.choice(_PATTERNS)},
            {"next_by_subj": chance.choice(_PATTERNS)},
            {"next_by_subj": chance.choice(_PATTERNS), "seq": chance.randrange(1, 40)},
            {},
        ]
    )
    return Step("get", (request,))


def _delete(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    return Step("api", ("STREAM.MSG.DELETE.{}", {"seq": chance.randrange(40), "no_erase": True}))


def _purge(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    """With a filter only where floors are ignored: those that follow differ in ways that nothing of ours looks at."""
    return Step("purge", ({"filter": chance.choice(_PATTERNS)} if "ack_floor" in kind.ignored else {},))


def _look(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    return chance.choice(
        [
            Step("names", (chance.choice(_PATTERNS),)),
            Step("api", ("CONSUMER.LIST.{}", {})),
            Step("api", ("CONSUMER.INFO.{}.nobody",)),
            Step("api", ("CONSUMER.DELETE.{}.nobody",)),
            Step("api", ("STREAM.INFO.{}_NOBODY",)),
            Step("api", ("CONSUMER.NAMES.{}", {})),
            Step("pull", ("nobody", 1, 0)),
        ]
    )


def _change_stream(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    change = chance.choice([{}, {"max_msgs": 12}, {"max_msgs_per_subject": 3}, {"max_bytes": 4000}])
    return Step("make_stream", ({**kind.stream, **change}, chance.choice(["CREATE", "UPDATE", "UPDATE"])))


def _change_consumer(chance: random.Random, kind: Kind, deliveries: int) -> Step:
    at = chance.randrange(2)
    if chance.random() < 0.3:
        return Step("drop_consumer", (CONSUMERS[at],))
    change = chance.choice([{}, {}, {"max_deliver": 2}, {"ack_wait": 60_000_000_000}])
    return Step(
        "make_consumer", (CONSUMERS[at], {**kind.consumers[at], **change}, chance.choice(["", "create", "update"]))
    )
