"""The known doors of a client or worker, and the delays between connection attempts (GRID-45, GRID-110, GRID-123)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyoco_server.errors import UsageError

__all__ = ["RETRY_SECONDS", "Address", "Addresses"]

#: GRID-123. The last delay repeats without limit.
RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_ADDRESSES_MAX = 64
_JUMPS_MAX, _JUMPS_SECONDS = 5, 10.0
#: SAFE-17: a shorter connection does not reset the delay; otherwise a door that accepts and closes would be called
#: without pause.
_STABLE_SECONDS = 5.0
#: SAFE-17: two workers with the same id replace each other as soon as their delays allow. Shorter connections of a
#: worker that is ordered to wait count as one series and do not reset the delay.
_SERIES_SECONDS = 60.0


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def read(cls, text: str) -> Address:
        """Parse `host:port` or `[::1]:port`. Raises UsageError."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_port = len(port) <= 5 and port.isascii() and port.isdigit() and 0 < int(port) < 65_536
        if not is_port or not 0 < len(host) <= 255 or any(each.isspace() for each in host):
            raise UsageError(f"{text[:80]!r} is not the address of a door; example: 127.0.0.1:5000")
        return cls(host, int(port))

    @classmethod
    def find(cls, text: str | None) -> Address | None:
        """Parse the address of a door that another door has sent. None: missing or invalid."""
        try:
            return cls.read(text) if text is not None else None
        except UsageError:
            return None


class Addresses:
    """The configured doors and those that doors have announced. `chance` returns 0.0 to 1.0; `clock` is monotonic.

    One round tries the last connected door, then all others, without a pause. There is a delay between two rounds, and
    also before the first one after a connection. The delay doubles up to half a minute.
    """

    def __init__(self, given: Sequence[Address], *, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._given = tuple(dict.fromkeys(given))
        self._announced: dict[Address, None] = {}
        self._at = self._given[0]
        self._clock, self._chance = clock, chance
        self._rounds = 0
        self._seconds_least = 0.0
        #: Whether the last connection ended with a door's order to wait.
        self._in_series = False
        #: When the current connection began; None after `delay` has accounted for its end.
        self._attached_at: float | None = None
        #: Whether there was a connection before.
        self.was_attached = False
        self._jumps: deque[float] = deque()

    def learn(self, doors: Iterable[str]) -> None:
        """Replace the announced doors by this list. Invalid addresses are left out; an empty result changes nothing."""
        announced: dict[Address, None] = {}
        for text in doors:
            try:
                announced[Address.read(text)] = None
            except UsageError:
                continue
            if len(announced) >= _ADDRESSES_MAX:
                break
        if announced:
            self._announced = announced

    def round(self) -> list[Address]:
        return list(dict.fromkeys([self._at, *self._announced, *self._given]))

    def delay(self) -> float:
        """Return the seconds before the next round (GRID-123, SAFE-17). Call it after the connection has ended.

        The delay grows with each call. A connection that lasted long enough resets it.
        """
        if self._attached_at is not None:
            if self._seconds_least == 0.0:
                self._in_series = False
            if self._connected_seconds() >= (_SERIES_SECONDS if self._in_series else _STABLE_SECONDS):
                self._rounds = 0
        self._attached_at = None
        base = RETRY_SECONDS[min(self._rounds, len(RETRY_SECONDS) - 1)]
        self._rounds += 1
        least, self._seconds_least = self._seconds_least, 0.0
        return max(least, base * (0.8 + 0.4 * self._chance()))

    def wait_at_least(self, seconds: float) -> bool:
        """Set the minimum of the next delay. Returns True if a series of such orders begins.

        A series begins if the previous connection ended in another way, or if this one lasted a minute.
        """
        begins = not self._in_series or self._connected_seconds() >= _SERIES_SECONDS
        self._in_series = True
        self._seconds_least = max(self._seconds_least, seconds)
        return begins

    def _connected_seconds(self) -> float:
        return 0.0 if self._attached_at is None else self._clock() - self._attached_at

    def attached(self, address: Address) -> None:
        """Record that a door has sent HelloAck."""
        self._at, self._attached_at, self.was_attached = address, self._clock(), True

    def may_jump(self) -> bool:
        """Return whether a named door may be tried immediately: five times in ten seconds (GRID-45). Counts calls."""
        now = self._clock()
        while self._jumps and now - self._jumps[0] >= _JUMPS_SECONDS:
            self._jumps.popleft()
        if len(self._jumps) >= _JUMPS_MAX:
            return False
        self._jumps.append(now)
        return True
