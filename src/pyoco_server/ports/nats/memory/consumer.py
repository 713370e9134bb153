"""Consumers: pulls with acknowledgements, and pushes to a subject.

What the server does and our code has to live with is done here, too: an acknowledgement names a message and not a
delivery, so that of a former holder counts (acks are not fenced); a message whose ack timer ends is delivered again;
one that was delivered as often as it may be is given up with an advisory, and stays in its stream; and that is noticed
only when somebody asks for work.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyoco_server.ports.nats.memory.stream import SECOND_NS, Message, Stream, instant
from pyoco_server.ports.nats.memory.subjects import matches

__all__ = ["Consumer", "Outlet", "Pull"]

#: What a consumer that acknowledges explicitly has without settings of its own, as the server shows it.
_DEFAULTS: dict[str, Any] = {"ack_wait": 30 * SECOND_NS, "max_deliver": -1, "max_ack_pending": 1000, "max_waiting": 512}


class Outlet(Protocol):
    """What a consumer needs from the server around it."""

    def deliver(self, to: str, message: Message, reply: str) -> bool:
        """Send a stored message. False: nobody listens there."""

    def status(self, to: str, line: str, **headers: object) -> None: ...

    def has_interest(self, subject: str) -> bool: ...

    def advise(self, kind: str, stream: str, consumer: str, **facts: object) -> None: ...

    def call_at(self, ns: int, act: Callable[[], None]) -> None:
        """Call `act` at this time of the server's clock, or soon after."""


@dataclass
class Pull:
    """A request for messages that waits at the server."""

    reply: str
    batch: int
    expires_ns: int
    no_wait: bool
    max_bytes: int
    heartbeat_ns: int
    got: int = 0


@dataclass
class _Pending:
    """A delivered message that nobody has answered for."""

    consumer_seq: int
    due_ns: int


class Consumer:
    def __init__(self, stream: Stream, name: str, config: Mapping[str, Any], outlet: Outlet) -> None:
        self.stream, self.name, self.outlet = stream, name, outlet
        self.config = self.complete(config)
        self.created_ns = self.active_ns = time.time_ns()
        self.filter: str = self.config.get("filter_subject") or ">"
        self.is_push = bool(self.config.get("deliver_subject"))
        self.is_explicit = self.config.get("ack_policy", "none") == "explicit"
        start = self.config.get("opt_start_seq", 1)
        self._next_seq: int = start if self.config.get("deliver_policy") == "by_start_sequence" else 1
        if self.config.get("deliver_policy") == "new":
            self._next_seq = stream.last_seq + 1
        self._consumer_seq = 0
        self._delivered_seq = 0
        self.pending: dict[int, _Pending] = {}
        self._again: list[int] = []
        self._counts: dict[int, int] = {}
        self.waiting: list[Pull] = []
        self._is_deleted = False
        self._sent_ns = time.time_ns()
        stream.on_stored.append(self._on_stored)
        stream.on_removed.append(self._on_removed)
        if self.is_push:
            self._beat()
        elif self.config.get("inactive_threshold") and not self.config.get("durable_name"):
            self._watch_activity()

    @staticmethod
    def complete(config: Mapping[str, Any]) -> dict[str, Any]:
        """With the server's defaults."""
        if config.get("ack_policy", "none") != "explicit" or config.get("deliver_subject"):
            return dict(config)
        return _DEFAULTS | dict(config)

    def delete(self) -> None:
        self._is_deleted = True
        self.stream.on_stored.remove(self._on_stored)
        self.stream.on_removed.remove(self._on_removed)
        for pull in self.waiting:
            self.outlet.status(pull.reply, "409 Consumer Deleted", **_left(pull))
        self.waiting.clear()

    @property
    def is_deleted(self) -> bool:
        return self._is_deleted

    # What the stream does.

    def _on_stored(self, message: Message) -> None:
        if matches(self.filter, message.subject):
            self.serve()

    def _on_removed(self, message: Message) -> None:
        self.pending.pop(message.seq, None)
        self._counts.pop(message.seq, None)
        if message.seq in self._again:
            self._again.remove(message.seq)

    # Pulls.

    def ask(self, pull: Pull) -> None:
        self.active_ns = time.time_ns()
        self._drop_dead_pulls()
        if len(self.waiting) >= self.config.get("max_waiting", _DEFAULTS["max_waiting"]):
            self.outlet.status(pull.reply, "409 Exceeded MaxWaiting")
            return
        self.waiting.append(pull)
        self.serve()
        if pull in self.waiting:
            if pull.no_wait:
                self.waiting.remove(pull)
                line = "408 Request Timeout" if pull.got else "404 No Messages"
                self.outlet.status(pull.reply, line, **(_left(pull) if pull.got else {}))
                return
            if pull.expires_ns:
                self.outlet.call_at(pull.expires_ns, lambda: self._expire(pull))
            if pull.heartbeat_ns:
                self._beat_for(pull)

    def _expire(self, pull: Pull) -> None:
        if pull in self.waiting:
            self.waiting.remove(pull)
            self.active_ns = time.time_ns()
            self.outlet.status(pull.reply, "408 Request Timeout", **_left(pull))

    def _beat_for(self, pull: Pull) -> None:
        def beat() -> None:
            if pull in self.waiting and not self._is_deleted:
                if time.time_ns() - self._sent_ns >= pull.heartbeat_ns:
                    self.outlet.status(pull.reply, "100 Idle Heartbeat")
                self._beat_for(pull)

        self.outlet.call_at(time.time_ns() + pull.heartbeat_ns, beat)

    def _drop_dead_pulls(self) -> None:
        self.waiting = [pull for pull in self.waiting if self.outlet.has_interest(pull.reply)]

    def serve(self) -> None:
        """Deliver what is there to whoever wants it."""
        if self.is_push:
            self._push()
            return
        while self.waiting and not self._is_deleted:
            pull = self.waiting[0]
            if not self.outlet.has_interest(pull.reply):
                self.waiting.remove(pull)
                continue
            message, count = self._next()
            if message is None:
                return
            if pull.max_bytes and message.size > pull.max_bytes:
                self._put_back(message, count)
                self.waiting.remove(pull)
                self.outlet.status(pull.reply, "409 Message Size Exceeds MaxBytes", **_left(pull))
                return
            self._hand_out(pull, message, count)

    def _hand_out(self, pull: Pull, message: Message, count: int) -> None:
        pull.got += 1
        pull.batch -= 1
        if pull.batch <= 0:
            self.waiting.remove(pull)
        else:  # the next message goes to the next one who waits
            self.waiting.append(self.waiting.pop(self.waiting.index(pull)))
        self._send(pull.reply, message, count)

    def _send(self, to: str, message: Message, count: int) -> None:
        self._consumer_seq += 1
        self._delivered_seq = max(self._delivered_seq, message.seq)
        self._sent_ns = time.time_ns()
        if self.is_explicit:
            self._counts[message.seq] = count
            self._hold(message.seq)
        self.outlet.deliver(to, message, self._reply(message, count))

    def _reply(self, message: Message, count: int) -> str:
        return (
            f"$JS.ACK.{self.stream.name}.{self.name}.{count}.{message.seq}.{self._consumer_seq}."
            f"{message.time_ns}.{self.unseen}"
        )

    def _next(self) -> tuple[Message | None, int]:
        """The next message to deliver, and how often it will have been delivered then."""
        limit = self.config.get("max_deliver", -1)
        while self._again:
            seq = self._again.pop(0)
            message = self.stream.messages.get(seq)
            if message is None or seq not in self.pending:
                continue
            count = self._counts.get(seq, 0) + 1
            if 0 < limit < count:
                del self.pending[seq]
                self.outlet.advise("MAX_DELIVERIES", self.stream.name, self.name, stream_seq=seq, deliveries=count - 1)
                continue
            return message, count
        if self.is_explicit and len(self.pending) >= self.config["max_ack_pending"] > 0:
            return None, 0
        message = self.stream.next(self.filter, self._next_seq)
        if message is None:
            return None, 0
        self._next_seq = message.seq + 1
        return message, 1

    def _put_back(self, message: Message, count: int) -> None:
        """At the end of the line, and without counting a delivery."""
        if count == 1 and message.seq not in self.pending:
            self._next_seq = message.seq
        else:
            self._again.append(message.seq)

    # Answers. None of them is checked against the delivery that it answers.

    def answer(self, seq: int, word: bytes) -> None:
        self.active_ns = time.time_ns()
        if word in (b"", b"+ACK") or word.startswith(b"+TERM"):
            self.pending.pop(seq, None)
            self._counts.pop(seq, None)
            if seq in self._again:
                self._again.remove(seq)
            if self.stream.is_work_queue:
                self.stream.remove(seq)
            self.serve()
        elif word.startswith(b"-NAK"):
            self._refuse(seq, word[4:].strip())
        elif word == b"+WPI" and seq in self.pending:
            self._hold(seq)

    def _refuse(self, seq: int, options: bytes) -> None:
        held = self.pending.get(seq)
        if held is None:
            return
        delay_ns = int(json.loads(options)["delay"]) if options else 0
        if delay_ns > 0:
            self._hold(seq, delay_ns)
        elif seq not in self._again:
            self._again.append(seq)
            self.serve()

    def _hold(self, seq: int, ns: int | None = None) -> None:
        if ns is None:
            ns = self.config["ack_wait"]
            held = self.pending.get(seq)
            consumer_seq = self._consumer_seq if held is None or seq not in self._again else held.consumer_seq
        else:
            consumer_seq = self.pending[seq].consumer_seq
        due = time.time_ns() + ns
        self.pending[seq] = _Pending(consumer_seq, due)
        if seq in self._again:
            self._again.remove(seq)
        self.outlet.call_at(due, lambda: self._overdue(seq))

    def _overdue(self, seq: int) -> None:
        held = self.pending.get(seq)
        if self._is_deleted or held is None or held.due_ns > time.time_ns() or seq in self._again:
            return
        self._again.append(seq)
        self.serve()

    def expire_all(self) -> None:
        """End every ack timer now, as a server does that has lost its timers."""
        for held in self.pending.values():
            held.due_ns = 0
        for seq in list(self.pending):
            self._overdue(seq)

    # Pushes.

    def _push(self) -> None:
        to = self.config["deliver_subject"]
        while self.outlet.has_interest(to) and not self._is_deleted:
            message = self.stream.next(self.filter, self._next_seq)
            if message is None:
                return
            self._next_seq = message.seq + 1
            self.active_ns = time.time_ns()
            self._send(to, message, 1)

    def _beat(self) -> None:
        """Once in each heartbeat: says that nothing is there, or goes when nobody has listened for too long."""
        every_ns = self.config.get("idle_heartbeat") or SECOND_NS

        def beat() -> None:
            if self._is_deleted:
                return
            now = time.time_ns()
            to = self.config["deliver_subject"]
            if self.outlet.has_interest(to):
                self.active_ns = now
                if self.config.get("idle_heartbeat") and now - self._sent_ns >= every_ns // 2:
                    last = {"Nats-Last-Consumer": self._consumer_seq, "Nats-Last-Stream": self._delivered_seq}
                    self.outlet.status(to, "100 Idle Heartbeat", **last)
            elif self.is_idle(now):
                self.delete()
                return
            self.outlet.call_at(now + every_ns, beat)

        self.outlet.call_at(time.time_ns() + every_ns, beat)

    def _watch_activity(self) -> None:
        def look() -> None:
            if self._is_deleted:
                return
            now = time.time_ns()
            self._drop_dead_pulls()
            if self.waiting:
                self.active_ns = now
            if self.is_idle(now):
                self.delete()
            else:
                self.outlet.call_at(now + self.config["inactive_threshold"], look)

        self.outlet.call_at(time.time_ns() + self.config["inactive_threshold"], look)

    def is_idle(self, now_ns: int) -> bool:
        """Whether nobody has used it for as long as it was made to be kept."""
        threshold = self.config.get("inactive_threshold", 0)
        return bool(threshold) and now_ns - self.active_ns >= threshold

    # What is shown.

    @property
    def unseen(self) -> int:
        """Messages that were never delivered."""
        return sum(1 for _ in self.stream.since(self._next_seq, self.filter))

    def info(self) -> dict[str, Any]:
        self._drop_dead_pulls()
        floor = min(self.pending) - 1 if self.pending else self._next_seq - 1
        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "created": instant(self.created_ns),
            "config": self.config,
            "delivered": {"consumer_seq": self._consumer_seq, "stream_seq": self._next_seq - 1},
            "ack_floor": {"consumer_seq": self._consumer_seq - len(self.pending), "stream_seq": floor},
            "num_ack_pending": len(self.pending),
            "num_redelivered": sum(1 for seq, count in self._counts.items() if count > 1 and seq in self.pending),
            "num_waiting": len(self.waiting),
            "num_pending": self.unseen,
            "ts": instant(time.time_ns()),
        }


def _left(pull: Pull) -> dict[str, object]:
    return {"Nats-Pending-Messages": pull.batch, "Nats-Pending-Bytes": 0}
