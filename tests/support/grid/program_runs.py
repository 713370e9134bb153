"""A site that runs programs, and the archives they leave, for tests."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from pyoco_server.core.states import RunState
from pyoco_server.executors.program.port import ArchiveFile
from support.grid.program_sites import ProgramSite

__all__ = ["CANCELLED", "DONE", "FAILED", "site", "unpacked"]

DONE, FAILED, CANCELLED = RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED


@pytest.fixture
def site(tmp_path: Path) -> ProgramSite:
    return ProgramSite(tmp_path)


def unpacked(archive: ArchiveFile | None) -> dict[str, bytes]:
    assert archive is not None
    content = archive.path.read_bytes()
    assert (archive.size, archive.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    archive.discard()
    archive.discard()
    with zipfile.ZipFile(io.BytesIO(content)) as read:
        return {name: read.read(name) for name in read.namelist()}
