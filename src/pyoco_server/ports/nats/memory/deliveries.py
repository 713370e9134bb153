"""The deliveries of a consumer: unacknowledged messages, pending redeliveries, and the ack floor.

An acknowledgement names only the message, so one of an earlier delivery counts, too. Only a negative acknowledgement is
checked against the ack floor. All of this is what nats-server does; see `test_memory_agrees.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyoco_server.ports.nats.memory.messages import Message

__all__ = ["Deliveries", "Unanswered"]


@dataclass(slots=True)
class Unanswered:
    """An unacknowledged message. `number` is that of its first delivery."""

    number: int
    due_ns: int


class Deliveries:
    def __init__(self, next_seq: int) -> None:
        #: The first sequence that was not scanned yet, and the number of deliveries so far.
        self.next_seq, self.number = next_seq, 0
        #: The highest sequence that was delivered, or skipped by a purge.
        self.last_seq = next_seq - 1
        self.unanswered: dict[int, Unanswered] = {}
        #: The number of redeliveries of each unacknowledged message.
        self.repeats: dict[int, int] = {}
        #: To be redelivered, in this order.
        self.again: dict[int, None] = {}
        #: Everything up to here is acknowledged: delivery number, sequence.
        self.floor = 0, next_seq - 1

    def delivered(self, seq: int, due_ns: int) -> None:
        """Record a delivery. The message keeps the number of its first delivery until it is acknowledged."""
        self.number += 1
        self.last_seq = max(self.last_seq, seq)
        held = self.unanswered.get(seq)
        if held is None:
            self.unanswered[seq] = Unanswered(self.number, due_ns)
        else:
            held.due_ns = due_ns

    def delivered_for_good(self, seq: int) -> None:
        """Record a delivery that needs no acknowledgement."""
        self.number, self.last_seq = self.number + 1, seq
        self.floor = self.number, seq

    def take_again(self) -> tuple[int, int]:
        """Return a sequence to redeliver, and its delivery count including this delivery. (0, 0): none."""
        while self.again:
            seq = next(iter(self.again))
            del self.again[seq]
            self.repeats[seq] = self.repeats.get(seq, 0) + 1
            return seq, self.repeats[seq] + 1
        return 0, 0

    def put_back(self, seq: int) -> None:
        """Undo a redelivery that was not sent; it is tried again."""
        self.uncount(seq)
        self.again.setdefault(seq)

    def settle(self, seq: int) -> bool:
        """Record a final acknowledgement. False: the message was never delivered."""
        if seq >= self.next_seq:
            return False
        self.repeats.pop(seq, None)
        self.again.pop(seq, None)
        held = self.unanswered.pop(seq, None)
        if held is None:
            return True
        if not self.unanswered:
            self.floor = self.number, self.last_seq
        elif held.number == self.floor[0] + 1:
            self._raise_floor(seq, held.number)
        return True

    def _raise_floor(self, seq: int, number: int) -> None:
        self.floor = number, seq
        for later in range(seq + 1, self.next_seq):
            if later in self.unanswered:
                self.floor = self.unanswered[later].number - 1, later - 1
                return

    def is_refusable(self, seq: int, number: int) -> bool:
        """Return whether a negative acknowledgement with this number counts."""
        return self.floor[0] < number <= self.number and seq in self.unanswered

    def give_up(self, seq: int) -> None:
        """Stop delivering a message that has reached its delivery limit."""
        self.unanswered.pop(seq, None)

    def uncount(self, seq: int) -> None:
        """Undo the count of a redelivery that was not sent."""
        self.repeats[seq] -= 1
        if not self.repeats[seq]:
            del self.repeats[seq]

    def purged(self, first_seq: int, is_gone: Callable[[int], bool]) -> None:
        """Handle a purge. `first_seq` is the first remaining sequence of the consumer.

        Measured: pending redeliveries are dropped, and such messages are redelivered when their ack timer expires; and
        unacknowledged messages that were purged are forgotten only if the ack floor was below `first_seq`.
        """
        self.next_seq = max(self.next_seq, first_seq)
        self.last_seq = max(self.last_seq, first_seq - 1)
        number, floor_seq = self.floor
        if floor_seq < first_seq:
            floor_seq = first_seq - 1
            for seq in [each for each in self.unanswered if each <= floor_seq or is_gone(each)]:
                number = max(number, self.unanswered.pop(seq).number)
                self.repeats.pop(seq, None)
        self.floor = number, floor_seq
        if not self.unanswered:
            self.floor = self.number, self.last_seq
            self.repeats.clear()
        self.again.clear()

    def removed(self, message: Message) -> None:
        """Settle a removed message, which needs no acknowledgement any more."""
        self.repeats.pop(message.seq, None)
        if message.seq in self.unanswered:
            self.settle(message.seq)
