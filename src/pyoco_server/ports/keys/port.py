"""The API keys that open this server."""

from __future__ import annotations

from typing import Protocol

from pyoco_server.core.api_key import KeyRecord

__all__ = ["Keys"]


class Keys(Protocol):
    """One record per key id. It holds a digest, never the key. An outage raises Unavailable.

    A store that was started answers from memory, kept true by a watch: a revoked key stops within a second.
    """

    async def start(self) -> None:
        """Begin to follow every change, for a process that checks keys. Returns once all are known."""

    async def stop(self) -> None:
        """End the following. May be called twice, or without a start."""

    async def find(self, key_id: str) -> KeyRecord | None:
        """The record, whether it still opens or not. Raises Unavailable while the answer might be out of date.

        A record that nobody can read counts as none.
        """

    async def add(self, record: KeyRecord) -> bool:
        """Store a new key. False: the id is taken, and nothing changed."""

    async def revoke(self, key_id: str, now: float) -> KeyRecord | None:
        """Revoke a key for good; the first time counts (FLOW-474). None: there is no such key."""

    async def used(self, key_id: str, at: float) -> None:
        """Write down that the key was used at `at`, unless a later use is known; all else stays, above all the end
        of a key that was revoked meanwhile. An unknown key is passed over. Two round trips."""

    async def pepper(self) -> str | None:
        """Fingerprint of the pepper that keys are made and checked with (FIND-11). None: no gateway has stored one.
        One round trip."""

    async def keep_pepper(self, fingerprint: str) -> str:
        """Store the fingerprint unless there is one already; returns the one that is stored. One round trip or two."""

    async def replace_pepper(self, fingerprint: str) -> None:
        """Store the fingerprint in the place of the one that is there, if any. Two round trips."""

    async def all(self) -> list[KeyRecord]:
        """Every key, revoked ones included, oldest first; O(keys). Only on a store that was started."""
