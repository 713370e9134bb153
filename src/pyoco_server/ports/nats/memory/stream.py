"""One stream: its limits, the conditions of writes, and expiry.

The order of the checks, the error codes and their texts are those of nats-server 2.15. The contract classes of all
ports run on both, and `tests/ports/test_memory_agrees.py` compares the answers.
"""

from __future__ import annotations

import heapq
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pyoco_server.ports.nats.memory.configs import stream_config
from pyoco_server.ports.nats.memory.messages import SECOND_NS, Message, Messages, instant, stored_size
from pyoco_server.ports.nats.memory.schedules import due_ns_of, fired_head, replacing_head, schedule_problem

__all__ = ["Stream", "StreamRefusal"]

_TTL = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h))+\Z")
_TTL_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNIT_NS = {"ms": 1_000_000, "s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS}
_MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: %s\r\nNats-Rollup: sub\r\n\r\n"
_TTL_LINE = re.compile(rb"Nats-TTL:[^\r]*\r\n")
#: An invalid TTL, and no expiry.
_INVALID, _FOR_EVER = -1, 0
_NEVER = "0001-01-01T00:00:00Z"


class StreamRefusal(Exception):
    """An error response: an HTTP-like code, JetStream's own code, and a text."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.code, self.err_code, self.description = code, err_code, description

    def as_json(self) -> dict[str, object]:
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


class Stream:
    """Messages in order, with callbacks for consumers.

    `on_stored` is called immediately, `on_ready` when the message may be delivered; `on_removed` and `on_purged` after
    removals. The stream calls `on_due` to request a call of `expire` at that time.
    """

    def __init__(self, config: Mapping[str, Any], on_due: Callable[[int], None]) -> None:
        self.config = stream_config(config)
        self.name: str = self.config["name"]
        self.created_ns = time.time_ns()
        self.messages = Messages()
        self.messages.last_seq = max(0, self.config.get("first_seq", 1) - 1)
        #: The message ids of the duplicate window with their sequences, and when each was stored.
        self._ids: dict[str, int] = {}
        self._id_times: deque[tuple[int, str]] = deque()
        self._last_id = ""
        #: A heap of (expiry in ns, sequence).
        self._expiring: list[tuple[int, int]] = []
        #: A heap of (due time in ns, sequence, target) of scheduled messages. Replaced and removed ones are skipped.
        self._scheduled: list[tuple[int, int, str]] = []
        self._on_due = on_due
        self.on_stored: list[Callable[[Message], None]] = []
        self.on_ready: list[Callable[[Message], None]] = []
        self.on_removed: list[Callable[[Message], None]] = []
        self.on_purged: list[Callable[[str], None]] = []

    @property
    def is_work_queue(self) -> bool:
        return bool(self.config["retention"] == "workqueue")

    # Writes.

    def store(self, subject: str, data: bytes, headers: Mapping[str, str], head: bytes) -> tuple[Message | None, int]:
        """Store a message. Returns it and its sequence; None: a duplicate of the message with that sequence.

        Raises Refusal. The caller must acknowledge to the publisher and then call `announce`: the server acknowledges
        before it delivers.
        """
        now = time.time_ns()
        limit = self.config["max_msg_size"]
        if 0 <= limit < len(data) + len(head):
            raise StreamRefusal(400, 10054, "message size exceeds maximum allowed")
        expected = headers.get("Nats-Expected-Stream")
        if expected is not None and expected != self.name:
            raise StreamRefusal(400, 10060, "expected stream does not match")
        ttl_ns = _ttl_ns(headers.get("Nats-TTL"))
        if ttl_ns is not None and ttl_ns >= 0 and not self.config["allow_msg_ttl"]:
            raise StreamRefusal(400, 10166, "per-message TTL is disabled")
        self._check_last(subject, headers)
        head = self._checked_schedule(subject, headers, head)
        message_id = headers.get("Nats-Msg-Id")
        if message_id and (known := self._known(message_id, now)):
            return None, known
        expected = headers.get("Nats-Expected-Last-Msg-Id")
        if expected and expected != self._last_id:
            raise StreamRefusal(400, 10070, f"wrong last msg ID: {self._last_id}")
        rollup = self._check_rollup(headers)
        if ttl_ns == _INVALID:
            raise StreamRefusal(400, 10165, "invalid per-message TTL")
        if ttl_ns and ttl_ns < self._marker_ns and self.config["max_msgs_per_subject"] != 1:
            ttl_ns, head = self._marker_ns, _with_ttl(head, self._marker_ns)
        self._check_room(subject, stored_size(subject, head, data))
        message = self._append(subject, data, head, now)
        self._schedule(message, headers)
        if message_id:
            self._ids[message_id] = message.seq
            self._id_times.append((now, message_id))
        self._last_id = message_id or ""
        if rollup:
            self.purge(subject if rollup == "sub" else ">", below=message.seq)
        if ttl_ns != _FOR_EVER:
            self._expire_later(message, min(filter(None, (ttl_ns, self.config["max_age"])), default=0))
        self.keep_limits(subject)
        return message, message.seq

    def _append(self, subject: str, data: bytes, head: bytes, now: int) -> Message:
        message = self.messages.append(subject, data, head, now)
        for callback in self.on_stored:
            callback(message)
        return message

    def _checked_schedule(self, subject: str, headers: Mapping[str, str], head: bytes) -> bytes:
        """Return the headers to store. Raises Refusal if the message has a schedule that cannot be."""
        if "Nats-Schedule" not in headers:
            return head
        if not self.config.get("allow_msg_schedules"):
            raise StreamRefusal(400, 10188, "message schedules is disabled")
        problem = schedule_problem(subject, headers, self.config["subjects"])
        if problem is not None:
            raise StreamRefusal(400, *problem)
        return replacing_head(head)

    def _schedule(self, message: Message, headers: Mapping[str, str]) -> None:
        """Replace the schedule of this subject, and publish the message to its target when it is due."""
        if "Nats-Schedule" not in headers:
            return
        self.purge(message.subject, below=message.seq)
        due = due_ns_of(headers["Nats-Schedule"])
        heapq.heappush(self._scheduled, (due, message.seq, headers["Nats-Schedule-Target"]))
        self._on_due(due)

    def _fire(self, now: int) -> None:
        while self._scheduled and self._scheduled[0][0] <= now:
            _, seq, target = heapq.heappop(self._scheduled)
            scheduled = self.messages.get(seq)
            last = None if scheduled is None else self.messages.last(scheduled.subject)
            if scheduled is None or last is None or last.seq != seq:  # a later message has cancelled the schedule
                continue
            fired = self._append(target, scheduled.data, fired_head(scheduled.head, scheduled.subject), now)
            self.remove(seq)
            self.keep_limits(target)
            self.announce(fired)
        if self._scheduled:
            self._on_due(self._scheduled[0][0])

    def announce(self, message: Message) -> None:
        """Let the consumers deliver a new message."""
        for callback in list(self.on_ready):
            callback(message)

    def _known(self, message_id: str, now: int) -> int:
        window = self.config["duplicate_window"]
        while self._id_times and now - self._id_times[0][0] > window:
            self._ids.pop(self._id_times.popleft()[1], None)
        return self._ids.get(message_id, 0)

    def _check_last(self, subject: str, headers: Mapping[str, str]) -> None:
        wanted = headers.get("Nats-Expected-Last-Subject-Sequence")
        pattern = headers.get("Nats-Expected-Last-Subject-Sequence-Subject")
        if wanted:
            last = self.messages.last(pattern or subject)
            have = 0 if last is None else last.seq
            if wanted != str(have):
                raise StreamRefusal(400, 10071, f"wrong last sequence: {have}")
        elif pattern:
            raise StreamRefusal(400, 10193, "missing sequence for expected last sequence per subject")
        wanted = headers.get("Nats-Expected-Last-Sequence")
        if wanted and wanted != str(self.messages.last_seq):
            raise StreamRefusal(400, 10071, f"wrong last sequence: {self.messages.last_seq}")

    def _check_rollup(self, headers: Mapping[str, str]) -> str:
        rollup = headers.get("Nats-Rollup", "")
        if rollup and (not self.config["allow_rollup_hdrs"] or self.config["deny_purge"]):
            raise StreamRefusal(500, 10111, "rollup not permitted")
        if rollup not in ("", "sub", "all"):
            raise StreamRefusal(500, 10111, f'rollup value invalid: "{rollup}"')
        return rollup

    def _check_room(self, subject: str, size: int) -> None:
        config = self.config
        if config["discard"] != "new":
            return
        per_subject = config["max_msgs_per_subject"]
        is_replacing = False
        if 0 < per_subject <= self.messages.count(subject):
            if config.get("discard_new_per_subject"):
                raise StreamRefusal(503, 10077, "maximum messages per subject exceeded")
            is_replacing = True
        if 0 < config["max_msgs"] <= len(self.messages) and not is_replacing:
            raise StreamRefusal(503, 10077, "maximum messages exceeded")
        if 0 < config["max_bytes"] < self.messages.bytes + size and not is_replacing:
            raise StreamRefusal(503, 10077, "maximum bytes exceeded")

    def keep_limits(self, *subjects: str) -> None:
        """Remove the oldest messages beyond the limits. `subjects` are checked for the limit per subject."""
        config, messages = self.config, self.messages
        per_subject = config["max_msgs_per_subject"]
        for subject in subjects if per_subject > 0 else ():
            while messages.count(subject) > per_subject and (oldest := messages.next(subject, 0)):
                self.remove(oldest.seq)
        if config["discard"] == "old":
            while 0 < config["max_msgs"] < len(messages) or 0 < config["max_bytes"] < messages.bytes:
                self.remove(messages.first_seq)

    def change(self, config: Mapping[str, Any]) -> None:
        """Replace the settings, and apply them to stored messages, too."""
        old_age = self.config["max_age"]
        self.config = stream_config(config)
        self.keep_limits(*self.messages.counts(">"))
        if self.config["max_age"] and not 0 < old_age <= self.config["max_age"]:
            for message in self.messages.since(0):
                self._expire_later(message, self.config["max_age"])

    # Expiry.

    @property
    def _marker_ns(self) -> int:
        """How long the delete marker of an expired subject is kept; 0: no markers."""
        return int(self.config.get("subject_delete_marker_ttl", 0))

    def _expire_later(self, message: Message, lives_ns: int) -> None:
        if lives_ns:
            due = message.time_ns + lives_ns
            heapq.heappush(self._expiring, (due, message.seq))
            self._on_due(due)

    def expire(self) -> None:
        """Publish scheduled messages that are due. Remove expired messages, and write delete markers if configured.

        Measured: a marker outlives `max_age`, as does a message that never expires; and a deletion that a client has
        written leaves a marker when it expires, like any other message.
        """
        now, marker_ns = time.time_ns(), self._marker_ns
        self._fire(now)
        while self._expiring and self._expiring[0][0] <= now:
            _, seq = heapq.heappop(self._expiring)
            message = self.messages.get(seq)
            if message is None:
                continue
            self.remove(seq)
            is_last = not self.messages.count(message.subject)
            if marker_ns and is_last and b"Nats-Marker-Reason" not in message.head:
                marker = self._append(message.subject, b"", _MARKER % _duration(marker_ns).encode(), now)
                self._expire_later(marker, marker_ns)
                self.announce(marker)
        if self._expiring:
            self._on_due(self._expiring[0][0])

    # Removal.

    def remove(self, seq: int) -> bool:
        message = self.messages.remove(seq)
        if message is None:
            return False
        for callback in list(self.on_removed):
            callback(message)
        return True

    def purge(self, pattern: str = ">", below: int = 0, keep: int = 0) -> int:
        purged = [each.seq for each in self.messages.since(0, pattern) if not below or each.seq < below]
        if keep:
            purged = purged[:-keep]
        for seq in purged:
            self.messages.remove(seq)
        self.messages.was_purged |= pattern == ">"
        for callback in list(self.on_purged):
            callback(pattern)
        return len(purged)

    # Reporting.

    def state(self, *, with_deleted: bool = False) -> dict[str, Any]:
        """Return the state. Some counts are omitted if they are 0, as the server does."""
        messages, first = self.messages, self.messages.first
        shown: dict[str, Any] = {
            "messages": len(messages),
            "bytes": messages.bytes,
            "first_seq": messages.first_seq,
            "first_ts": instant(first.time_ns) if first else _NEVER,
            "last_seq": messages.last_seq,
            "last_ts": instant(messages.last_ns) if messages.last_ns else _NEVER,
        }
        if messages.subject_count:
            shown["num_subjects"] = messages.subject_count
        deleted = messages.last_seq - messages.first_seq + 1 - len(messages)
        if deleted and first:
            shown["num_deleted"] = deleted
        if with_deleted and deleted:
            # Measured: a stream that was never written to reports message 0 as deleted.
            shown |= {"num_deleted": deleted, "deleted": messages.gaps()}
        return shown


def _ttl_ns(text: str | None) -> int | None:
    """Parse a message's own TTL: seconds, a Go duration, or "never". None: the message has no TTL."""
    if not text:
        return None
    if text == "never":
        return _FOR_EVER
    if text.isdecimal():
        ns = int(text) * SECOND_NS
    else:
        parts = _TTL_PART.findall(text) if _TTL.match(text) else []
        ns = sum(int(float(number) * _UNIT_NS[unit]) for number, unit in parts)
    return ns if ns >= SECOND_NS else _INVALID


def _with_ttl(head: bytes, ns: int) -> bytes:
    """Return the headers with this TTL.

    Measured: a TTL below that of the stream's markers is raised to it, in the stored headers, too. Streams that keep
    one message per subject do not raise it.
    """
    return _TTL_LINE.sub(b"", head)[:-2] + b"Nats-TTL: %d\r\n\r\n" % (ns // SECOND_NS)


def _duration(ns: int) -> str:
    """Format whole seconds as Go does: 1h0m0s."""
    minutes, seconds = divmod(ns // SECOND_NS, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
