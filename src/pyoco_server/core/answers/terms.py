"""The terms by which two texts are compared: words, and pairs of characters in scripts without spaces."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

__all__ = ["Term", "terms"]

_TERM_LENGTH_MAX: Final = 64
#: Normalising is quadratic in a run of marks, so a text is normalised in slices that bound the length of such a run.
_SLICE: Final = 64
#: Normalising may expand one character to eighteen.
_GROWTH_MAX: Final = 4

_HAN: Final = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA: Final = "\u3041-\u309f"
_KATAKANA: Final = "\u30a1-\u30ff"
_HANGUL: Final = "\uac00-\ud7a3"
#: Thai, Lao, Myanmar, Khmer, with their vowels.
_SOUTH_EAST: Final = "\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u109f\u1780-\u17d3"
#: Combining marks of the scripts that use them within words.
_MARKS: Final = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u064b-\u065f\u0670\u0900-\u0903\u093a-\u094f\u0981-\u0d4d\u200c\u200d"
)

_RUN = re.compile(
    rf"(?P<han>[{_HAN}]+)|(?P<hiragana>[{_HIRAGANA}]+)|(?P<pairs>[{_KATAKANA}]+|[{_SOUTH_EAST}]+)"
    rf"|(?P<hangul>[{_HANGUL}]+)"
    rf"|(?P<word>(?:(?![{_HAN}{_HIRAGANA}{_KATAKANA}{_HANGUL}{_SOUTH_EAST}])[^\W_]['’{_MARKS}]*)+)"
)
#: English function words. (As a list they would take ninety lines.)
_FUNCTION_WORDS = frozenset(
    "a about am an and are as at be been but by can could did do does for from had has have he her him his how i if in "  # noqa: SIM905
    "into is it its may me might must my no not of on or our she should so than that the their them then there these "
    "they this those to too us was we were what when where which who whom whose why will with would you your".split()
)
#: Chinese and Japanese function and question characters: a pair with one of them is as light as the character itself.
_FUNCTION_HAN = re.compile("[的了是在吗嗎呢吧什么麼甚哪谁誰何几幾怎]")
#: Korean question words.
_QUESTION_HANGUL = frozenset({"언제", "어디", "누구", "무엇", "무슨", "얼마", "어떻", "어느"})


class Term(NamedTuple):
    text: str
    #: It says little about the subject here: a function word, a question word, or grammar, as hiragana and the endings
    #: of Korean words mostly are.
    is_light: bool


def terms(text: str) -> Iterator[Term]:
    """Yield the terms of a text in order, with repetitions. O(n); at most two per character.

    Case is folded, and full-width and half-width forms are equal. English plurals lose their ending. Chinese text
    yields each character and each pair; kana, Hangul and Thai yield pairs, because their word boundaries are unknown.
    """
    for run in _RUN.finditer(_folded(text)):
        kind, found = run.lastgroup, run[0]
        if kind == "word":
            yield Term(_stem(found[:_TERM_LENGTH_MAX]), found in _FUNCTION_WORDS)
            continue
        if kind == "han" or (len(found) == 1 and kind != "hiragana"):
            yield from (Term(character, _FUNCTION_HAN.match(character) is not None) for character in found)
        for at in range(len(found) - 1):
            pair = found[at : at + 2]
            yield Term(pair, _LIGHT_PAIR[str(kind)](pair, at))


#: By the kind of run: whether the pair at this position is light. 배송은 and 배송을 share 배송, and then differ.
_LIGHT_PAIR: Final[dict[str, Callable[[str, int], bool]]] = {
    "han": lambda pair, _: _FUNCTION_HAN.search(pair) is not None,
    "hiragana": lambda _, __: True,
    "pairs": lambda _, __: False,
    "hangul": lambda pair, at: at > 0 or pair in _QUESTION_HANGUL,
}


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    slices = (text[at : at + _SLICE] for at in range(0, len(text), _SLICE))
    folded = "".join(unicodedata.normalize("NFKC", each) for each in slices).casefold()
    return folded[: len(text) * _GROWTH_MAX]


def _stem(word: str) -> str:
    """Apply Harman's S-stemmer: it removes plurals only, and rarely errs."""
    word = word.replace("’", "'").removesuffix("'s").strip("'")
    if not word.isascii() or len(word) < 4:
        return word
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word
