"""Input files of packs: uploaded by their tenants, each under the tenant's own prefix, and kept for a limited time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["ANY_TYPE", "InputHead", "Inputs"]

#: The content type of a file that was stored without one.
ANY_TYPE = "application/octet-stream"


@dataclass(frozen=True)
class InputHead:
    size_bytes: int
    content_type: str
    #: Lowercase hex. None: the file was stored by another program, without a digest.
    sha256: str | None


class Inputs(Protocol):
    """The store of input files. Memory use does not grow with file size.

    An outage raises DependencyUnavailable, and never looks like a missing file; so does a damaged file.
    """

    #: The bucket that the inputs of a run name.
    bucket: str

    async def start(self) -> None:
        """Create missing resources. Idempotent."""

    async def close(self) -> None: ...

    async def put(self, key: str, data: AsyncIterator[bytes], size: int, content_type: str, sha256: str) -> None:
        """Store all of the file or nothing, replacing an existing one.

        Raises ValueError if size or digest do not match.
        """

    async def head(self, key: str) -> InputHead | None: ...

    async def fetch(self, key: str, into: Path, bytes_max: int) -> InputHead | None:
        """Write the file to `into`, readable for its owner only. None: the file does not exist.

        Raises TooLarge if it exceeds `bytes_max`, NoRoom if the disk is full. After these, and after an outage, there
        is no file at `into`.
        """

    async def delete(self, key: str) -> None:
        """Delete the file. Idempotent."""

    async def ping(self) -> None: ...
