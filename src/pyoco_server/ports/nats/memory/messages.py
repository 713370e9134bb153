"""Stored messages, found by sequence and by subject."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pyoco_server.ports.nats.memory.subjects import is_pattern, matcher

__all__ = ["SECOND_NS", "Message", "Messages", "Sequences", "instant"]

SECOND_NS = 1_000_000_000
#: What the server's file store adds to subject, headers and data: for each message, and for one with headers.
_OVERHEAD_BYTES, _HEADER_BYTES = 30, 4
_COMPACT_FROM = 64


def instant(ns: int) -> str:
    """Format a time as RFC 3339 with nanoseconds, as the server does."""
    seconds, rest = divmod(ns, SECOND_NS)
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def stored_size(subject: str, head: bytes, data: bytes) -> int:
    """Return the bytes that a message takes in the server's file store, measured with 2.15."""
    return _OVERHEAD_BYTES + len(subject.encode()) + len(data) + (_HEADER_BYTES + len(head) if head else 0)


@dataclass(slots=True)
class Message:
    """A stored message. `head` is the raw header block, or empty."""

    seq: int
    subject: str
    data: bytes
    head: bytes
    time_ns: int

    @property
    def size(self) -> int:
        return stored_size(self.subject, self.head, self.data)


class Sequences:
    """Ascending numbers. Removed ones stay in the list until it is compacted, when more than half of it is removed."""

    __slots__ = ("_alive", "_first", "_list")

    def __init__(self) -> None:
        self._list: list[int] = []
        self._alive: set[int] = set()
        self._first = 0

    def __len__(self) -> int:
        return len(self._alive)

    def add(self, seq: int) -> None:
        self._list.append(seq)
        self._alive.add(seq)

    def remove(self, seq: int) -> None:
        self._alive.remove(seq)
        if not self._alive:
            self._list, self._first = [], 0
            return
        while self._list[self._first] not in self._alive:
            self._first += 1
        while self._list[-1] not in self._alive:
            self._list.pop()
        if len(self._list) > _COMPACT_FROM and len(self._list) > 2 * len(self._alive):
            self._list, self._first = [each for each in self._list if each in self._alive], 0

    @property
    def first(self) -> int | None:
        return self._list[self._first] if self._alive else None

    @property
    def last(self) -> int | None:
        return self._list[-1] if self._alive else None

    def since(self, seq: int) -> Iterator[int]:
        """Yield the numbers from `seq` on. The caller may remove those that it has received."""
        at = bisect_left(self._list, seq, self._first)
        while at < len(self._list):
            each = self._list[at]
            if each in self._alive:
                yield each
                if at >= len(self._list) or self._list[at] != each:  # compacted meanwhile
                    at = bisect_left(self._list, each + 1)
                    continue
            at += 1


class Messages:
    """The messages of one stream, without any limits."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.last_ns = 0
        self.bytes = 0
        self.was_purged = False
        self._by_seq: dict[int, Message] = {}
        self._order = Sequences()
        self._by_subject: dict[str, Sequences] = {}

    def __len__(self) -> int:
        return len(self._by_seq)

    def __contains__(self, seq: int) -> bool:
        return seq in self._by_seq

    def get(self, seq: int) -> Message | None:
        return self._by_seq.get(seq)

    def append(self, subject: str, data: bytes, head: bytes, now_ns: int) -> Message:
        self.last_seq, self.last_ns = self.last_seq + 1, now_ns
        message = Message(self.last_seq, subject, data, head, now_ns)
        self._by_seq[message.seq] = message
        self._order.add(message.seq)
        of_subject = self._by_subject.get(subject)
        if of_subject is None:
            of_subject = self._by_subject[subject] = Sequences()
        of_subject.add(message.seq)
        self.bytes += message.size
        return message

    def remove(self, seq: int) -> Message | None:
        message = self._by_seq.pop(seq, None)
        if message is None:
            return None
        self.bytes -= message.size
        self._order.remove(seq)
        of_subject = self._by_subject[message.subject]
        of_subject.remove(seq)
        if not of_subject:
            del self._by_subject[message.subject]
        return message

    @property
    def first_seq(self) -> int:
        """The first sequence; 0 for a stream that was neither written to nor purged."""
        first = self._order.first
        if first is not None:
            return first
        return self.last_seq + 1 if self.last_seq or self.was_purged else 0

    @property
    def first(self) -> Message | None:
        first = self._order.first
        return None if first is None else self._by_seq[first]

    @property
    def subject_count(self) -> int:
        return len(self._by_subject)

    def count(self, subject: str) -> int:
        """Count the messages of one literal subject."""
        found = self._by_subject.get(subject)
        return 0 if found is None else len(found)

    def counts(self, pattern: str) -> dict[str, int]:
        return {subject: len(self._by_subject[subject]) for subject in self._subjects(pattern)}

    def _subjects(self, pattern: str) -> list[str]:
        if not is_pattern(pattern):
            return [pattern] if pattern in self._by_subject else []
        test = matcher(pattern)
        return [subject for subject in self._by_subject if test(subject)]

    def last(self, pattern: str) -> Message | None:
        """Return the newest message that matches."""
        last = max((self._by_subject[subject].last or 0 for subject in self._subjects(pattern)), default=0)
        return self._by_seq.get(last)

    def next(self, pattern: str, seq: int) -> Message | None:
        """Return the first message that matches, from this sequence on."""
        return next(self.since(seq, pattern), None)

    def since(self, seq: int, pattern: str = ">") -> Iterator[Message]:
        if not is_pattern(pattern):
            of_subject = self._by_subject.get(pattern)
            if of_subject is not None:
                for each in of_subject.since(seq):
                    yield self._by_seq[each]
            return
        test = matcher(pattern)
        for each in self._order.since(seq):
            message = self._by_seq[each]
            if test(message.subject):
                yield message

    def gaps(self) -> list[int]:
        """Return the removed sequences between the first message and the last sequence."""
        return [seq for seq in range(self.first_seq, self.last_seq + 1) if seq not in self._by_seq]
