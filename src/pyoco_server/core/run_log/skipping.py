"""Finds the stored batches that need not be decoded to return a page of a log."""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import NamedTuple

from pyoco_server.core.run_log.batch import decode_batch, unpacked
from pyoco_server.core.run_log.line import LEVELS
from pyoco_server.core.run_log.selection import NO_TASK, Selection
from pyoco_server.errors import Corrupt

__all__ = ["Head", "Plan", "may_match", "plan_of", "read_head"]

#: `encode_batch` writes these members first.
_HEAD = re.compile(rb'\{"v":1,"first":([0-9]{1,15}),"before":([0-9]{1,18}),"size":([0-9]{1,12}),')
_HEAD_BYTES = 120
#: No line that only has a stream counts as one of these (LOG-14).
_LEVELS_OF_RECORDS = ("ERROR", "CRITICAL")
#: Batches that are decoded in any case to find the begin of a page of last lines.
_TRIED_MIN = 16
#: What an encoder may, but need not escape: all must escape control characters.
_FREE_ESCAPE = re.compile(rb"\\(?:/|u(?!00[01]))")


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


def may_match(payload: bytes, selection: Selection) -> bool:
    """Return False if certainly no line of a stored batch is selected, because of its task, level or text.

    Takes a thirtieth of the time of decoding it: its JSON is searched as a whole.
    """
    required = _required(selection)
    if not required:
        return True
    try:
        document = unpacked(payload)
        if _FREE_ESCAPE.search(document):  # of another program
            return True
        text = document.decode().casefold()
    except (Corrupt, ValueError):
        return True
    return all(any(each in text for each in ways) for ways in required)


def _required(selection: Selection) -> list[list[str]]:
    """Return what the JSON of a selected line contains, in lower case: at least one text of each list.

    Nothing that is not printable: programs differ in how they escape that.
    """
    found: list[list[str]] = []
    if selection.tasks and NO_TASK not in selection.tasks and all(map(str.isprintable, selection.tasks)):
        found.append([encode_basestring(task) for task in selection.tasks])
    if selection.level in _LEVELS_OF_RECORDS:
        found.append([f'"{level}"' for level in LEVELS[LEVELS.index(selection.level) :]])
    if selection.search is not None and selection.search.isprintable():
        found.append([encode_basestring(selection.search)[1:-1]])
    return [[text.casefold() for text in ways] for ways in found]


@dataclass(frozen=True)
class Plan:
    """Which batches to decode. Batches are identified by their index in the list."""

    #: Batches that the next batch continues without a gap, with the heads of both.
    joined: dict[int, tuple[Head, Head]]
    #: Those of them that have no selected lines.
    skipped: frozenset[int]
    #: Batches from this index on are not needed.
    end: int
    #: The last attempt is cut at `end`, so it is unknown whether its end was lost.
    is_cut: bool


def plan_of(batches: Sequence[tuple[int, bytes]], selection: Selection, tail: int | None) -> Plan:
    """`batches`: attempt and payload, by attempt and number. O(batches), a few microseconds each; with `tail` and a
    filter by content, up to a quarter of them is decoded."""
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
    joined = {at: pair for at in range(end - 1) if (pair := _joined(attempts, heads, at)) is not None}
    start = 0
    if tail is not None and selection.takes_all_lines:
        start = _tail_start(attempts[:end], heads, tail)
    elif tail is not None:
        start = _matching_start(batches, joined, selection, tail)
    after = selection.after
    skipped = frozenset(
        at
        for at, (_, following) in joined.items()
        if at < start or (after is not None and (attempts[at], following.first - 1) <= after)
    )
    return Plan(joined, skipped, end, is_cut)


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


def _matching_start(
    batches: Sequence[tuple[int, bytes]], joined: dict[int, tuple[Head, Head]], selection: Selection, tail: int
) -> int:
    """Return an index from which on the batches before the last one have at least `tail` selected lines. 0 if there are
    fewer, and if it is not found within a quarter of the batches: all are decoded then."""
    count, left = 0, len(batches) // 4 + _TRIED_MIN
    for at in reversed(joined):
        attempt, payload = batches[at]
        if not may_match(payload, selection):
            continue
        if not left:
            return 0
        left -= 1
        with contextlib.suppress(Corrupt):
            count += sum(map(selection.has, decode_batch(payload).lines(attempt)))
        if count >= tail:
            return at
    return 0
