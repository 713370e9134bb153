"""A map whose entries expire, as keys with a time to live do in Redis."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Expiring"]

K = TypeVar("K")
V = TypeVar("V")


class Expiring(Generic[K, V]):
    """The caller passes the time to every call: the map has no clock. Iterates in order of insertion."""

    def __init__(self) -> None:
        self._entries: dict[K, tuple[V, int]] = {}

    def put(self, key: K, value: V, until_ms: int) -> None:
        """Set an entry, replacing any existing value and expiry."""
        self._entries[key] = (value, until_ms)

    def get(self, key: K, now_ms: int) -> V | None:
        found = self._entries.get(key)
        if found is None:
            return None
        value, until_ms = found
        if now_ms >= until_ms:
            del self._entries[key]
            return None
        return value

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)

    def items(self, now_ms: int) -> list[tuple[K, V]]:
        """Return all entries that have not expired at this time. O(n)."""
        return [(key, value) for key in list(self._entries) if (value := self.get(key, now_ms)) is not None]
