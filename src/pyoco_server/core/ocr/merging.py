"""The readings of several passes as one: nothing twice, nothing lost (PRICED-149)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from pyoco_server.core.ocr.page import Box, Line, Word, bounds

__all__ = ["merge", "with_gaps", "with_language"]

#: A reading that covers less than this part of the other one has left something out.
_COVERED: Final = 0.8


#: The part of both words that two readings of one word share.
_SAME_WORD: Final = 0.7
#: How much surer a reading in another language has to be.
_SURER: Final = 0.1

#: What becomes of the lines that are kept, with the lines that are not: as many, in the same order.
_Mend = Callable[[Sequence[Line], Sequence[Line]], Sequence[Line]]


def _as_they_are(kept: Sequence[Line], _: Sequence[Line]) -> Sequence[Line]:
    return kept


def merge(body: Sequence[Line], again: Sequence[Line], mend: _Mend = _as_they_are) -> list[Line]:
    """What was read of the body, and better where a second look was better. The order is that of `body`.

    Lines that stand on each other are readings of the same text: of each such heap, one side is kept, the one that the
    engine is surer of, unless it covers less. What only one side has read stays. O(n m).
    """
    heaps = _heaps(body, again)
    lines = list(body)
    kept: list[Line] = []
    for index, line in enumerate(lines):
        heap = heaps.get(index)
        if heap is None:
            kept.append(line)
        elif index == min(heap[0]):
            mine, theirs = [lines[at] for at in sorted(heap[0])], [again[at] for at in sorted(heap[1])]
            kept.extend(mend(theirs, mine) if _is_better(theirs, mine) else mend(mine, theirs))
    seen = {at for _, theirs in heaps.values() for at in theirs}
    for at, line in enumerate(again):
        if at not in seen:
            _insert(kept, line)
    return kept


def with_language(lines: Sequence[Line], other: Sequence[Line]) -> list[Line]:
    """The readings of one page in two languages as one: line by line the surer, and in it word by word. A word is
    replaced by one that stands in its very place, so none is lost. O(n m)."""
    return merge(lines, other, _mended)


def _mended(kept: Sequence[Line], other: Sequence[Line]) -> list[Line]:
    words = [word for line in other for word in line.words]
    return [replace(line, words=tuple(_surer(word, words) for word in line.words)) for line in kept]


def _surer(word: Word, others: Sequence[Word]) -> Word:
    """A word of ASCII gives way to any word that is surer; one of another script never to ASCII. A model that knows
    nothing but Latin letters sees them everywhere, and is sure of that (measured: 0.95)."""
    for other in others:
        shared = word.box.across(other.box) >= _SAME_WORD * max(word.box.width, other.box.width, 1)
        is_allowed = word.text.isascii() or not other.text.isascii()
        if shared and word.box.is_on_row_of(other.box) and is_allowed and other.confidence > word.confidence + _SURER:
            return other
    return word


def with_gaps(lines: Sequence[Line], gaps: Sequence[Box]) -> list[Line]:
    """The lines, and in its place a word without text for each box that nobody could read."""
    kept = list(lines)
    for box in gaps:
        word = Word("", 0.0, box)
        index = next((at for at, line in enumerate(kept) if _belongs(box, line)), None)
        if index is None:
            _insert(kept, Line((word,), box))
        else:
            line = kept[index]
            at = sum(other.box.left < box.left for other in line.words)
            kept[index] = Line((*line.words[:at], word, *line.words[at:]), bounds((line.box, box)))
    return kept


def _belongs(box: Box, line: Line) -> bool:
    """On the row of the line, in it or next to it. What is further off is a column or a box of its own."""
    if not box.is_on_row_of(line.box) or box.height > 2 * line.box.height:
        return False
    return max(box.left - line.box.right, line.box.left - box.right) <= 3 * line.box.height


def _heaps(body: Sequence[Line], again: Sequence[Line]) -> dict[int, tuple[set[int], set[int]]]:
    """By each line of the body that was read again: the lines of both sides that belong together."""
    heaps: dict[int, tuple[set[int], set[int]]] = {}
    for at, line in enumerate(again):
        touched = [index for index, other in enumerate(body) if _is_same_place(line.box, other.box)]
        if not touched:
            continue
        mine, theirs = set(touched), {at}
        for index in touched:
            known = heaps.get(index, (set(), set()))
            mine |= known[0]
            theirs |= known[1]
        for index in mine:
            heaps[index] = (mine, theirs)
    return heaps


def _is_same_place(box: Box, other: Box) -> bool:
    return box.is_on_row_of(other) and 2 * box.across(other) >= min(box.width, other.width)


def _is_better(new: Sequence[Line], old: Sequence[Line]) -> bool:
    if _covered(new) < _COVERED * _covered(old):
        return False
    if _covered(old) < _COVERED * _covered(new):
        return True
    return _confidence(new) > _confidence(old)


def _covered(lines: Sequence[Line]) -> int:
    """How wide the text is, all lines side by side."""
    wide = 0
    for line in lines:
        end = None
        for left, right in sorted((word.box.left, word.box.right) for word in line.words):
            wide += max(0, right - (left if end is None else max(left, end)))
            end = right if end is None else max(end, right)
    return wide


def _confidence(lines: Sequence[Line]) -> float:
    return Line(tuple(word for line in lines for word in line.words), lines[0].box).confidence


def _insert(lines: list[Line], new: Line) -> None:
    """Below the last line that stands above it, in its column if there is one; else before the first below."""
    above = [at for at, line in enumerate(lines) if line.box.middle <= new.box.middle]
    same = [at for at in above if lines[at].box.across(new.box)]
    below = [at for at, line in enumerate(lines) if line.box.across(new.box) and line.box.middle > new.box.middle]
    if same:
        lines.insert(max(same, key=lambda at: (lines[at].box.middle, at)) + 1, new)
    elif below:
        lines.insert(min(below, key=lambda at: (lines[at].box.middle, at)), new)
    else:
        lines.insert(max(above, default=-1) + 1, new)
