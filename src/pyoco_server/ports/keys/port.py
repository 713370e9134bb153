"""The API keys of this server."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.api_key import KeyRecord

__all__ = ["Keys"]


class Keys(Protocol):
    """One record per key id. It contains a digest, never the key. An outage raises Unavailable.

    After `start` reads come from memory, which a watch keeps up to date: a revoked key stops working within a second.
    """

    async def start(self) -> None:
        """Begin to follow all changes, in a process that checks keys. Returns once every key is loaded."""

    async def stop(self) -> None:
        """Stop following changes. Idempotent, and harmless without `start`."""

    async def find(self, key_id: str) -> KeyRecord | None:
        """Return the record, whether the key is still valid or not.

        None: no such key, or its record cannot be read. Raises Unavailable while the answer might be out of date.
        """

    async def add(self, record: KeyRecord) -> bool:
        """Store a new key. False: the id is taken, and nothing changed."""

    async def revoke(self, key_id: str, now: float) -> KeyRecord | None:
        """Revoke a key for good; a second call keeps the first time (FLOW-474). None: the key does not exist."""

    async def used(self, key_id: str, at: float) -> None:
        """Record that the key was used at `at`, unless a later use is recorded.

        Everything else is preserved, in particular a revocation that happened meanwhile. An unknown key is ignored. Two
        round trips.
        """

    async def pepper(self) -> str | None:
        """Return the fingerprint of the pepper that keys are created and checked with (FIND-11).

        None: no gateway has stored one. One round trip.
        """

    async def keep_pepper(self, fingerprint: str) -> str:
        """Store the fingerprint unless one is stored already, and return the stored one. One or two round trips."""

    async def replace_pepper(self, fingerprint: str) -> None:
        """Store the fingerprint, replacing any existing one. Two round trips."""

    async def all(self) -> list[KeyRecord]:
        """Return every key, including revoked ones, oldest first. O(keys). Requires `start`."""
