"""The server: connections, subjects, streams, and their timer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.memory.api import Api
from pyoco_server.ports.nats.memory.consumer import Consumer
from pyoco_server.ports.nats.memory.messages import Message, instant
from pyoco_server.ports.nats.memory.stream import Stream, StreamRefusal
from pyoco_server.ports.nats.memory.subjects import SubjectTable, is_pattern
from pyoco_server.ports.nats.memory.timer import Timer

if TYPE_CHECKING:
    from pyoco_server.ports.nats.memory.client import MemoryClient

__all__ = ["MAX_PAYLOAD_BYTES", "MemoryNats", "MemoryWire", "drop_server", "put_server", "server_at"]

#: The default of nats-server.
MAX_PAYLOAD_BYTES = 1024 * 1024
_SCHEME = "memory://"


class MemoryWire:
    """The transport of messages. This one is immediate and lossless; the simulator uses another."""

    def up(self, client: MemoryClient, act: Callable[[], None], subject: str = "") -> None:
        """Transport an action from a client to the server. `subject` is empty if it is not a message."""
        act()

    def down(self, client: MemoryClient, act: Callable[[], None], subject: str = "") -> None:
        """Transport an action from the server to a client."""
        client.call_soon(act)


class MemoryNats:
    """One server without a cluster. It runs in the thread of the event loop that uses it."""

    def __init__(self, wire: MemoryWire | None = None) -> None:
        self.wire = wire or MemoryWire()
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[str, dict[str, Consumer]] = {}
        self._clients: dict[MemoryClient, dict[int, str]] = {}
        #: Subscriptions by subject; the key is the connection number and the subscription number.
        self._literal: dict[str, dict[tuple[int, int], MemoryClient]] = {}
        self._patterns: SubjectTable[tuple[int, int], MemoryClient] = SubjectTable()
        self._stream_table: SubjectTable[str, Stream] = SubjectTable()
        self._numbers = count(1)
        self._ids: dict[MemoryClient, int] = {}
        self._timer = Timer()
        self._api = Api(self)
        self.is_up = True

    # Connections.

    def connect(self, client: MemoryClient) -> None:
        self._timer.arm()
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
        key = self._ids[client], number
        if is_pattern(subject):
            self._patterns.add(subject, key, client)
        else:
            self._literal.setdefault(subject, {})[key] = client

    def unsubscribe(self, client: MemoryClient, number: int) -> None:
        subject = self._clients.get(client, {}).pop(number, None)
        if subject is None:
            return
        key = self._ids[client], number
        if is_pattern(subject):
            self._patterns.remove(subject, key)
            return
        listeners = self._literal[subject]
        del listeners[key]
        if not listeners:
            del self._literal[subject]

    def _listeners(self, subject: str) -> list[tuple[int, MemoryClient]]:
        found = [(number, client) for (_, number), client in self._literal.get(subject, {}).items()]
        return found + [(number, client) for (_, number), client in self._patterns.find(subject)]

    def has_interest(self, subject: str) -> bool:
        return subject in self._literal or self._patterns.has(subject)

    # Messages.

    def publish(self, client: MemoryClient | None, subject: str, reply: str, data: bytes, head: bytes) -> None:
        """Route a message from a client, or from the server itself."""
        self._timer.arm()
        if subject.startswith("$JS.API."):
            self._api.call(subject[8:], reply, data)
            return
        if subject.startswith("$JS.ACK."):
            self._answer(subject, reply, data)
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
        _, stream = next(self._stream_table.find(subject), (None, None))
        if stream is None:
            return False
        message: Message | None = None
        try:
            message, seq = stream.store(subject, data, Raw(subject, reply, data, head).headers if head else {}, head)
        except StreamRefusal as error:
            answer: dict[str, object] = {"error": error.as_json(), "stream": stream.name, "seq": 0}
        else:
            answer = {"stream": stream.name, "seq": seq} | ({} if message else {"duplicate": True})
        if reply and not stream.config.get("no_ack"):
            self.send(reply, json.dumps(answer).encode())
        if message is not None:
            stream.announce(message)
        return True

    def _answer(self, subject: str, reply: str, payload: bytes) -> None:
        _, _, stream, name, _, seq, number, *_ = subject.split(".")
        consumer = self.consumers.get(stream, {}).get(name)
        if consumer is None or consumer.is_deleted or not consumer.is_explicit:
            if reply:
                self.status(reply, "503")
            return
        consumer.answer(int(seq), int(number), payload)
        if reply:
            self.send(reply, b"")

    def send(self, subject: str, data: bytes) -> None:
        self._send(self._listeners(subject), Raw(subject, "", data, b""))

    # Used by consumers.

    def deliver(self, to: str, message: Message, reply: str) -> None:
        self._send(self._listeners(to), Raw(message.subject, reply, message.data, message.head))

    def status(self, to: str, line: str, headers: Mapping[str, object] | None = None) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
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
        self._timer.call_at(ns, act)

    # Streams.

    def make_stream(self, config: dict[str, Any]) -> Stream:
        made = Stream(config, lambda due: self._timer.call_at(due, made.expire))
        self.streams[made.name] = made
        self.consumers[made.name] = {}
        for subject in made.config["subjects"]:
            self._stream_table.add(subject, made.name, made)
        return made

    def change_stream(self, stream: Stream, config: dict[str, Any]) -> None:
        for subject in stream.config["subjects"]:
            self._stream_table.remove(subject, stream.name)
        stream.change(config)
        for subject in stream.config["subjects"]:
            self._stream_table.add(subject, stream.name, stream)

    def delete_stream(self, name: str) -> None:
        for consumer in list(self.consumers.pop(name, {}).values()):
            consumer.delete()
        for subject in self.streams.pop(name).config["subjects"]:
            self._stream_table.remove(subject, name)

    # Fault injection, for tests and the simulator.

    def cut(self, client: MemoryClient) -> None:
        """Break the client's connection. Its subscriptions and waiting pull requests are lost."""
        self.disconnect(client)
        client.lose()

    def stop(self) -> None:
        """Drop all connections and accept none until `start`. Stored messages are kept."""
        self.is_up = False
        for client in self.clients:
            self.cut(client)

    def start(self) -> None:
        self.is_up = True

    def accepts(self, client: MemoryClient) -> bool:
        """Return whether this client could connect now."""
        return self.is_up


_SERVERS: dict[str, MemoryNats] = {}


def server_at(url: str) -> MemoryNats:
    """Return the in-process server at an address, `memory://<name>`; creates it on first use."""
    return _SERVERS.setdefault(url.removeprefix(_SCHEME), MemoryNats())


def put_server(url: str, server: MemoryNats) -> None:
    """Serve this address by `server`; used by the simulator."""
    _SERVERS[url.removeprefix(_SCHEME)] = server


def drop_server(url: str) -> None:
    """Drop the server and everything it stores."""
    _SERVERS.pop(url.removeprefix(_SCHEME), None)
