"""A local cache of which objects a store is known to hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

__all__ = ["ConfirmedObjects", "Sight"]


@dataclass(frozen=True, slots=True)
class Sight:
    """A confirmed object. Both times are unix seconds."""

    #: When it was stored.
    stored_at: float
    #: When we last confirmed that it exists.
    seen_at: float


@dataclass
class _Gate:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Number of tasks that hold or await the lock.
    count: int = 0


class ConfirmedObjects:
    """The most recently confirmed objects, at most `count_max`, about 200 bytes each. Forgetting one is harmless."""

    def __init__(self, count_max: int = 4096) -> None:
        self._count_max = count_max
        self._sights: OrderedDict[str, Sight] = OrderedDict()
        self._gates: dict[str, _Gate] = {}

    def find(self, name: str) -> Sight | None:
        sight = self._sights.get(name)
        if sight is not None:
            self._sights.move_to_end(name)
        return sight

    def saw(self, name: str, sight: Sight) -> None:
        self._sights[name] = sight
        self._sights.move_to_end(name)
        if len(self._sights) > self._count_max:
            self._sights.popitem(last=False)

    @contextlib.asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """Serialize work per name: of many concurrent uploads of one object, only the first has to store it."""
        gate = self._gates.setdefault(name, _Gate())
        gate.count += 1
        try:
            async with gate.lock:
                yield
        finally:
            gate.count -= 1
            if not gate.count:
                del self._gates[name]
