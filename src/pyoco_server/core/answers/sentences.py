"""Splits text into sentences, in scripts with and without spaces. Rule-based: no model, no dictionary, O(n) for any
text."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["SENTENCE_LENGTH_MAX", "sentences"]

#: Longer sentences are cut, at a space if there is one.
SENTENCE_LENGTH_MAX: Final = 1_000

_CLOSING: Final = "\"'”’»)\\]}」』）】〉》］｝"
#: A run of marks that may end a sentence, with the closing quotes after it; or a run of line breaks.
_END = re.compile(
    rf"(?P<wide>[。！？｡।॥؟۔።։]+)(?P<shut>[{_CLOSING}]*)"
    rf"|(?P<narrow>[.!?．]+)[{_CLOSING}]*"
    r"|(?P<line>(?:\r\n?|[\n\v\f\x1c-\x1e\x85\u2028\u2029])\s*)"
)
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
#: The last word before a full stop.
_LAST_WORD = re.compile(r"[^\s\"'(\[“‘]+\Z")
#: The maximum length of the text searched for it.
_LOOK_AROUND: Final = 16
#: Abbreviations before a name, case-sensitive: in lower case, most of them are words.
_TITLES = frozenset(
    {"Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Sr", "Jr", "Mt", "Gen", "Col", "Sgt", "Capt", "Rev", "Hon"}
)
#: Abbreviations before a number.
_NUMBERED = frozenset({"no", "nos", "fig", "figs", "eq", "sec", "ch", "vol", "p", "pp", "art"})
#: Abbreviations that do not end a sentence.
_ABBREVIATIONS = frozenset({"e.g", "i.e", "cf", "ca", "approx", "viz", "vs"})
#: The initial of a name, or U.S, or a.m
_INITIALS = re.compile(r"(?:[A-Za-z]\.)*[A-Za-z]")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text in order, none of them blank, each of at most SENTENCE_LENGTH_MAX characters.

    They are unchanged except that each run of white space and control characters becomes one space, with none at the
    ends. A sentence ends at the wide marks of Asian scripts; at `.!?` before a space, unless an abbreviation, an
    initial, the number of a list item, or a lower-case letter after it shows that it continues; and at a line break,
    unless the next line begins with a lower-case letter.
    """
    found: list[str] = []
    begin = 0
    for match in _END.finditer(text):
        if _ends(text, match, begin):
            _add(found, text[begin : match.end()])
            begin = match.end()
    _add(found, text[begin:])
    return found


def _ends(text: str, match: re.Match[str], begin: int) -> bool:
    after = text[match.end() : match.end() + 1]
    if match["wide"]:
        # 「はい。」と言った。is one sentence.
        return not match["shut"] or not after or after.isspace()
    if match["line"]:
        return not after.islower() or match["line"].count("\n") > 1
    if not after:
        return True
    if match["narrow"][0] == "．":
        return not after.isdigit()
    # No space follows: 3.5, example.com, https://example.com/?a=b
    return _BLANK.fullmatch(after) is not None and not (match["narrow"] == "." and _goes_on(text, match, begin))


def _goes_on(text: str, match: re.Match[str], begin: int) -> bool:
    """Return whether the full stop belongs to the word before it."""
    following = _BLANK.sub("", text[match.end() : match.end() + _LOOK_AROUND])[:1]
    place = match.start()
    last = _LAST_WORD.search(text[max(begin, place - _LOOK_AROUND) : place])
    word = last[0] if last else ""
    folded = word.casefold()
    return (
        following.islower()
        or word in _TITLES
        or folded in _ABBREVIATIONS
        or _INITIALS.fullmatch(word) is not None
        or (folded in _NUMBERED and following.isdigit())
        # The number of a list item: nothing else precedes it.
        or (word.isdigit() and text[begin:place].strip() == word)
    )


def _add(found: list[str], piece: str) -> None:
    rest = _BLANK.sub(" ", piece).strip()
    while len(rest) > SENTENCE_LENGTH_MAX:
        # A space in the second half, so that even a text of one-letter words is cut into few pieces.
        cut = rest.rfind(" ", SENTENCE_LENGTH_MAX // 2, SENTENCE_LENGTH_MAX + 1)
        cut = cut if cut > 0 else SENTENCE_LENGTH_MAX
        found.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    if rest:
        found.append(rest)
