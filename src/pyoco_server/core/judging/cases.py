"""Metrics: whether what came is what was expected, and for how much of the cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["METRICS", "normalized", "score_text"]


def normalized(text: str) -> str:
    """Without white space at its ends, with one space for each run of it within, and without the difference of upper
    and lower case. White space is what Unicode calls so, a no-break space and an ideographic one included."""
    return " ".join(text.split()).casefold()


#: By name: whether `actual` passes for `expected`. An empty `expected` is inside everything.
METRICS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "EXACT": lambda expected, actual: expected == actual,
    "NORMALIZED": lambda expected, actual: normalized(expected) == normalized(actual),
    "CONTAINS": lambda expected, actual: expected in actual,
}


def score_text(passed: int, total: int) -> str:
    """`passed` of `total` with four decimals, rounded down: 1.0000 is all of them and nothing less. 0.0000 of none."""
    whole, rest = divmod(passed * 10_000 // max(total, 1), 10_000)
    return f"{whole}.{rest:04d}"
