"""The archive of a result, in a file: whole, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from pyoco_server.core.frames.messages import JobResult

__all__ = ["ARCHIVE", "save"]

#: What it is called among the files of a run.
ARCHIVE = "output.zip"

Pieces = Callable[[JobResult], AsyncIterator[bytes]]


async def save(result: JobResult, path: str | os.PathLike[str], pieces: Pieces) -> bool:
    """Write beside the file, then rename. False: there is no archive. `pieces`: of one that no frame can hold."""
    if result.output_archive is None and result.output_ref is None:
        return False
    target = Path(path)
    descriptor, name = await asyncio.to_thread(tempfile.mkstemp, dir=target.parent, prefix=f".{target.name}.")
    part = Path(name)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123, ASYNC230 - it is open; what is written is written in a thread
            if result.output_archive is not None:
                await asyncio.to_thread(file.write, result.output_archive)
            else:
                async with contextlib.aclosing(pieces(result)) as arriving:  # type: ignore[type-var]
                    async for piece in arriving:
                        await asyncio.to_thread(file.write, piece)
        await asyncio.to_thread(part.replace, target)
    except BaseException:
        part.unlink(missing_ok=True)  # noqa: ASYNC240 - at once, also when the task is cancelled
        raise
    return True
