"""Rules that a text keeps or breaks. They are literal: no rule is a pattern, so no rule can be slow."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_LENGTH", "MUST_CONTAIN", "MUST_NOT_CONTAIN", "Finding", "Rule", "judge"]

MUST_CONTAIN: Final = "MUST_CONTAIN"
MUST_NOT_CONTAIN: Final = "MUST_NOT_CONTAIN"
MAX_LENGTH: Final = "MAX_LENGTH"


@dataclass(frozen=True, kw_only=True)
class Rule:
    id: str
    kind: str
    #: A text that is not empty; with MAX_LENGTH a number of characters.
    value: str | int
    is_case_sensitive: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one rule found. Nothing of the text is in it."""

    rule_id: str
    has_passed: bool
    #: How often the value is in the text; with MAX_LENGTH, how many characters the text has.
    count: int
    #: Of the first of them, in characters of the text as it was sent; with MAX_LENGTH, of the first one too many.
    first_offset: int | None


def judge(text: str, rules: Sequence[Rule]) -> tuple[Finding, ...]:
    """One finding per rule, in their order. O(n) per rule."""
    exact, folded = _Exact(text), _Folded(text)
    return tuple(_judged(rule, exact if rule.is_case_sensitive else folded) for rule in rules)


def _judged(rule: Rule, text: _Exact) -> Finding:
    if isinstance(rule.value, int):
        has_passed = text.length <= rule.value
        return Finding(
            rule_id=rule.id,
            has_passed=has_passed,
            count=text.length,
            first_offset=None if has_passed else rule.value,
        )
    count, first_offset = text.find(rule.value)
    has_passed = (count > 0) == (rule.kind == MUST_CONTAIN)
    return Finding(rule_id=rule.id, has_passed=has_passed, count=count, first_offset=first_offset)


class _Exact:
    """A text that is searched as it is."""

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self._searched = text

    def find(self, value: str) -> tuple[int, int | None]:
        """How often it is there, none over another, and where first."""
        wanted = self._fold(value)
        first = self._searched.find(wanted)
        return (0, None) if first < 0 else (self._searched.count(wanted), self._offset(first))

    def _fold(self, text: str) -> str:
        return text

    def _offset(self, place: int) -> int:
        return place


class _Folded(_Exact):
    """A text in which upper and lower case are one, as Unicode says: `STRASSE`, `Straße` and `strasse` are the same.

    What is found therefore does not depend on how the text is written; so `s` is in `ß`, twice, as in `SS`. Folding
    makes some characters longer and none shorter: places are counted back to the text that was sent.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text
        self._searched = text.casefold()
        #: Where in the folded text each character ends; made when it is needed.
        self._ends: list[int] = []

    def _fold(self, text: str) -> str:
        return text.casefold()

    def _offset(self, place: int) -> int:
        if len(self._searched) == self.length:
            return place
        if not self._ends:
            self._ends = list(itertools.accumulate(len(character.casefold()) for character in self._text))
        return bisect.bisect_right(self._ends, place)
