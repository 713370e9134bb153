"""The network between simulated processes and the store: delays, losses, cuts, and what the judge sees of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyoco_server.ports.nats.memory.client import MemoryClient
from pyoco_server.ports.nats.memory.server import MemoryNats, Wire
from pyoco_server.ports.nats.memory.stream import Stream
from simulation.loop import SimLoop
from simulation.process import CURRENT, Process

__all__ = ["FaultyWire", "Noise", "WatchedNats", "process_of"]

#: Seconds one way, on a network without trouble.
_USUAL_SECONDS = (0.000_2, 0.002)
#: Control messages of one connection are never lost alone: TCP would end the connection.
_NO_MESSAGE = ""


def process_of(client: MemoryClient) -> Process:
    return client.context[CURRENT]


@dataclass
class Noise:
    """A period in which single messages of a process get lost or are late."""

    process: str
    lost_up: float = 0.0
    lost_down: float = 0.0
    late_seconds: float = 0.0


class FaultyWire(Wire):
    """Delivers in order for each connection and direction, after a delay. Noise is added and removed by the faults."""

    def __init__(self, loop: SimLoop, dice: random.Random) -> None:
        self._loop, self._dice = loop, dice
        self._home = Process("nats", loop=loop)
        self._busy_until: dict[tuple[MemoryClient, bool], float] = {}
        self.noise: list[Noise] = []

    def up(self, client: MemoryClient, act: Callable[[], None], subject: str = _NO_MESSAGE) -> None:
        self._carry(client, act, subject, is_up=True)

    def down(self, client: MemoryClient, act: Callable[[], None], subject: str = _NO_MESSAGE) -> None:
        self._carry(client, act, subject, is_up=False)

    def _carry(self, client: MemoryClient, act: Callable[[], None], subject: str, *, is_up: bool) -> None:
        process, connection = process_of(client), client.connections
        if is_up and not process.is_alive:  # killed by a hook: its `finally` blocks run up to their first await
            return
        seconds = self._dice.uniform(*_USUAL_SECONDS)
        for noise in self.noise:
            if noise.process != process.name:
                continue
            seconds += self._dice.random() * noise.late_seconds
            if subject and self._dice.random() < (noise.lost_up if is_up else noise.lost_down):
                self._loop.record("message lost", subject=subject, way="up" if is_up else "down", of=process.name)
                return
        now = self._loop.time()
        at = max(now + seconds, self._busy_until.get((client, is_up), 0.0) + 1e-9)
        self._busy_until[client, is_up] = at

        def arrive() -> None:
            if client.connections == connection and not client.is_closed and (process.is_alive or is_up):
                act()

        receiver = self._home if is_up else process
        receiver.call_later(at - now, arrive)


class WatchedNats(MemoryNats):
    """The in-memory JetStream, with ears for the judge and doors that can be shut to single processes."""

    def __init__(self, wire: FaultyWire) -> None:
        super().__init__(wire)
        #: Called before a message takes effect: process, subject, body.
        self.on_message: list[Callable[[str, str, bytes], None]] = []
        #: Called with each stream that is made.
        self.on_stream: list[Callable[[Stream], None]] = []
        self.shut_out: set[str] = set()

    def publish(self, client: MemoryClient | None, subject: str, reply: str, data: bytes, head: bytes) -> None:
        name = "nats" if client is None else process_of(client).name
        for hear in self.on_message:
            hear(name, subject, data)
        super().publish(client, subject, reply, data, head)

    def make_stream(self, config: dict[str, Any]) -> Stream:
        made = super().make_stream(config)
        for hear in self.on_stream:
            hear(made)
        return made

    def redeliver_all(self) -> None:
        """Every ack timer ends now, as after a change of leader."""
        for consumers in self.consumers.values():
            for consumer in consumers.values():
                consumer.expire_all()

    def accepts(self, client: MemoryClient) -> bool:
        return super().accepts(client) and process_of(client).name not in self.shut_out

    def connect(self, client: MemoryClient) -> None:
        super().connect(client)
        process_of(client).on_death(self.disconnect, client)

    def cut_process(self, name: str) -> None:
        """Break every connection of this process."""
        for client in self.clients:
            if process_of(client).name == name:
                self.cut(client)
