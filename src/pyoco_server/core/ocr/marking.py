"""The recognised text, with doubtful and unreadable words marked as such (PRICED-149)."""

from __future__ import annotations

import re
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.ocr.page import TextLine, TextWord
from pyoco_server.core.ocr.profiles import OcrProfile

__all__ = ["DOUBTFUL", "UNREADABLE", "Block", "blocks_of", "mean_confidence", "readings_to_verify"]

UNREADABLE: Final = "[□]"
DOUBTFUL: Final = "(?)"
_DIGITS: Final = 4

#: Scripts written without spaces, and the one in which tesseract reports spaces between syllables.
_UNSPACED = re.compile(r"[\u2e80-\u30ff\u31f0-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_HANGUL = re.compile(r"[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]")


@dataclass(frozen=True)
class Block:
    """A paragraph or a heading: lines that belong together."""

    text: str
    confidence: float
    is_title: bool = False


def blocks_of(lines: Sequence[TextLine], profile: OcrProfile) -> list[Block]:
    """Return the lines in order, grouped in blocks. Every word appears, or a mark in its place."""
    usual = statistics.median(line.box.height for line in lines) if lines else 0
    blocks: list[list[TextLine]] = []
    for line in lines:
        if blocks and _continues(blocks[-1][-1], line):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return [
        Block(
            text="\n".join(_written(line, profile) for line in block),
            confidence=_rounded(
                TextLine(tuple(word for line in block for word in line.words), block[0].box).confidence
            ),
            is_title=len(blocks) > 1 and block[0].box.height >= 1.4 * usual,
        )
        for block in blocks
    ]


def _continues(last: TextLine, line: TextLine) -> bool:
    """Return whether the line continues the last one: close below it, of similar height, and not side by side."""
    heights = sorted((last.box.height, line.box.height))
    gap = line.box.top - last.box.bottom
    is_near = -0.6 * heights[0] <= gap <= 1.1 * heights[1]
    return is_near and heights[1] <= 1.6 * heights[0] and line.box.across(last.box) > 0


def _written(line: TextLine, profile: OcrProfile) -> str:
    """Return the text of a line, with one mark for adjacent words of the same kind, instead of one per word."""
    pieces: list[str] = []
    for index, word in enumerate(line.words):
        kind = _kind(word, profile)
        before = _kind(line.words[index - 1], profile) if index else None
        is_unreadable = kind == UNREADABLE
        if is_unreadable and before == UNREADABLE:
            continue
        space = " " if index and _is_apart(line.words[index - 1], word, line.box.height) else ""
        if kind == before == DOUBTFUL and not space:
            pieces.pop()  # if pieces form one word, only the last one is marked
        pieces.append(space + (UNREADABLE if is_unreadable else word.text))
        if kind == DOUBTFUL:
            pieces.append(DOUBTFUL)
    return "".join(pieces)


def _kind(word: TextWord, profile: OcrProfile) -> str:
    if not word.text or word.confidence < profile.unreadable_below:
        return UNREADABLE
    return DOUBTFUL if word.confidence < profile.doubtful_below else ""


def _is_apart(left: TextWord, right: TextWord, height: int) -> bool:
    """Return whether a space separates the two. Where only their boxes can tell, those are not exact."""
    if not left.text or not right.text:
        return True
    edges = left.text[-1] + right.text[0]
    gap = right.box.left - left.box.right
    if _UNSPACED.search(edges):
        return gap > 1.5 * height
    return gap > 0.3 * height if _HANGUL.search(edges) else True


def readings_to_verify(lines: Sequence[TextLine], profile: OcrProfile) -> list[str]:
    """Return the doubtful readings as they are written, without marks, in order."""
    found: list[str] = []
    for line in lines:
        last: TextWord | None = None
        for word in line.words:
            if _kind(word, profile) == DOUBTFUL:
                if last is not None and not _is_apart(last, word, line.box.height):
                    found[-1] += word.text
                else:
                    found.append(word.text)
                last = word
            else:
                last = None
    return [text for text in found if any(unicodedata.category(letter)[0] in "LN" for letter in text)]


def mean_confidence(lines: Sequence[TextLine]) -> float | None:
    """Return the mean over all words, including unreadable ones. None: there are no words."""
    words = [word.confidence for line in lines for word in line.words]
    return _rounded(statistics.fmean(words)) if words else None


def _rounded(share: float) -> float:
    return round(min(1.0, max(0.0, share)), _DIGITS)
