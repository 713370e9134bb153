"""Metrics: whether actual values match the expected ones, and the share of cases that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["METRICS", "normalized", "score_text"]


def normalized(text: str) -> str:
    """Return the text without surrounding white space, with each inner run of it as one space, in folded case.

    White space is what Unicode defines as such, including no-break and ideographic spaces.
    """
    return " ".join(text.split()).casefold()


#: By name: whether `actual` matches `expected`. An empty `expected` is contained in everything.
METRICS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "EXACT": lambda expected, actual: expected == actual,
    "NORMALIZED": lambda expected, actual: normalized(expected) == normalized(actual),
    "CONTAINS": lambda expected, actual: expected in actual,
}


def score_text(passed: int, total: int) -> str:
    """Return `passed` of `total` with four decimals, rounded down: 1.0000 means all. 0.0000 if `total` is 0."""
    integer_part, rest = divmod(passed * 10_000 // max(total, 1), 10_000)
    return f"{integer_part}.{rest:04d}"
