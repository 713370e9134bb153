"""Finds the stored batches that need not be decoded to return a page of a log."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyoco_server.core.run_log.selection import Selection

__all__ = ["Head", "Plan", "plan_of", "read_head"]

#: `encode_batch` writes these members first.
_HEAD = re.compile(rb'\{"v":1,"first":([0-9]{1,15}),"before":([0-9]{1,18}),"size":([0-9]{1,12}),')
_HEAD_BYTES = 120


class Head(NamedTuple):
    """The members of a stored batch that precede its lines."""

    first: int
    before: int
    size: int


def read_head(payload: bytes) -> Head | None:
    """Read the head without decoding the lines. Returns None if it is unreadable or of another version."""
    try:
        match = _HEAD.match(zlib.decompressobj().decompress(payload, _HEAD_BYTES))
    except zlib.error:
        return None
    return None if match is None else Head(*map(int, match.groups()))


@dataclass(frozen=True)
class Plan:
    """Which batches to decode. Batches are identified by their index in the list."""

    #: Batches without selected lines that the next batch continues without a gap, with the heads of both.
    skipped: dict[int, tuple[Head, Head]]
    #: Batches from this index on are not needed.
    end: int
    #: The last attempt is cut at `end`, so it is unknown whether its end was lost.
    is_cut: bool


def plan_of(batches: Sequence[tuple[int, bytes]], selection: Selection, tail: int | None) -> Plan:
    """`batches`: attempt and payload, by attempt and number. O(batches), a few microseconds each."""
    heads = [read_head(payload) for _, payload in batches]
    attempts = [attempt for attempt, _ in batches]
    end = len(batches)
    is_cut = False
    if selection.before is not None:
        while end and attempts[end - 1] > selection.before[0]:
            end -= 1
        # Keep one batch of the attempt: it shows that the attempt before has ended.
        while end > 1 and attempts[end - 2] == attempts[end - 1] == selection.before[0]:
            head = heads[end - 1]
            if head is None or head.first <= selection.before[1]:
                break
            end, is_cut = end - 1, True
    skipped: dict[int, tuple[Head, Head]] = {}
    start = _tail_start(attempts[:end], heads, tail) if tail is not None and selection.takes_all_lines else 0
    for at in range(end - 1):
        pair = _joined(attempts, heads, at)
        if pair is None:
            continue
        is_before = selection.after is not None and (attempts[at], pair[1].first - 1) <= selection.after
        if is_before or at < start:
            skipped[at] = pair
    return Plan(skipped, end, is_cut)


def _joined(attempts: Sequence[int], heads: Sequence[Head | None], at: int) -> tuple[Head, Head] | None:
    """Return the heads of a batch and the next one, if no lines are missing between them."""
    one, other = heads[at], heads[at + 1]
    if one is None or other is None or attempts[at] != attempts[at + 1]:
        return None
    return (one, other) if other.first > one.first and other.before == one.before + one.size else None


def _tail_start(attempts: Sequence[int], heads: Sequence[Head | None], tail: int) -> int:
    """Return the index from which on the batches before the last one have at least `tail` lines."""
    count = 0
    for at in range(len(attempts) - 2, -1, -1):
        pair = _joined(attempts, heads, at)
        count += 0 if pair is None else pair[1].first - pair[0].first
        if count >= tail:
            return at
    return 0
