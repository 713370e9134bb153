"""What a consumer has delivered: unanswered messages, the ones to deliver again, and the ack floor.

An answer names a message, and so does the answer of a former holder: an acknowledgement of any age counts. Only a
negative one is checked against the ack floor. All of this is what nats-server does; see `test_memory_agrees.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyoco_server.ports.nats.memory.messages import Message

__all__ = ["Deliveries", "Unanswered"]


@dataclass(slots=True)
class Unanswered:
    """A delivered message without an answer. The number is that of its first delivery."""

    number: int
    due_ns: int


class Deliveries:
    def __init__(self, next_seq: int) -> None:
        #: The first sequence that was not looked at yet, and the number of deliveries so far.
        self.next_seq, self.number = next_seq, 0
        #: The highest sequence that was delivered, or that a purge has passed.
        self.last_seq = next_seq - 1
        self.unanswered: dict[int, Unanswered] = {}
        #: How often each unanswered message was delivered beyond the first time.
        self.repeats: dict[int, int] = {}
        #: To be delivered again, in this order.
        self.again: dict[int, None] = {}
        #: Everything up to here is answered: number of deliveries, sequence.
        self.floor = 0, next_seq - 1

    def delivered(self, seq: int, due_ns: int) -> None:
        """One more delivery. It keeps the number of the first one until it is answered."""
        self.number += 1
        self.last_seq = max(self.last_seq, seq)
        held = self.unanswered.get(seq)
        if held is None:
            self.unanswered[seq] = Unanswered(self.number, due_ns)
        else:
            held.due_ns = due_ns

    def delivered_for_good(self, seq: int) -> None:
        """A delivery that nobody has to answer."""
        self.number, self.last_seq = self.number + 1, seq
        self.floor = self.number, seq

    def take_again(self) -> tuple[int, int]:
        """A sequence to deliver again, and how often it will have been delivered. (0, 0): none."""
        while self.again:
            seq = next(iter(self.again))
            del self.again[seq]
            self.repeats[seq] = self.repeats.get(seq, 0) + 1
            return seq, self.repeats[seq] + 1
        return 0, 0

    def put_back(self, seq: int) -> None:
        """A delivery that was not made; it is tried again."""
        self.uncount(seq)
        self.again.setdefault(seq)

    def settle(self, seq: int) -> bool:
        """An answer that ends it. False: it was never delivered."""
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
        """Whether a negative answer with this number counts."""
        return self.floor[0] < number <= self.number and seq in self.unanswered

    def give_up(self, seq: int) -> None:
        """Delivered as often as allowed: neither answered nor to be delivered again."""
        self.unanswered.pop(seq, None)

    def uncount(self, seq: int) -> None:
        """A delivery that was not made."""
        self.repeats[seq] -= 1
        if not self.repeats[seq]:
            del self.repeats[seq]

    def purged(self, first_seq: int, is_gone: Callable[[int], bool]) -> None:
        """Messages were purged. `first_seq`: the first one left of what the consumer sees.

        Measured: nothing waits for its next delivery any more, it comes again when its ack timer ends; and unanswered
        messages that are gone are forgotten only if the ack floor was below `first_seq`.
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
        """A message that is gone needs no answer."""
        self.repeats.pop(message.seq, None)
        if message.seq in self.unanswered:
            self.settle(message.seq)
