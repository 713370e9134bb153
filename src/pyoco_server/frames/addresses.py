"""Which doors a client or worker knows, and how soon it tries them again (GRID-45, GRID-110, GRID-123)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyoco_server.errors import UsageError

__all__ = ["RETRY_SECONDS", "Address", "Addresses"]

#: GRID-123. The last one goes on for ever.
RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
_ADDRESSES_MAX = 64
_JUMPS_MAX, _JUMPS_SECONDS = 5, 10.0
#: SAFE-17: a shorter connection does not reset the delay; a door that accepts and closes would be called without pause.
_STABLE_SECONDS = 5.0
#: SAFE-17: two workers of one id replace each other as soon as their delays allow. Shorter connections of a worker that
#: is told to wait are one series: they do not reset the delay.
_SERIES_SECONDS = 60.0


@dataclass(frozen=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def read(cls, text: str) -> Address:
        """`host:port`, `[::1]:port`. Raises UsageError."""
        host, _, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        is_port = len(port) <= 5 and port.isascii() and port.isdigit() and 0 < int(port) < 65_536
        if not is_port or not 0 < len(host) <= 255 or any(each.isspace() for each in host):
            raise UsageError(f"{text[:80]!r} is not the address of a door; example: 127.0.0.1:5000")
        return cls(host, int(port))

    @classmethod
    def find(cls, text: str | None) -> Address | None:
        """What a door names as another one; None when it names none, or something that is none."""
        try:
            return cls.read(text) if text is not None else None
        except UsageError:
            return None


class Addresses:
    """Those from the command line, and those that doors have named. `chance` gives 0.0 to 1.0, `clock` never goes back.

    One round tries the door it was at, then each other one, without a pause. There is a delay between two rounds, and
    after a connection also before the first one. The delay doubles up to half a minute.
    """

    def __init__(self, given: Sequence[Address], *, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self._given = tuple(dict.fromkeys(given))
        self._told: dict[Address, None] = {}
        self._at = self._given[0]
        self._clock, self._chance = clock, chance
        self._rounds = 0
        self._seconds_least = 0.0
        #: Whether the last connection ended with a door's order to wait.
        self._in_series = False
        #: When the current connection began; None once its end was seen by `delay`.
        self._attached_at: float | None = None
        #: Whether there was a connection before.
        self.was_attached = False
        self._jumps: deque[float] = deque()

    def learn(self, doors: Iterable[str]) -> None:
        """What a door says of the doors of its group; it forgets what was said before. Bad ones are left out."""
        told: dict[Address, None] = {}
        for text in doors:
            try:
                told[Address.read(text)] = None
            except UsageError:
                continue
            if len(told) >= _ADDRESSES_MAX:
                break
        if told:
            self._told = told

    def round(self) -> list[Address]:
        return list(dict.fromkeys([self._at, *self._told, *self._given]))

    def delay(self) -> float:
        """GRID-123, SAFE-17: seconds before the next round. It grows with each call, and is reset by a connection that
        lasted. Call it when the connection has ended."""
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
        """The next delay is no shorter than this. True if a series of such orders begins: the connection before ended
        in another way, or this one lasted a minute."""
        begins = not self._in_series or self._connected_seconds() >= _SERIES_SECONDS
        self._in_series = True
        self._seconds_least = max(self._seconds_least, seconds)
        return begins

    def _connected_seconds(self) -> float:
        return 0.0 if self._attached_at is None else self._clock() - self._attached_at

    def attached(self, address: Address) -> None:
        """A door said HelloAck."""
        self._at, self._attached_at, self.was_attached = address, self._clock(), True

    def may_jump(self) -> bool:
        """GRID-45: whether a door that was named may be tried at once; five times in ten seconds. It counts."""
        now = self._clock()
        while self._jumps and now - self._jumps[0] >= _JUMPS_SECONDS:
            self._jumps.popleft()
        if len(self._jumps) >= _JUMPS_MAX:
            return False
        self._jumps.append(now)
        return True
