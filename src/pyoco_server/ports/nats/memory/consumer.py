"""Consumers: pull with acknowledgements, and push to a subject.

Includes the server's behaviour that our code has to handle: a message whose ack timer expires is redelivered; a message
that has reached its delivery limit is given up with an advisory and stays in its stream; and this happens only when a
client pulls.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyoco_server.ports.nats.memory.configs import consumer_config
from pyoco_server.ports.nats.memory.deliveries import Deliveries
from pyoco_server.ports.nats.memory.messages import SECOND_NS, Message, instant
from pyoco_server.ports.nats.memory.stream import Stream, StreamRefusal
from pyoco_server.ports.nats.memory.subjects import covers, matcher, overlaps

__all__ = ["Consumer", "Outlet", "PendingPull"]


_POLICIES = ("all", "new", "by_start_sequence")


class Outlet(Protocol):
    """What a consumer needs from its server."""

    def deliver(self, to: str, message: Message, reply: str) -> None:
        """Send a stored message."""

    def status(self, to: str, line: str, headers: Mapping[str, object] | None = None) -> None: ...

    def has_interest(self, subject: str) -> bool: ...

    def advise(self, kind: str, stream: str, consumer: str, **facts: object) -> None: ...

    def call_at(self, ns: int, act: Callable[[], None]) -> None:
        """Call `act` at this time of the server's clock, or soon after it."""


@dataclass(eq=False)
class PendingPull:
    """A pull request that waits at the server. `max_bytes` is the remaining limit; 0: no limit."""

    reply: str
    batch: int
    expires_ns: int
    no_wait: bool
    max_bytes: int
    heartbeat_ns: int

    @property
    def left(self) -> dict[str, object]:
        return {"Nats-Pending-Messages": self.batch, "Nats-Pending-Bytes": self.max_bytes}


class Consumer:
    def __init__(self, stream: Stream, name: str, config: Mapping[str, Any], outlet: Outlet) -> None:
        self.stream, self.name, self.outlet = stream, name, outlet
        self.created_ns = self._active_ns = self._sent_ns = time.time_ns()
        self.config = consumer_config(config, name)
        self.is_push = "deliver_subject" in self.config
        self.is_explicit = self.config["ack_policy"] == "explicit"
        self.deliveries = Deliveries(self._first_seq())
        self.waiting: list[PendingPull] = []
        self.is_deleted = False
        self._set_filter()
        stream.on_stored.append(self._on_stored)
        stream.on_ready.append(self._on_ready)
        stream.on_removed.append(self._on_removed)
        stream.on_purged.append(self._on_purged)
        if self.is_push:
            self._watch_listener()
        elif "inactive_threshold" in self.config:
            self._watch_activity()

    def _first_seq(self) -> int:
        messages, policy = self.stream.messages, self.config["deliver_policy"]
        if policy not in _POLICIES:
            raise StreamRefusal(501, 10003, f"the JetStream in memory has no deliver policy {policy!r}")
        if policy == "new":
            return messages.last_seq + 1
        start = self.config.get("opt_start_seq", 1) if policy == "by_start_sequence" else 1
        return max(start, messages.first_seq, 1)

    def _set_filter(self) -> None:
        self.filter: str = self.config.get("filter_subject") or ">"
        self._matches = matcher(self.filter)
        self._count_unseen()

    def _count_unseen(self) -> None:
        """Count the messages that were never delivered. Changes update the number; a purge counts again."""
        self._unseen = sum(1 for _ in self.stream.messages.since(self.deliveries.next_seq, self.filter))

    def change(self, config: dict[str, Any]) -> None:
        """Replace the settings, which must be complete."""
        self.config = config
        self._set_filter()
        self.serve()

    def delete(self) -> None:
        self.is_deleted = True
        self.stream.on_stored.remove(self._on_stored)
        self.stream.on_ready.remove(self._on_ready)
        self.stream.on_removed.remove(self._on_removed)
        self.stream.on_purged.remove(self._on_purged)
        for pull in self.waiting:
            self.outlet.status(pull.reply, "409 Consumer Deleted", pull.left)
        self.waiting.clear()

    # Callbacks of the stream.

    def _on_stored(self, message: Message) -> None:
        if message.seq >= self.deliveries.next_seq and self._matches(message.subject):
            self._unseen += 1

    def _on_ready(self, message: Message) -> None:
        if (self.waiting or self.is_push) and self._matches(message.subject):
            self.serve()

    def _on_removed(self, message: Message) -> None:
        if message.seq >= self.deliveries.next_seq and self._matches(message.subject):
            self._unseen -= 1
        self.deliveries.removed(message)

    def _on_purged(self, pattern: str) -> None:
        messages = self.stream.messages
        if overlaps(pattern, self.filter):
            first = messages.first_seq
            if pattern != ">" and covers(pattern, self.filter):
                left = messages.next(self.filter, 0)
                first = left.seq if left else messages.last_seq + 1
            self.deliveries.purged(first, lambda seq: seq not in messages)
        self._count_unseen()

    # Pulls.

    def ask(self, pull: PendingPull) -> None:
        self._active_ns = time.time_ns()
        self._drop_dead_pulls()
        if len(self.waiting) >= self.config["max_waiting"]:
            self.outlet.status(pull.reply, "409 Exceeded MaxWaiting")
            return
        if pull.no_wait and not self._unseen and not self.deliveries.again:
            self.outlet.status(pull.reply, "404 No Messages")
            return
        self.waiting.append(pull)
        self.serve()
        if pull not in self.waiting:
            return
        if pull.no_wait and not self._is_stalled:  # measured: it waits while too many messages are unacknowledged
            self.waiting.remove(pull)
            self.outlet.status(pull.reply, "404 No Messages")
            return
        if pull.expires_ns:
            self.outlet.call_at(pull.expires_ns, lambda: self._expire(pull))
        if pull.heartbeat_ns:
            self._send_heartbeats_for(pull)

    def _end(self, pull: PendingPull, line: str) -> None:
        self.waiting.remove(pull)
        self.outlet.status(pull.reply, line, pull.left)

    def _expire(self, pull: PendingPull) -> None:
        if pull in self.waiting:
            self._active_ns = time.time_ns()
            self._end(pull, "408 Request Timeout")

    def _send_heartbeats_for(self, pull: PendingPull) -> None:
        def send_heartbeat() -> None:
            if pull in self.waiting and not self.is_deleted:
                if time.time_ns() - self._sent_ns >= pull.heartbeat_ns:
                    self.outlet.status(pull.reply, "100 Idle Heartbeat")
                self._send_heartbeats_for(pull)

        self.outlet.call_at(time.time_ns() + pull.heartbeat_ns, send_heartbeat)

    def _drop_dead_pulls(self) -> None:
        self.waiting = [pull for pull in self.waiting if self.outlet.has_interest(pull.reply)]

    def serve(self) -> None:
        """Deliver the available messages to the waiting pull requests, or to the push subject."""
        if self.is_push:
            self._push()
            return
        while self.waiting and not self.is_deleted:
            message, count = self._next()
            if message is None:
                return
            reply = self._reply(message, count)
            pull = self._next_pull(len(message.subject) + len(reply) + len(message.head) + len(message.data))
            if pull is None:
                self._put_back(message, count)
                return
            self._send(pull.reply, message, reply)

    def _next_pull(self, size: int) -> PendingPull | None:
        """Return the pull request for the next message, which has this size including its reply subject."""
        while self.waiting:
            pull = self.waiting[0]
            if not self.outlet.has_interest(pull.reply):
                del self.waiting[0]
                continue
            if 0 < pull.max_bytes < size:
                self._end(pull, "409 Message Size Exceeds MaxBytes")
                continue
            if pull.max_bytes:
                pull.max_bytes -= size
                pull.batch = pull.batch if pull.max_bytes else 1
            pull.batch -= 1
            del self.waiting[0]
            if pull.batch > 0:  # to the end of the queue: the next message goes to the next request
                self.waiting.append(pull)
            return pull
        return None

    def _send(self, to: str, message: Message, reply: str) -> None:
        self._sent_ns = time.time_ns()
        if self.is_explicit:
            due_ns = self._sent_ns + self.config["ack_wait"]
            self.deliveries.delivered(message.seq, due_ns)
            self.outlet.call_at(due_ns, lambda: self._overdue(message.seq))
        else:
            self.deliveries.delivered_for_good(message.seq)
        self.outlet.deliver(to, message, reply)

    def _reply(self, message: Message, count: int) -> str:
        return (
            f"$JS.ACK.{self.stream.name}.{self.name}.{count}.{message.seq}.{self.deliveries.number + 1}."
            f"{message.time_ns}.{self._unseen}"
        )

    def _next(self) -> tuple[Message | None, int]:
        """Return the next message to deliver, and its delivery count including this delivery."""
        held, limit = self.deliveries, self.config["max_deliver"]
        while held.again:
            seq, count = held.take_again()
            message = self.stream.messages.get(seq)
            if 0 < limit < count:
                held.give_up(seq)
                if count == limit + 1:
                    facts = {"stream_seq": seq, "deliveries": count - 1}
                    self.outlet.advise("MAX_DELIVERIES", self.stream.name, self.name, **facts)
            elif message is None:
                held.uncount(seq)
            else:
                return message, count
        if self._is_stalled:
            return None, 0
        message = self.stream.messages.next(self.filter, held.next_seq)
        if message is None:  # do not scan the same messages again
            held.next_seq = max(held.next_seq, self.stream.messages.last_seq + 1)
            return None, 0
        held.next_seq = message.seq + 1
        self._unseen -= 1
        return message, 1

    @property
    def _is_stalled(self) -> bool:
        """Whether the limit of unacknowledged messages is reached: nothing new is delivered."""
        return self.is_explicit and 0 < int(self.config["max_ack_pending"]) <= len(self.deliveries.unanswered)

    def _put_back(self, message: Message, count: int) -> None:
        if count == 1:
            self.deliveries.next_seq = message.seq
            self._unseen += 1
        else:
            self.deliveries.put_back(message.seq)

    # Acknowledgements.

    def answer(self, seq: int, number: int, payload: bytes) -> None:
        """Handle an acknowledgement. `number` is the delivery's consumer sequence, from its reply subject."""
        self._active_ns = time.time_ns()
        if payload in (b"", b"+ACK") or payload.startswith(b"+TERM"):
            if self.deliveries.settle(seq) and self.stream.is_work_queue:
                self.stream.remove(seq)
            self.serve()
        elif payload.startswith(b"-NAK"):
            self._refuse(seq, number, payload[4:].strip())
        elif payload == b"+WPI" and seq in self.deliveries.unanswered:
            self._hold(seq, self.config["ack_wait"])

    def _refuse(self, seq: int, number: int, options: bytes) -> None:
        if not self.deliveries.is_refusable(seq, number):
            return
        delay_ns = int(json.loads(options)["delay"]) if options else 0
        if delay_ns > 0:
            self.deliveries.again.pop(seq, None)
            self._hold(seq, delay_ns)
        else:
            self.deliveries.again.setdefault(seq)
            self.serve()

    def _hold(self, seq: int, ns: int) -> None:
        due_ns = time.time_ns() + ns
        self.deliveries.unanswered[seq].due_ns = due_ns
        self.outlet.call_at(due_ns, lambda: self._overdue(seq))

    def _overdue(self, seq: int) -> None:
        held = self.deliveries.unanswered.get(seq)
        if self.is_deleted or held is None or held.due_ns > time.time_ns():
            return
        if seq not in self.stream.messages:
            self.deliveries.settle(seq)
        else:
            self.deliveries.again.setdefault(seq)
        self.serve()

    def expire_all(self) -> None:
        """Expire every ack timer now, like a server that has lost its timers."""
        for held in self.deliveries.unanswered.values():
            held.due_ns = 0
        for seq in list(self.deliveries.unanswered):
            self._overdue(seq)

    # Pushes.

    def _push(self) -> None:
        to = self.config["deliver_subject"]
        while self.outlet.has_interest(to) and not self.is_deleted:
            message, count = self._next()
            if message is None:
                return
            self._active_ns = time.time_ns()
            self._send(to, message, self._reply(message, count))

    def _watch_listener(self) -> None:
        """Send idle heartbeats, and delete the consumer after a long time without a subscriber."""
        every_ns = self.config.get("idle_heartbeat") or SECOND_NS

        def send_heartbeat() -> None:
            if self.is_deleted:
                return
            now = time.time_ns()
            to = self.config["deliver_subject"]
            if self.outlet.has_interest(to):
                self._active_ns = now
                if "idle_heartbeat" in self.config and now - self._sent_ns >= every_ns // 2:
                    held = self.deliveries
                    last = {"Nats-Last-Consumer": held.number, "Nats-Last-Stream": held.last_seq}
                    self.outlet.status(to, "100 Idle Heartbeat", last)
            elif self._is_idle(now):
                self.delete()
                return
            self.outlet.call_at(now + every_ns, send_heartbeat)

        self.outlet.call_at(time.time_ns() + every_ns, send_heartbeat)

    def _watch_activity(self) -> None:
        def check() -> None:
            if self.is_deleted:
                return
            now = time.time_ns()
            self._drop_dead_pulls()
            if self.waiting:
                self._active_ns = now
            if self._is_idle(now):
                self.delete()
            else:
                self.outlet.call_at(now + self.config["inactive_threshold"], check)

        self.outlet.call_at(time.time_ns() + self.config["inactive_threshold"], check)

    def _is_idle(self, now_ns: int) -> bool:
        """Return whether the consumer was unused for its inactivity threshold."""
        threshold = self.config.get("inactive_threshold", 0)
        return bool(threshold) and now_ns - self._active_ns >= threshold

    # Reporting.

    def info(self) -> dict[str, Any]:
        self._drop_dead_pulls()
        held = self.deliveries
        number, seq = held.floor
        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "created": instant(self.created_ns),
            "config": dict(self.config),
            "delivered": {"consumer_seq": held.number, "stream_seq": held.last_seq},
            "ack_floor": {"consumer_seq": number, "stream_seq": seq},
            "num_ack_pending": len(held.unanswered),
            # Measured: messages that were given up are counted, too; always 0 if the limit is one delivery.
            "num_redelivered": len(held.repeats) if self.config["max_deliver"] != 1 else 0,
            "num_waiting": len(self.waiting),
            "num_pending": self._unseen,
            "ts": instant(time.time_ns()),
        }
