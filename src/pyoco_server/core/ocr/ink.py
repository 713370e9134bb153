"""Analysis of a coarse bitmap of a page: text lines, gaps, and areas that no reading covers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from pyoco_server.core.ocr.page import Box, Ink, TextLine

__all__ = ["bands", "gaps", "row_of", "runs", "unread", "without_rules"]

_RUN = re.compile("1+")
#: A ruled line spans at least this fraction of the page, is at least this many squares long (longer than the stem of a
#: letter), and at most this many squares thick.
_RULE_PART: Final = 6
_RULE_LENGTH_MIN: Final = 48
_RULE_THICKNESS_MAX: Final = 3
#: Above this, a page is covered in specks, which are not marked one by one.
_UNREAD_MAX: Final = 200


def runs(row: int, across: int) -> list[tuple[int, int]]:
    """Return the start and end of each run of ones in a row, from the left. O(across)."""
    return [found.span() for found in _RUN.finditer(f"{row:0{across}b}")] if row else []


def gaps(row: int, across: int) -> list[tuple[int, int]]:
    """Return the empty spans between the first and the last run of a row."""
    found = runs(row, across)
    return [(left[1], right[0]) for left, right in itertools.pairwise(found)]


def bands(rows: Sequence[int], first: int = 0) -> list[tuple[int, int]]:
    """Return the start and end of each uninterrupted sequence of non-empty rows; counted from `first`."""
    found, start = [], None
    for index, row in enumerate(itertools.chain(rows, (0,))):
        if row and start is None:
            start = index
        elif not row and start is not None:
            found.append((first + start, first + index))
            start = None
    return found


def row_of(rows: Iterable[int]) -> int:
    """Return the union of the rows."""
    union = 0
    for row in rows:
        union |= row
    return union


def without_rules(ink: Ink) -> Ink:
    """Return the ink without frames, underlines and isolated specks, which connect separate lines of text. O(n log
    n)."""
    long_across, long_down = (max(_RULE_LENGTH_MIN, n // _RULE_PART) for n in (ink.across, len(ink.rows)))
    flat = [_opened_across(row, long_across) for row in ink.rows]
    upright = _opened_down(ink.rows, long_down)
    # Thick shapes are not ruled lines but bars or pictures. They are kept, because removing them could lose text.
    thick_flat = _opened_down(flat, _RULE_THICKNESS_MAX + 1)
    thick_upright = [_opened_across(row, _RULE_THICKNESS_MAX + 1) for row in upright]
    left = [
        row & ~((one & ~thick_one) | (other & ~thick_other))
        for row, one, thick_one, other, thick_other in zip(
            ink.rows, flat, thick_flat, upright, thick_upright, strict=True
        )
    ]
    return Ink(ink.across, ink.cell, tuple(_without_specks(left)))


def _opened_across(row: int, length: int) -> int:
    """Return the runs of a row that have at least `length`."""
    if length < 2 or not row:
        return row
    ends, have = row, 1
    while have < length and ends:  # a bit is kept if `have` ones start there, towards the left
        step = min(have, length - have)
        ends &= ends >> step
        have += step
    have = 1
    while have < length:
        step = min(have, length - have)
        ends |= ends << step
        have += step
    return ends


def _opened_down(rows: Sequence[int], length: int) -> list[int]:
    """Return the runs of each column that have at least `length`."""
    if length < 2:
        return list(rows)
    ends, have = list(rows), 1
    while have < length:
        step = min(have, length - have)
        ends = [row & (ends[index - step] if index >= step else 0) for index, row in enumerate(ends)]
        have += step
    have = 1
    while have < length:
        step = min(have, length - have)
        count = len(ends)
        ends = [row | (ends[index + step] if index + step < count else 0) for index, row in enumerate(ends)]
        have += step
    return ends


def _without_specks(rows: Sequence[int]) -> list[int]:
    """Remove squares without neighbours: dust."""
    padded = (0, *rows, 0)
    return [
        row & ((above | below) | (above | below | row) << 1 | (above | below | row) >> 1)
        for above, row, below in zip(padded[:-2], rows, padded[2:], strict=True)
    ]


def unread(ink: Ink, lines: Sequence[TextLine], line_height: int) -> list[Box]:
    """Return areas with ink as large as a letter that no line covers (PRICED-149). O(n) squares.

    Within a line, a gap counts only if two letters would fit in: the boxes of words are not exact.
    """
    rows = list(ink.rows)
    for line in lines:
        cover = 0
        for left, right in _covered(line):
            cover |= _span(max(0, left // ink.cell - 1), min(ink.across, -(-right // ink.cell) + 1), ink.across)
        # Letters may extend a little beyond the box of their line: accents, commas, the tail of a g.
        reach = line.box.height // 4
        top, bottom = max(0, line.box.top - reach) // ink.cell, -(-(line.box.bottom + reach) // ink.cell)
        for index in range(top, min(bottom, len(rows))):
            rows[index] &= ~cover
    least = max(2, line_height // (2 * ink.cell))
    found: list[Box] = []
    for top, bottom in bands(rows):
        if bottom - top < least:
            continue
        row = row_of(rows[top:bottom])
        for left, right in _joined(runs(row, ink.across), 2 * least):
            piece = [part & _span(left, right, ink.across) for part in rows[top:bottom]]
            inner = bands(piece, top)
            upper, lower = inner[0][0], inner[-1][1]
            if right - left >= least and lower - upper >= least and len(found) < _UNREAD_MAX:
                cell = ink.cell
                found.append(Box(left * cell, upper * cell, right * cell, lower * cell))
    return found


def _covered(line: TextLine) -> list[tuple[int, int]]:
    """Return the spans covered by the words of a line, in pixels; gaps of less than two letters count as covered."""
    edges = sorted((word.box.left, word.box.right) for word in line.words)
    return _joined(edges, 2 * line.box.height)


def _joined(spans: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for left, right in spans:
        if joined and left - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(right, joined[-1][1]))
        else:
            joined.append((left, right))
    return joined


def _span(left: int, right: int, across: int) -> int:
    """Return a row with ones from square `left` up to `right`."""
    return ((1 << max(0, right - left)) - 1) << (across - right) if right > left else 0
