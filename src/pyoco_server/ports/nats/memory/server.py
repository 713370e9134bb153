"""The server: connections, subjects, streams, and the clock they share."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import json
import time
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.memory.api import Api
from pyoco_server.ports.nats.memory.consumer import Consumer
from pyoco_server.ports.nats.memory.stream import SECOND_NS, Message, Refusal, Stream, instant
from pyoco_server.ports.nats.memory.subjects import is_pattern, matches

if TYPE_CHECKING:
    from pyoco_server.ports.nats.memory.client import MemoryClient

__all__ = ["MAX_PAYLOAD_BYTES", "MemoryNats", "Wire", "drop_server", "put_server", "server_at"]

#: The default of nats-server.
MAX_PAYLOAD_BYTES = 1024 * 1024
_SCHEME = "memory://"


class Wire:
    """How messages travel. This one is at once and loses nothing; the simulator has another."""

    def up(self, client: MemoryClient, act: Callable[[], None], subject: str = "") -> None:
        """From a client to the server. `subject`: of a message; empty for what is no message."""
        act()

    def down(self, client: MemoryClient, act: Callable[[], None], subject: str = "") -> None:
        """From the server to a client."""
        client.call_soon(act)


class _Clock:
    """Calls at times of `time.time_ns`, by one timer of the running loop.

    A server may outlive the loop it was made in, as when several commands use it one after another. Its timer is set
    again by whoever uses it next.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._context = contextvars.copy_context()

    def call_at(self, ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._calls, (ns, next(self._numbers), act))
        self.arm()

    def arm(self) -> None:
        if not self._calls:
            return
        loop = asyncio.get_running_loop()
        due = self._calls[0][0]
        if self._timer is not None and self._loop is loop and self._due_ns <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._loop, self._due_ns = loop, due
        seconds = max(0.0, (due - time.time_ns()) / SECOND_NS)
        self._timer = loop.call_later(seconds, self._ring, context=self._context)

    def _ring(self) -> None:
        self._timer = None
        now = time.time_ns()
        while self._calls and self._calls[0][0] <= now:
            heapq.heappop(self._calls)[2]()
        self.arm()


class MemoryNats:
    """One server without a cluster. Everything happens in the thread of the event loop that uses it."""

    def __init__(self, wire: Wire | None = None) -> None:
        self.wire = wire or Wire()
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[str, dict[str, Consumer]] = {}
        self._clients: dict[MemoryClient, dict[int, str]] = {}
        #: Literal subjects are looked up; patterns are tried one by one.
        self._literal: dict[str, dict[tuple[int, int], MemoryClient]] = {}
        self._patterns: dict[str, dict[tuple[int, int], MemoryClient]] = {}
        self._numbers = count(1)
        self._ids: dict[MemoryClient, int] = {}
        self._clock = _Clock()
        self._api = Api(self)
        self.is_up = True

    # Connections.

    def connect(self, client: MemoryClient) -> None:
        self._clock.arm()
        self._clients[client] = {}
        self._ids[client] = next(self._numbers)

    def disconnect(self, client: MemoryClient) -> None:
        for number in list(self._clients.get(client, ())):
            self.unsubscribe(client, number)
        self._clients.pop(client, None)
        self._ids.pop(client, None)

    @property
    def clients(self) -> list[MemoryClient]:
        return list(self._clients)

    def subscribe(self, client: MemoryClient, number: int, subject: str) -> None:
        if client not in self._clients:
            return
        self._clients[client][number] = subject
        table = self._patterns if is_pattern(subject) else self._literal
        table.setdefault(subject, {})[self._ids[client], number] = client

    def unsubscribe(self, client: MemoryClient, number: int) -> None:
        subject = self._clients.get(client, {}).pop(number, None)
        if subject is None:
            return
        table = self._patterns if is_pattern(subject) else self._literal
        listeners = table.get(subject, {})
        listeners.pop((self._ids[client], number), None)
        if not listeners:
            table.pop(subject, None)

    def _listeners(self, subject: str) -> list[tuple[int, MemoryClient]]:
        found = [(number, client) for (_, number), client in self._literal.get(subject, {}).items()]
        for pattern, listeners in self._patterns.items():
            if matches(pattern, subject):
                found += [(number, client) for (_, number), client in listeners.items()]
        return found

    def has_interest(self, subject: str) -> bool:
        return bool(self._literal.get(subject)) or any(matches(pattern, subject) for pattern in self._patterns)

    # Messages.

    def publish(self, client: MemoryClient | None, subject: str, reply: str, data: bytes, head: bytes) -> None:
        """A message from a client, or from the server itself."""
        self._clock.arm()
        if subject.startswith("$JS.API."):
            self._api.call(subject[8:], reply, data)
            return
        if subject.startswith("$JS.ACK."):
            self._answer(subject, data)
            return
        listeners = self._listeners(subject)
        self._send(listeners, Raw(subject, reply, data, head))
        stored = self._store(subject, reply, data, head)
        if reply and not listeners and not stored:
            self.status(reply, "503")

    def _send(self, listeners: list[tuple[int, MemoryClient]], message: Raw) -> None:
        for number, client in listeners:
            self.wire.down(client, lambda number=number, client=client: client.hear(number, message), message.subject)  # type: ignore[misc]

    def _store(self, subject: str, reply: str, data: bytes, head: bytes) -> bool:
        stream = next((each for each in self.streams.values() if each.covers(subject)), None)
        if stream is None:
            return False
        headers = Raw(subject, reply, data, head).headers if head else {}
        try:
            seq, is_duplicate = stream.store(subject, data, headers, head)
        except Refusal as error:
            answer: dict[str, object] = {"error": error.as_json(), "stream": stream.name, "seq": 0}
        else:
            answer = {"stream": stream.name, "seq": seq} | ({"duplicate": True} if is_duplicate else {})
        if reply and not stream.config.get("no_ack"):
            self.send(reply, json.dumps(answer).encode())
        return True

    def _answer(self, subject: str, word: bytes) -> None:
        _, _, stream, name, _, seq, *_ = subject.split(".")
        consumer = self.consumers.get(stream, {}).get(name)
        if consumer is not None:
            consumer.answer(int(seq), word)

    def send(self, subject: str, data: bytes) -> None:
        self._send(self._listeners(subject), Raw(subject, "", data, b""))

    # What consumers need.

    def deliver(self, to: str, message: Message, reply: str) -> bool:
        listeners = self._listeners(to)
        self._send(listeners, Raw(message.subject, reply, message.data, message.head))
        return bool(listeners)

    def status(self, to: str, line: str, **headers: object) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._send(self._listeners(to), Raw(to, "", b"", f"NATS/1.0 {line}\r\n{lines}\r\n".encode()))

    def advise(self, kind: str, stream: str, consumer: str, **facts: object) -> None:
        body: dict[str, Any] = {
            "type": f"io.nats.jetstream.advisory.v1.{kind.lower()}",
            "timestamp": instant(time.time_ns()),
            "stream": stream,
            "consumer": consumer,
            **facts,
        }
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.{kind}.{stream}.{consumer}"
        self.publish(None, subject, "", json.dumps(body).encode(), b"")

    def call_at(self, ns: int, act: Callable[[], None]) -> None:
        self._clock.call_at(ns, act)

    # Streams.

    def make_stream(self, config: dict[str, Any]) -> Stream:
        made = Stream(config, lambda due: self._clock.call_at(due, made.expire))
        self.streams[made.name] = made
        self.consumers[made.name] = {}
        return made

    def delete_stream(self, name: str) -> None:
        for consumer in list(self.consumers.pop(name, {}).values()):
            consumer.delete()
        del self.streams[name]

    # Faults, for tests and the simulator.

    def cut(self, client: MemoryClient) -> None:
        """The connection breaks. What the client had parked here goes with it."""
        self.disconnect(client)
        client.lose()

    def stop(self) -> None:
        """Take no connection until `start`. What is stored stays."""
        self.is_up = False
        for client in self.clients:
            self.cut(client)

    def start(self) -> None:
        self.is_up = True

    def accepts(self, client: MemoryClient) -> bool:
        """Whether this client could connect now."""
        return self.is_up


_SERVERS: dict[str, MemoryNats] = {}


def server_at(url: str) -> MemoryNats:
    """The server of this process with that address, `memory://<name>`; made when it is asked for first."""
    return _SERVERS.setdefault(url.removeprefix(_SCHEME), MemoryNats())


def put_server(url: str, server: MemoryNats) -> None:
    """Serve this address by `server`, as the simulator does."""
    _SERVERS[url.removeprefix(_SCHEME)] = server


def drop_server(url: str) -> None:
    """Forget it and what it holds."""
    _SERVERS.pop(url.removeprefix(_SCHEME), None)
