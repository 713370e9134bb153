"""Files that a program produced, for callers that may see its run."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from pyoco_server.actions.programs.result import open_artifact
from pyoco_server.actions.read import read_run
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import ObjectNotFound, RunNotEnded
from pyoco_server.ports.backend import Backend

__all__ = ["ARCHIVE", "NAMES", "Left", "find_left", "list_left", "open_left"]

ARCHIVE: Final = "output.zip"
_STDOUT: Final = "stdout.txt"
_STDERR: Final = "stderr.txt"
#: GRID-144: the possible names.
NAMES: Final = (ARCHIVE, _STDOUT, _STDERR)


@dataclass(frozen=True)
class Left:
    """A file that a program produced."""

    name: str
    size: int
    sha256: str
    #: Output short enough to be stored completely in the record (GRID-145). None: it is an object.
    content: bytes | None = None


async def list_left(backend: Backend, caller: Caller, run_id: str) -> tuple[Run, list[Left]]:
    """Return all files of a run; none while it is under way. One round trip. Raises RunNotFound."""
    run = (await read_run(backend, caller, run_id)).run
    return run, [left for name in NAMES if (left := _left(run, name)) is not None] if run.is_terminal else []


async def find_left(backend: Backend, caller: Caller, run_id: str, name: str) -> tuple[Run, Left]:
    """Return one file by name. One round trip.

    Raises RunNotFound; ObjectNotFound if the file does not exist or the run is of another kind; RunNotEnded.
    """
    run = (await read_run(backend, caller, run_id)).run
    if not run.is_exec or name not in NAMES:
        raise ObjectNotFound("the run has no such artifact")
    if not run.is_terminal:
        raise RunNotEnded(f"the run is {run.status} now: its artifacts can be read when it has ended")
    left = _left(run, name)
    if left is None:
        raise ObjectNotFound("the run has no such artifact")
    return run, left


async def open_left(backend: Backend, run: Run, left: Left) -> AsyncIterator[bytes]:
    """Return its bytes, in pieces. Raises ArtifactExpired if they are no longer stored, Unavailable."""
    if left.content is not None:
        return _one_piece(left.content)
    _, chunks = await open_artifact(backend, run, left.name)
    return chunks


async def _one_piece(content: bytes) -> AsyncIterator[bytes]:
    yield content


def _left(run: Run, name: str) -> Left | None:
    if run.program is None:
        return None
    for artifact in run.program.artifacts:
        if artifact.name == name:
            return Left(name, artifact.size, artifact.sha256)
    tails = {_STDOUT: run.program.stdout_tail, _STDERR: run.program.stderr_tail}
    text = tails.get(name)
    if not text:
        return None
    content = text.encode("utf-8", "replace")
    return Left(name, len(content), hashlib.sha256(content).hexdigest(), content)
