"""Minimum rate at which a request body must arrive (SAFE-11)."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

__all__ = ["BodyPace"]

#: Within every span of this many seconds at least this many bytes must arrive: 1 KiB/s on average.
_SPAN_SECONDS: Final = 30.0
_SPAN_BYTES: Final = 30 * 1024
#: Limit for the complete body: this many seconds, plus one second per this many bytes.
_WHOLE_SECONDS: Final = 600.0
_BYTES_PER_SECOND: Final = 1024 * 1024
#: Arrivals are counted in slots of this length. This bounds memory: one span has at most 120 slots.
_SLOT_SECONDS: Final = 0.25


class BodyPace:
    """Computes the deadlines of one body. It has no clock: the caller passes the time spent waiting for the client.

    Only that time counts. While the gateway handles a chunk it does not read, so the client cannot send.
    """

    def __init__(self, bytes_declared: int = 0) -> None:
        """`bytes_declared` is the `Content-Length`, already checked against the limit; 0 if unknown."""
        self._bytes_declared = bytes_declared
        self._size = 0
        self._waited = 0.0
        #: The newest arrivals as [end of slot, bytes], the fewest that make up `_SPAN_BYTES`, and their sum.
        self._slots: deque[list[float]] = deque()
        self._recent = 0.0

    @property
    def seconds_left(self) -> float:
        """Return how much longer to wait if nothing arrives. Never negative."""
        total = _WHOLE_SECONDS + max(self._bytes_declared, self._size) / _BYTES_PER_SECOND
        # When the oldest slot leaves the span, the span falls below the minimum.
        oldest = self._slots[0][0] if self._recent >= _SPAN_BYTES else 0.0
        return max(0.0, min(total, oldest + _SPAN_SECONDS) - self._waited)

    def arrived(self, size: int, seconds: float) -> None:
        """Count `size` bytes that arrived after another `seconds` of waiting. Amortized O(1)."""
        self._waited += seconds
        self._size += size
        end = math.ceil(self._waited / _SLOT_SECONDS) * _SLOT_SECONDS
        if self._slots and self._slots[-1][0] == end:
            self._slots[-1][1] += size
        else:
            self._slots.append([end, size])
        self._recent += size
        while self._recent - self._slots[0][1] >= _SPAN_BYTES:
            self._recent -= self._slots.popleft()[1]
