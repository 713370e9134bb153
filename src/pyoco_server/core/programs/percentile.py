"""The 95th percentile of durations."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["p95"]


def p95(seconds: Iterable[float]) -> float | None:
    """Return the 95th percentile by nearest rank, always one of the values. None if there are no values. O(n log n)."""
    ordered = sorted(seconds)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None
