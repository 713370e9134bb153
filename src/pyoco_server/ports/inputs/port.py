"""Files that packs read: put there by their tenants, each under its own prefix, for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["ANY_TYPE", "InputHead", "Inputs"]

#: Of a file of which nobody has said what it is.
ANY_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class InputHead:
    size_bytes: int
    content_type: str
    #: Lowercase hex. None: somebody else put the file there, and did not say.
    sha256: str | None


class Inputs(Protocol):
    """An outage raises DependencyUnavailable, and never looks like a missing file; so does a damaged file. Memory does
    not grow with a file."""

    #: What a run's inputs name.
    bucket: str

    async def start(self) -> None:
        """Make what is missing. May be called twice."""

    async def close(self) -> None: ...

    async def put(self, key: str, data: AsyncIterator[bytes], size: int, content_type: str, sha256: str) -> None:
        """All of it or nothing, in place of what was there. Raises ValueError when the bytes are not those of the
        digest or of the size."""

    async def head(self, key: str) -> InputHead | None: ...

    async def fetch(self, key: str, into: Path, bytes_max: int) -> InputHead | None:
        """Write the file to `into`, for its owner alone. None: there is none. Raises TooLarge when it has more than
        `bytes_max`, NoRoom when the disk takes no more. Then, and after an outage, nothing is left at `into`."""

    async def delete(self, key: str) -> None:
        """Repeatable."""

    async def ping(self) -> None: ...
