"""Rules that a text satisfies or violates. They are literal: no rule is a pattern, so no rule can be slow."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_LENGTH", "MUST_CONTAIN", "MUST_NOT_CONTAIN", "Rule", "RuleFinding", "judge"]

MUST_CONTAIN: Final = "MUST_CONTAIN"
MUST_NOT_CONTAIN: Final = "MUST_NOT_CONTAIN"
MAX_LENGTH: Final = "MAX_LENGTH"


@dataclass(frozen=True, kw_only=True)
class Rule:
    id: str
    kind: str
    #: A non-empty text; with MAX_LENGTH a number of characters.
    value: str | int
    is_case_sensitive: bool = False


@dataclass(frozen=True, kw_only=True)
class RuleFinding:
    """The result of one rule. Contains nothing of the text."""

    rule_id: str
    has_passed: bool
    #: The number of occurrences; with MAX_LENGTH, the length of the text in characters.
    count: int
    #: The first occurrence, in characters of the text as sent; with MAX_LENGTH, the first character beyond the limit.
    first_offset: int | None


def judge(text: str, rules: Sequence[Rule]) -> tuple[RuleFinding, ...]:
    """Return one finding per rule, in order. O(n) per rule."""
    exact, folded = _Exact(text), _Folded(text)
    return tuple(_judged(rule, exact if rule.is_case_sensitive else folded) for rule in rules)


def _judged(rule: Rule, text: _Exact) -> RuleFinding:
    if isinstance(rule.value, int):
        has_passed = text.length <= rule.value
        return RuleFinding(
            rule_id=rule.id,
            has_passed=has_passed,
            count=text.length,
            first_offset=None if has_passed else rule.value,
        )
    count, first_offset = text.find(rule.value)
    has_passed = (count > 0) == (rule.kind == MUST_CONTAIN)
    return RuleFinding(rule_id=rule.id, has_passed=has_passed, count=count, first_offset=first_offset)


class _Exact:
    """A text for case-sensitive search."""

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self._searched = text

    def find(self, value: str) -> tuple[int, int | None]:
        """Return the number of non-overlapping occurrences, and the offset of the first."""
        wanted = self._fold(value)
        first = self._searched.find(wanted)
        return (0, None) if first < 0 else (self._searched.count(wanted), self._offset(first))

    def _fold(self, text: str) -> str:
        return text

    def _offset(self, place: int) -> int:
        return place


class _Folded(_Exact):
    """A text for case-insensitive search by Unicode case folding: `STRASSE`, `Straße` and `strasse` are equal.

    The result therefore does not depend on the spelling; so `s` is in `ß`, twice, as in `SS`. Folding lengthens some
    characters and shortens none: offsets are mapped back to the text as sent.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text
        self._searched = text.casefold()
        #: For each character, its end in the folded text; computed on demand.
        self._ends: list[int] = []

    def _fold(self, text: str) -> str:
        return text.casefold()

    def _offset(self, place: int) -> int:
        if len(self._searched) == self.length:
            return place
        if not self._ends:
            self._ends = list(itertools.accumulate(len(character.casefold()) for character in self._text))
        return bisect.bisect_right(self._ends, place)
