"""One stream: messages by sequence, the limits it was made with, and the conditions a write may name.

The order of the checks, the error codes and their texts are those of nats-server 2.12 to 2.15; the contract classes of
all ports run on both.
"""

from __future__ import annotations

import heapq
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyoco_server.ports.nats.memory.subjects import is_pattern, matches

__all__ = ["SECOND_NS", "Message", "Refusal", "Stream", "instant"]

SECOND_NS = 1_000_000_000
_TTL = re.compile(r"(\d+)(s|m|h)?\Z")
_TTL_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}
#: What a stream without settings of its own has, as the server shows it.
_DEFAULTS: dict[str, Any] = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120 * SECOND_NS,
    "allow_direct": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
}
#: What a message takes in a file beside its own bytes.
_OVERHEAD_BYTES = 22


class Refusal(Exception):
    """An error answer: the HTTP-like code, JetStream's own code, and a text."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code, self.err_code, self.description = code, err_code, description

    def as_json(self) -> dict[str, object]:
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


def instant(ns: int) -> str:
    """RFC 3339 with microseconds, as the server writes times."""
    return datetime.fromtimestamp(ns / SECOND_NS, UTC).isoformat().replace("+00:00", "Z")


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
        return _OVERHEAD_BYTES + len(self.subject) + len(self.data) + len(self.head)


class Stream:
    """Messages in order. `on_stored` and `on_removed` tell the consumers; `on_due` asks for a call of `expire`."""

    def __init__(self, config: Mapping[str, Any], on_due: Callable[[int], None]) -> None:
        self.config = self.complete(config)
        self.name: str = self.config["name"]
        self.created_ns = time.time_ns()
        self.last_seq = 0
        self.bytes = 0
        self.messages: dict[int, Message] = {}
        #: Ascending. Whatever was removed is taken out when the list is searched next.
        self._order: list[int] = []
        self._by_subject: dict[str, list[int]] = {}
        self._ids: dict[str, tuple[int, int]] = {}
        #: (when in ns, sequence) of what will expire.
        self._expiring: list[tuple[int, int]] = []
        self._on_due = on_due
        self.on_stored: list[Callable[[Message], None]] = []
        self.on_removed: list[Callable[[Message], None]] = []

    @staticmethod
    def complete(config: Mapping[str, Any]) -> dict[str, Any]:
        whole = _DEFAULTS | dict(config)
        whole.setdefault("subjects", [whole["name"]])
        return whole

    @property
    def is_work_queue(self) -> bool:
        return bool(self.config["retention"] == "workqueue")

    def covers(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.config["subjects"])

    # Writes.

    def store(self, subject: str, data: bytes, headers: Mapping[str, str], head: bytes) -> tuple[int, bool]:
        """The sequence, and whether it is that of an earlier message with the same id. Raises Refusal."""
        now = time.time_ns()
        ttl_ns = self._check(subject, data, headers)
        message_id = headers.get("Nats-Msg-Id")
        if message_id and (known := self._known(message_id, now)):
            return known, True
        self._check_last(subject, headers)
        self._check_room(subject, len(subject) + len(data) + len(head) + _OVERHEAD_BYTES)
        message = self._append(subject, data, head, now)
        if message_id:
            self._ids[message_id] = (message.seq, now)
        if headers.get("Nats-Rollup") == "sub":
            self.purge(subject, below=message.seq)
        self._expire_later(message, ttl_ns)
        self._keep_limits(message)
        for hear in list(self.on_stored):
            hear(message)
        return message.seq, False

    def _check(self, subject: str, data: bytes, headers: Mapping[str, str]) -> int:
        """The message's own time to live, in ns; 0: none."""
        expected = headers.get("Nats-Expected-Stream")
        if expected is not None and expected != self.name:
            raise Refusal(400, 10060, "expected stream does not match")
        if self.config["max_msg_size"] >= 0 and len(data) > self.config["max_msg_size"]:
            raise Refusal(400, 10054, "message size exceeds maximum allowed")
        if "Nats-Rollup" in headers and not self.config["allow_rollup_hdrs"]:
            raise Refusal(400, 10111, f"rollup not permitted on {subject}")
        ttl = headers.get("Nats-TTL")
        if ttl is None:
            return 0
        if not self.config.get("allow_msg_ttl"):
            raise Refusal(400, 10166, "per-message TTL is disabled")
        found = _TTL.match(ttl)
        if found is None:
            raise Refusal(400, 10165, "invalid per-message TTL")
        return int(found[1]) * _TTL_SECONDS[found[2]] * SECOND_NS

    def _known(self, message_id: str, now: int) -> int:
        window = self.config["duplicate_window"]
        for old in [each for each, (_, at) in self._ids.items() if now - at > window]:
            del self._ids[old]
        return self._ids.get(message_id, (0, 0))[0]

    def _check_last(self, subject: str, headers: Mapping[str, str]) -> None:
        wanted = headers.get("Nats-Expected-Last-Sequence")
        if wanted is not None and int(wanted) != self.last_seq:
            raise Refusal(400, 10071, f"wrong last sequence: {self.last_seq}")
        wanted = headers.get("Nats-Expected-Last-Subject-Sequence")
        if wanted is not None:
            last = self.last(headers.get("Nats-Expected-Last-Subject-Sequence-Subject", subject))
            have = 0 if last is None else last.seq
            if int(wanted) != have:
                raise Refusal(400, 10071, f"wrong last sequence: {have}")

    def _check_room(self, subject: str, size: int) -> None:
        config = self.config
        if config["discard"] != "new":
            return
        per_subject = config["max_msgs_per_subject"]
        is_replacing = False
        if per_subject > 0 and len(self._alive(subject)) >= per_subject:
            if config.get("discard_new_per_subject"):
                raise Refusal(503, 10077, "maximum messages per subject exceeded")
            is_replacing = True
        if 0 < config["max_msgs"] <= len(self.messages) and not is_replacing:
            raise Refusal(503, 10077, "maximum messages exceeded")
        if 0 < config["max_bytes"] < self.bytes + size and not is_replacing:
            raise Refusal(503, 10077, "maximum bytes exceeded")

    def _append(self, subject: str, data: bytes, head: bytes, now: int) -> Message:
        self.last_seq += 1
        message = Message(self.last_seq, subject, data, head, now)
        self.messages[message.seq] = message
        self._order.append(message.seq)
        self._by_subject.setdefault(subject, []).append(message.seq)
        self.bytes += message.size
        return message

    def _keep_limits(self, newest: Message) -> None:
        config = self.config
        per_subject = config["max_msgs_per_subject"]
        if per_subject > 0:
            for seq in self._alive(newest.subject)[:-per_subject]:
                self.remove(seq)
        if config["discard"] == "old":
            while 0 < config["max_msgs"] < len(self.messages) or 0 < config["max_bytes"] < self.bytes:
                self.remove(next(iter(self.messages)))

    # Expiry.

    def _expire_later(self, message: Message, ttl_ns: int) -> None:
        age = self.config["max_age"]
        lives = min(filter(None, (ttl_ns, age)), default=0)
        if lives:
            due = message.time_ns + lives
            heapq.heappush(self._expiring, (due, message.seq))
            self._on_due(due)

    def expire(self) -> None:
        """Remove what has expired, and leave a marker where the stream was made to."""
        now = time.time_ns()
        while self._expiring and self._expiring[0][0] <= now:
            _, seq = heapq.heappop(self._expiring)
            message = self.messages.get(seq)
            if message is None:
                continue
            marker_ns = self.config.get("subject_delete_marker_ttl", 0)
            was_marker = b"Nats-Marker-Reason" in message.head or b"KV-Operation" in message.head
            is_last = self._alive(message.subject)[-1:] == [seq]
            self.remove(seq)
            if marker_ns and is_last and not was_marker:
                head = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\n\r\n"
                marker = self._append(message.subject, b"", head, now)
                self._expire_later(marker, marker_ns)
                for hear in list(self.on_stored):
                    hear(marker)
        if self._expiring:
            self._on_due(self._expiring[0][0])

    # Removal.

    def remove(self, seq: int) -> bool:
        message = self.messages.pop(seq, None)
        if message is None:
            return False
        self.bytes -= message.size
        if not self._alive(message.subject):
            del self._by_subject[message.subject]
        if len(self._order) > 64 and len(self._order) > 2 * len(self.messages):
            self._order = list(self.messages)
        for hear in list(self.on_removed):
            hear(message)
        return True

    def purge(self, pattern: str = ">", below: int = 0, keep: int = 0) -> int:
        doomed = [each.seq for each in self.matching(pattern) if not below or each.seq < below]
        if keep:
            doomed = doomed[:-keep]
        return sum(self.remove(seq) for seq in doomed)

    # Reads.

    def _alive(self, subject: str) -> list[int]:
        seqs = self._by_subject.get(subject)
        if seqs is None:
            return []
        if any(seq not in self.messages for seq in seqs):
            seqs[:] = [seq for seq in seqs if seq in self.messages]
        return seqs

    def last(self, pattern: str) -> Message | None:
        if not is_pattern(pattern):
            seqs = self._alive(pattern)
            return self.messages[seqs[-1]] if seqs else None
        return next((each for each in reversed(self.messages.values()) if matches(pattern, each.subject)), None)

    def next(self, pattern: str, seq: int) -> Message | None:
        """The first message from this sequence on that matches."""
        return next(self.since(seq, pattern), None)

    def since(self, seq: int, pattern: str = ">") -> Iterator[Message]:
        if not is_pattern(pattern):
            seqs = self._alive(pattern)
            for each in seqs[bisect_left(seqs, seq) :]:
                yield self.messages[each]
            return
        for at in range(bisect_left(self._order, seq), len(self._order)):
            found = self.messages.get(self._order[at])
            if found is not None and matches(pattern, found.subject):
                yield found

    def matching(self, pattern: str) -> list[Message]:
        return list(self.since(0, pattern))

    def since_time(self, ns: int) -> Message | None:
        return next((each for each in self.messages.values() if each.time_ns >= ns), None)

    def counts(self, pattern: str) -> dict[str, int]:
        return {subject: len(self._alive(subject)) for subject in list(self._by_subject) if matches(pattern, subject)}

    @property
    def first_seq(self) -> int:
        return next(iter(self.messages), self.last_seq + 1)

    def gaps(self) -> list[int]:
        """The sequences between the first and the last message that are gone."""
        return [seq for seq in range(self.first_seq, self.last_seq + 1) if seq not in self.messages]

    def state(self) -> dict[str, Any]:
        first = next(iter(self.messages.values()), None)
        return {
            "messages": len(self.messages),
            "bytes": self.bytes,
            "first_seq": self.first_seq,
            "first_ts": instant(first.time_ns) if first else "0001-01-01T00:00:00Z",
            "last_seq": self.last_seq,
            "last_ts": instant(next(reversed(self.messages.values())).time_ns) if first else "0001-01-01T00:00:00Z",
            "num_subjects": len(self._by_subject),
            "num_deleted": self.last_seq - self.first_seq + 1 - len(self.messages) if first else 0,
        }
