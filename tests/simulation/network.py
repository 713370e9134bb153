"""The network between simulated processes and the store: delays, losses, cuts, and what the judge sees of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyoco_server.ports.nats.memory.client import MemoryClient
from pyoco_server.ports.nats.memory.server import MemoryNats, MemoryWire
from pyoco_server.ports.nats.memory.stream import Stream
from simulation.loop import SimLoop
from simulation.process import CURRENT, Process

__all__ = ["Countdown", "FaultyWire", "Noise", "WatchedNats", "process_of"]

#: Seconds one way, on a network without trouble.
_USUAL_SECONDS = (0.000_2, 0.002)
#: A second copy is so much later at most.
_COPY_SECONDS = 2.0
#: What is no step of a run: questions, signs of life, counters.
_NO_STEPS = ("$JS.API.", "$JS.ACK.", "$KV.pyoco_workers.", "_INBOX.", "-")
#: Control messages of one connection are never lost alone: TCP would end the connection.
_NO_MESSAGE = ""


def process_of(client: MemoryClient) -> Process:
    return client.context[CURRENT]


def _is_repeatable(subject: str) -> bool:
    """Publishes, reads and acknowledgements. A repeated request of a consumer would be another pull."""
    return bool(subject) and not subject.startswith("$JS.API.CONSUMER.")


@dataclass
class Noise:
    """A period in which single messages of a process get lost, are late, or arrive twice."""

    process: str
    lost_up: float = 0.0
    lost_down: float = 0.0
    late_seconds: float = 0.0
    #: How likely a message to the store arrives twice, as after a retry whose first try was not lost.
    twice: float = 0.0


@dataclass
class Countdown:
    """What happens to a process after some of its writes."""

    left: int
    #: How the subjects begin of those that count.
    writes: str
    act: Callable[[Process], None]


class FaultyWire(MemoryWire):
    """Delivers in order for each connection and direction, after a delay. Noise is added and removed by the faults."""

    def __init__(self, loop: SimLoop, dice: random.Random) -> None:
        self.loop, self._dice = loop, dice
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
        seconds, copy_seconds = self._dice.uniform(*_USUAL_SECONDS), 0.0
        for noise in self.noise:
            if noise.process != process.name:
                continue
            seconds += self._dice.random() * noise.late_seconds
            if subject and self._dice.random() < (noise.lost_up if is_up else noise.lost_down):
                self.loop.record("message lost", subject=subject, way="up" if is_up else "down", of=process.name)
                return
            if is_up and noise.twice and _is_repeatable(subject) and self._dice.random() < noise.twice:
                copy_seconds = self._dice.random() * _COPY_SECONDS
        now = self.loop.time()
        at = max(now + seconds, self._busy_until.get((client, is_up), 0.0) + 1e-9)
        self._busy_until[client, is_up] = at

        def arrive() -> None:
            if client.connections == connection and not client.is_closed and (process.is_alive or is_up):
                act()

        receiver = self._home if is_up else process
        receiver.call_later(at - now, arrive)
        if copy_seconds:
            self.loop.record("message twice", subject=subject, of=process.name)
            receiver.call_later(at - now + copy_seconds, arrive)


class WatchedNats(MemoryNats):
    """The in-memory JetStream, with ears for the judge and doors that can be shut to single processes."""

    def __init__(self, wire: FaultyWire) -> None:
        super().__init__(wire)
        self._loop = wire.loop
        #: Called before a message takes effect: process, subject, body.
        self.on_message: list[Callable[[str, str, bytes], None]] = []
        #: Called with each stream that is made.
        self.on_stream: list[Callable[[Stream], None]] = []
        self.shut_out: set[str] = set()
        #: How many writes of a process take effect until something happens to it, before its next step.
        self.after_write: dict[str, Countdown] = {}

    def publish(self, client: MemoryClient | None, subject: str, reply: str, data: bytes, head: bytes) -> None:
        name = "nats" if client is None else process_of(client).name
        for hear in self.on_message:
            hear(name, subject, data)
        super().publish(client, subject, reply, data, head)
        if client is not None and not subject.startswith(_NO_STEPS):
            self._count(name, subject, process_of(client))

    def _count(self, name: str, subject: str, process: Process) -> None:
        countdown = self.after_write.get(name)
        if countdown is None or not subject.startswith(countdown.writes):
            return
        countdown.left -= 1
        if countdown.left <= 0:
            del self.after_write[name]
            self._loop.record("stopped after a write", process=name, subject=subject)
            countdown.act(process)

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
