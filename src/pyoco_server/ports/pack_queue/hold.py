"""How long a message is in our hands."""

from __future__ import annotations

import time

__all__ = ["Hold"]


class Hold:
    """The visibility time of one delivery, counted here: neither queue fences a late answer.

    The stale ack of JetStream takes the message out of the hands of its new owner, and its nack gives it to a third
    (PRICED-202, PRICED-206). So whoever's time is over says nothing. Ours ends later than the queue's by as long as
    the message was on its way.
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
        """It has been answered; nothing more is to be said of this delivery."""
        self._ends_at = time.monotonic()
