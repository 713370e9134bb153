"""The time that most jobs stay within."""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["p95"]


def p95(seconds: Iterable[float]) -> float | None:
    """The 95th percentile by nearest rank: a value that was there. None: there is none. O(n log n)."""
    ordered = sorted(seconds)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else None
