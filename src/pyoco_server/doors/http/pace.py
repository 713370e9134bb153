"""How fast a request body has to arrive (SAFE-11)."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

__all__ = ["BodyPace"]

#: In every span of so many seconds at least so many bytes have to arrive: 1 KiB/s on average.
_SPAN_SECONDS: Final = 30.0
_SPAN_BYTES: Final = 30 * 1024
#: The whole body has to arrive within so many seconds, plus one second for each so many bytes.
_WHOLE_SECONDS: Final = 600.0
_BYTES_PER_SECOND: Final = 1024 * 1024
#: Arrivals are counted by slots of this length. It bounds memory: one span has at most 120 of them.
_SLOT_SECONDS: Final = 0.25


class BodyPace:
    """Computes the deadlines of one body. It has no clock: the caller says how long it has waited for the client.

    Only time spent waiting counts. While the gateway handles a piece, it does not read, and the client cannot send.
    """

    def __init__(self, bytes_declared: int = 0) -> None:
        """`bytes_declared` is the `Content-Length`, already checked against the limit; 0: unknown."""
        self._bytes_declared = bytes_declared
        self._size = 0
        self._waited = 0.0
        #: The newest arrivals as [end of slot, bytes], as few as make up `_SPAN_BYTES`, and their sum.
        self._slots: deque[list[float]] = deque()
        self._recent = 0.0

    @property
    def seconds_left(self) -> float:
        """How much longer to wait if nothing arrives. Never negative."""
        whole = _WHOLE_SECONDS + max(self._bytes_declared, self._size) / _BYTES_PER_SECOND
        # The oldest slot is the one whose leaving makes the span fall below the minimum.
        oldest = self._slots[0][0] if self._recent >= _SPAN_BYTES else 0.0
        return max(0.0, min(whole, oldest + _SPAN_SECONDS) - self._waited)

    def arrived(self, size: int, seconds: float) -> None:
        """`size` bytes arrived after another `seconds` of waiting. Amortized O(1)."""
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
