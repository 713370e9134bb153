"""Tracks how long a delivery is held."""

from __future__ import annotations

import time

__all__ = ["Hold"]


class Hold:
    """The visibility timeout of one delivery, tracked locally, because neither queue fences a late answer.

    In JetStream, a stale ack takes the message away from its new owner, and a stale nack delivers it to a third worker
    (PRICED-202, PRICED-206). So after the timeout nothing must be sent. The local timeout ends later than that of the
    queue, by the time the message was in transit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends_at = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends_at

    def begin_anew(self) -> None:
        self._ends_at = time.monotonic() + self._seconds

    def end(self) -> None:
        """Mark the delivery as answered; nothing more may be sent for it."""
        self._ends_at = time.monotonic()
