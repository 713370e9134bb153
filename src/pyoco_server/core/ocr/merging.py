"""Merges the readings of several passes into one: no duplicates, no losses (PRICED-149)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from pyoco_server.core.ocr.page import Box, TextLine, TextWord, bounds

__all__ = ["merge", "with_gaps", "with_language"]

#: A reading that covers less than this share of the other one has missed something.
_COVERED: Final = 0.8


#: The share of both widths that two readings of the same word have in common.
_SAME_WORD: Final = 0.7
#: How much higher the confidence of a reading in another language must be.
_SURER: Final = 0.1

#: Adjusts the lines that are kept, given the lines that are not; returns as many lines, in the same order.
_Adjust = Callable[[Sequence[TextLine], Sequence[TextLine]], Sequence[TextLine]]


def _as_they_are(kept: Sequence[TextLine], _: Sequence[TextLine]) -> Sequence[TextLine]:
    return kept


def merge(body: Sequence[TextLine], again: Sequence[TextLine], adjust: _Adjust = _as_they_are) -> list[TextLine]:
    """Merge two readings, taking the second one where it is better. The order is that of `body`.

    Lines that overlap are readings of the same text. Of each group of overlapping lines, one side is kept: the one with
    the higher confidence, unless it covers less. Lines without counterpart are kept. O(n m).
    """
    groups = _overlaps(body, again)
    lines = list(body)
    kept: list[TextLine] = []
    for index, line in enumerate(lines):
        group = groups.get(index)
        if group is None:
            kept.append(line)
        elif index == min(group[0]):
            first, second = [lines[at] for at in sorted(group[0])], [again[at] for at in sorted(group[1])]
            kept.extend(adjust(second, first) if _is_better(second, first) else adjust(first, second))
    seen = {at for _, second in groups.values() for at in second}
    for at, line in enumerate(again):
        if at not in seen:
            _insert(kept, line)
    return kept


def with_language(lines: Sequence[TextLine], other: Sequence[TextLine]) -> list[TextLine]:
    """Merge the readings of one page in two languages: line by line the one with the higher confidence, then word by
    word.

    A word is only replaced by a word in the same place, so none is lost. O(n m).
    """
    return merge(lines, other, _merge_words)


def _merge_words(kept: Sequence[TextLine], other: Sequence[TextLine]) -> list[TextLine]:
    words = [word for line in other for word in line.words]
    return [replace(line, words=tuple(_surer(word, words) for word in line.words)) for line in kept]


def _surer(word: TextWord, others: Sequence[TextWord]) -> TextWord:
    """Return the reading with the higher confidence. An ASCII word may be replaced by any word, a word in another
    script never by ASCII: a model that knows only Latin letters sees them everywhere, with high confidence (measured:
    0.95)."""
    for other in others:
        shared = word.box.across(other.box) >= _SAME_WORD * max(word.box.width, other.box.width, 1)
        is_allowed = word.text.isascii() or not other.text.isascii()
        if shared and word.box.is_on_row_of(other.box) and is_allowed and other.confidence > word.confidence + _SURER:
            return other
    return word


def with_gaps(lines: Sequence[TextLine], gaps: Sequence[Box]) -> list[TextLine]:
    """Return the lines, with a word without text inserted for each box that could not be read."""
    kept = list(lines)
    for box in gaps:
        word = TextWord("", 0.0, box)
        index = next((at for at, line in enumerate(kept) if _belongs(box, line)), None)
        if index is None:
            _insert(kept, TextLine((word,), box))
        else:
            line = kept[index]
            at = sum(other.box.left < box.left for other in line.words)
            kept[index] = TextLine((*line.words[:at], word, *line.words[at:]), bounds((line.box, box)))
    return kept


def _belongs(box: Box, line: TextLine) -> bool:
    """Return whether the box is on the row of the line, inside or next to it. A box further away is a column of its
    own."""
    if not box.is_on_row_of(line.box) or box.height > 2 * line.box.height:
        return False
    return max(box.left - line.box.right, line.box.left - box.right) <= 3 * line.box.height


def _overlaps(body: Sequence[TextLine], again: Sequence[TextLine]) -> dict[int, tuple[set[int], set[int]]]:
    """Return, for each line of the body that was read again, the group of lines of both sides that overlap."""
    groups: dict[int, tuple[set[int], set[int]]] = {}
    for at, line in enumerate(again):
        touched = [index for index, other in enumerate(body) if _is_same_place(line.box, other.box)]
        if not touched:
            continue
        first, second = set(touched), {at}
        for index in touched:
            known = groups.get(index, (set(), set()))
            first |= known[0]
            second |= known[1]
        for index in first:
            groups[index] = (first, second)
    return groups


def _is_same_place(box: Box, other: Box) -> bool:
    return box.is_on_row_of(other) and 2 * box.across(other) >= min(box.width, other.width)


def _is_better(new: Sequence[TextLine], old: Sequence[TextLine]) -> bool:
    if _covered(new) < _COVERED * _covered(old):
        return False
    if _covered(old) < _COVERED * _covered(new):
        return True
    return _confidence(new) > _confidence(old)


def _covered(lines: Sequence[TextLine]) -> int:
    """Return the total width of the text."""
    wide = 0
    for line in lines:
        end = None
        for left, right in sorted((word.box.left, word.box.right) for word in line.words):
            wide += max(0, right - (left if end is None else max(left, end)))
            end = right if end is None else max(end, right)
    return wide


def _confidence(lines: Sequence[TextLine]) -> float:
    return TextLine(tuple(word for line in lines for word in line.words), lines[0].box).confidence


def _insert(lines: list[TextLine], new: TextLine) -> None:
    """Insert the line below the last line above it, in its column if there is one; otherwise before the first line
    below."""
    above = [at for at, line in enumerate(lines) if line.box.middle <= new.box.middle]
    same = [at for at in above if lines[at].box.across(new.box)]
    below = [at for at, line in enumerate(lines) if line.box.across(new.box) and line.box.middle > new.box.middle]
    if same:
        lines.insert(max(same, key=lambda at: (lines[at].box.middle, at)) + 1, new)
    elif below:
        lines.insert(min(below, key=lambda at: (lines[at].box.middle, at)), new)
    else:
        lines.insert(max(above, default=-1) + 1, new)
