"""Slows down whoever sends bad API keys again and again: the answer waits, or says to come back later."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pyoco_server.errors import RateLimited

__all__ = ["Slowdown", "neighbourhood"]

#: So many bad keys of one address are answered at once; they are forgiven evenly, all of them within a minute.
_FREE = 10
_FORGIVEN_PER_SECOND = _FREE / 60.0
_FIRST_SECONDS = 0.1
_MOST_SECONDS = 2.0
#: Doubling from the first to the most takes this many steps. More is not counted: an end is in sight for everybody.
_STEPS_MAX = math.ceil(math.log2(_MOST_SECONDS / _FIRST_SECONDS)) + 1
_WAITING_MAX = 8
#: Of all addresses together: each costs a connection and a task while it waits.
_WAITING_ALL_MAX = 1000
_ADDRESSES_MAX = 10_000


@dataclass(eq=False)
class _Address:
    """What is held against one address."""

    #: Bad keys that are not forgiven yet, as of `at`.
    bad: float = 0.0
    at: float = 0.0
    waiting: int = 0

    def another(self, now: float) -> float:
        """Counts one more; returns for how long its answer is held back."""
        forgiven = (now - self.at) * _FORGIVEN_PER_SECOND
        self.bad = min(max(0.0, self.bad - forgiven) + 1.0, _FREE + _STEPS_MAX)
        self.at = now
        steps = math.ceil(self.bad - _FREE)
        return 0.0 if steps <= 0 else min(_FIRST_SECONDS * 2.0 ** (steps - 1), _MOST_SECONDS)


class Slowdown:
    """Holds back the answers to bad keys, by address.

    The first ten are answered at once, further ones after 0.1 s, 0.2 s and so on up to 2 s; when eight of one address
    wait already, the next is told to come back later. Only bad keys are counted and only their answers are held back:
    a good key is never delayed, whatever else comes from its address. So it does no harm that behind a reverse proxy
    all callers have one address: there they share the wait for bad keys, and nothing else. Headers such as
    `X-Forwarded-For` are not looked at, since anybody can write them.

    A wait holds nothing but its connection. Memory is O(10,000 addresses); those not seen for longest are forgotten.

    What it cannot do: see other gateways. Each counts for itself.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._waiting = 0

    async def refused(self, host: str | None) -> None:
        """A bad key came from here. Returns when that may be answered. Raises RateLimited at once: too many wait."""
        address = self._find(neighbourhood(host))
        seconds = address.another(self._clock())
        if not seconds:
            return
        if address.waiting >= _WAITING_MAX or self._waiting >= _WAITING_ALL_MAX:
            raise RateLimited(retry_after_seconds=_MOST_SECONDS)
        address.waiting += 1
        self._waiting += 1
        try:
            await self._sleep(seconds)
        finally:
            address.waiting -= 1
            self._waiting -= 1

    def _find(self, name: str) -> _Address:
        address = self._addresses.get(name)
        if address is None:
            address = self._addresses[name] = _Address(at=self._clock())
            if len(self._addresses) > _ADDRESSES_MAX:
                self._addresses.popitem(last=False)
        else:
            self._addresses.move_to_end(name)
        return address


def neighbourhood(host: str | None) -> str:
    """Who is counted together: an IPv4 address, a /64 of IPv6 (one customer has at least that), or all the rest."""
    if not host:
        return ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> 64:x}::/64"
