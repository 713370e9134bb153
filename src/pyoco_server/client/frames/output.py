"""Saves the archive of a result to a file atomically."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pyoco_server.core.frames.messages import JobResult

__all__ = ["ARCHIVE", "save"]

#: The name of the archive among the artifacts of a run.
ARCHIVE = "output.zip"

Pieces = Callable[[JobResult], AsyncIterator[bytes]]


async def save(result: JobResult, path: str | os.PathLike[str], pieces: Pieces) -> bool:
    """Write a temporary file and rename it. Returns False if there is no archive.

    `pieces` yields the bytes of an archive that is too large for a frame.
    """
    if result.output_archive is None and result.output_ref is None:
        return False
    target = Path(path)
    descriptor, name = await asyncio.to_thread(tempfile.mkstemp, dir=target.parent, prefix=f".{target.name}.")
    part = Path(name)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 - already open; writes run in a thread
            if result.output_archive is not None:
                await asyncio.to_thread(file.write, result.output_archive)
            else:
                async with contextlib.aclosing(pieces(result)) as arriving:  # type: ignore[type-var]
                    async for piece in arriving:
                        await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(part.replace, target)
    except BaseException:
        part.unlink(missing_ok=True)  # noqa: ASYNC240 - must run even if the task is cancelled
        raise
    return True
