"""Slows down repeated requests with bad API keys: the response is delayed, or refused with a Retry-After."""

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

#: Bad keys per address that are answered immediately. They are forgiven evenly, all of them within a minute.
_FREE = 10
_FORGIVEN_PER_SECOND = _FREE / 60.0
_FIRST_SECONDS = 0.1
_MOST_SECONDS = 2.0
#: Doublings from the first delay to the longest. More are not counted, so every address recovers in bounded time.
_STEPS_MAX = math.ceil(math.log2(_MOST_SECONDS / _FIRST_SECONDS)) + 1
_WAITING_MAX = 8
#: Over all addresses: each waiting request costs a connection and a task.
_WAITING_ALL_MAX = 1000
_ADDRESSES_MAX = 10_000


@dataclass(eq=False)
class _Address:
    """The bad-key count of one address."""

    #: Bad keys not forgiven yet, as of `at`.
    bad: float = 0.0
    at: float = 0.0
    waiting: int = 0

    def another(self, now: float) -> float:
        """Count another bad key, and return the delay of its response in seconds."""
        forgiven = (now - self.at) * _FORGIVEN_PER_SECOND
        self.bad = min(max(0.0, self.bad - forgiven) + 1.0, _FREE + _STEPS_MAX)
        self.at = now
        steps = math.ceil(self.bad - _FREE)
        return 0.0 if steps <= 0 else min(_FIRST_SECONDS * 2.0 ** (steps - 1), _MOST_SECONDS)


class Slowdown:
    """Delays the responses to bad keys, by address.

    The first ten are answered immediately, further ones after 0.1 s, 0.2 s and so on up to 2 s; if eight requests of
    one address are already waiting, the next one is refused with a Retry-After. Only bad keys are counted and only
    their responses are delayed: a request with a valid key is never delayed, whatever else its address sends. So it
    does no harm that behind a reverse proxy all callers share one address: they only share the delay for bad keys.
    Headers such as `X-Forwarded-For` are ignored, since any client can set them.

    A delayed request holds only its connection. Memory is O(10,000 addresses); the least recently seen are forgotten.

    Limitation: gateways do not share their counts.
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
        """Count a bad key and return once it may be answered. Raises RateLimited at once if too many are waiting."""
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
    """Return the unit of counting: an IPv4 address, an IPv6 /64 (the least a customer gets), or "" otherwise."""
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
