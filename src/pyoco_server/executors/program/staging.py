"""Staging of a program's inputs: small ones through memory, large ones directly to its directory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.core.programs.report import ErrorCode
from pyoco_server.errors import NotFound, PyocoError
from pyoco_server.executors.program.directory import WorkDirectory
from pyoco_server.executors.program.port import WorkFile
from pyoco_server.executors.program.wire import Input

__all__ = ["SMALL_BYTES_MAX", "NotStaged", "are_small", "read_small", "write_large"]

#: All inputs of an attempt together: below this they are sent with the order.
SMALL_BYTES_MAX = 256 * 1024
_BATCH_BYTES = 1 << 20

#: Does file work in a thread.
InThread = Callable[..., Awaitable[Any]]


class NotStaged(Exception):
    """An input is missing or invalid: an error code and one line for users."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


def are_small(files: Sequence[WorkFile]) -> bool:
    return sum(file.size for file in files) <= SMALL_BYTES_MAX


async def read_small(files: Sequence[WorkFile]) -> tuple[Input, ...]:
    """Read and verify the inputs. Raises NotStaged."""
    inputs: list[Input] = []
    for file in files:
        data = file.data
        if data is None:
            data = b"".join([piece async for piece in _checked(file)])
        elif len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
            raise _damaged(file)
        inputs.append((file.name, file.size, file.sha256, data))
    return tuple(inputs)


async def write_large(files: Sequence[WorkFile], place: WorkDirectory, in_thread: InThread) -> tuple[Input, ...]:
    """Write the inputs and verify them on the way; memory is one batch, whatever their size. Raises NotStaged,
    OSError."""
    for file in files:
        writer = place.input(file.name)
        try:
            batch = bytearray()
            async for piece in _checked(file):
                batch += piece
                if len(batch) >= _BATCH_BYTES:
                    await in_thread(writer.write, bytes(batch))
                    batch.clear()
            await in_thread(writer.write, bytes(batch))
        finally:
            await asyncio.shield(in_thread(writer.close))
    return tuple((file.name, file.size, file.sha256, None) for file in files)


async def _checked(file: WorkFile) -> AsyncIterator[bytes]:
    digest = hashlib.sha256()
    size = 0
    try:
        async for piece in file.open():
            size += len(piece)
            if size > file.size:
                break
            digest.update(piece)
            yield piece
    except NotFound as error:
        raise _missing(file) from error
    except GridRefused as error:
        if error.code is Code.NOT_FOUND:
            raise _missing(file) from error
        raise NotStaged(ErrorCode.WORKER_ERROR, f"an input could not be fetched: {error.code}") from error
    except (PyocoError, OSError) as error:
        raise NotStaged(
            ErrorCode.WORKER_ERROR, f"an input could not be read just now: {type(error).__name__}"
        ) from error
    if size != file.size or digest.hexdigest() != file.sha256:
        raise _damaged(file)


def _missing(file: WorkFile) -> NotStaged:
    return NotStaged(ErrorCode.INPUT_MISSING, f"the input {file.name!r} is no longer kept")


def _damaged(file: WorkFile) -> NotStaged:
    return NotStaged(ErrorCode.WORKER_ERROR, f"the input {file.name!r} did not arrive whole")
