"""Messages that the server publishes later: `Nats-Schedule: @at <instant>`, as nats-server 2.15 does (ADR-51 of NATS).

Recurring schedules are not offered: this product computes its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pyoco_server.ports.nats.memory.messages import SECOND_NS
from pyoco_server.ports.nats.memory.subjects import is_pattern, matcher

__all__ = ["due_ns_of", "fired_head", "replacing_head", "schedule_problem"]

_AT = re.compile(r"@at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_BAD_PATTERN = 10189, "message schedules pattern is invalid"
_BAD_TARGET = 10190, "message schedules target is invalid"
#: The fired message carries the other headers of the scheduled one.
_OWN_LINES = re.compile(rb"(?:Nats-Schedule(?:-[^:]*)?|Nats-Msg-Id|Nats-Rollup|Nats-Expected-[^:]*):[^\r]*\r\n")


def schedule_problem(subject: str, headers: Mapping[str, str], subjects: Sequence[str]) -> tuple[int, str] | None:
    """Return the code and the text with which the server refuses the schedule. None: it is valid."""
    if _AT.fullmatch(headers["Nats-Schedule"]) is None:
        return _BAD_PATTERN
    target = headers.get("Nats-Schedule-Target", "")
    is_own = any(matcher(each)(target) if is_pattern(each) else each == target for each in subjects)
    return None if target and target != subject and not is_pattern(target) and is_own else _BAD_TARGET


def due_ns_of(schedule: str) -> int:
    """Return the due time of a valid schedule, in ns."""
    found = _AT.fullmatch(schedule)
    if found is None:
        raise ValueError(schedule)
    second = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")).astimezone(UTC)
    return int(second.timestamp()) * SECOND_NS + int((found[2] or "0").ljust(9, "0"))


def replacing_head(head: bytes) -> bytes:
    """Return the headers with which a schedule is stored. Measured: the server replaces an older one by a rollup."""
    return head if b"Nats-Rollup:" in head else head[:-2] + b"Nats-Rollup: sub\r\n\r\n"


def fired_head(head: bytes, scheduler: str) -> bytes:
    """Return the headers of the message that a schedule publishes."""
    own = b"Nats-Scheduler: %s\r\nNats-Schedule-Next: purge\r\n\r\n" % scheduler.encode()
    return _OWN_LINES.sub(b"", head)[:-2] + own
