"""Bytes that lie on disk for a while."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from pyoco_server.errors import NoRoom
from pyoco_server.ports.spool import Spool
from support.waiting import eventually
from support.wheel_doors import open_spools


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "tmp"


async def spooled(content: Spool, data: bytes, piece_bytes: int) -> str:
    for at in range(0, len(data), piece_bytes):
        await content.write(data[at : at + piece_bytes])
    return await content.finish()


@pytest.mark.parametrize(("size", "piece_bytes"), [(0, 1), (1, 1), (5_000, 7), (1 << 20, 1 << 20), (5_000_017, 70_001)])
async def test_what_goes_in_comes_out_as_often_as_it_is_asked_for(folder: Path, size: int, piece_bytes: int) -> None:
    data = os.urandom(size)
    async with Spool(folder) as content:
        assert await spooled(content, data, piece_bytes) == hashlib.sha256(data).hexdigest()
        assert content.size_bytes == size
        for _ in range(2):
            assert await content.examine(lambda file: file.read()) == data
            assert b"".join([chunk async for chunk in content.chunks()]) == data


async def test_it_comes_out_in_chunks_of_a_mebibyte(folder: Path) -> None:
    async with Spool(folder) as content:
        await spooled(content, bytes(3_000_000), 300_000)
        assert [len(chunk) async for chunk in content.chunks()] == [1 << 20, 1 << 20, 3_000_000 - (2 << 20)]


async def test_the_file_has_no_name_and_is_closed_in_the_end(folder: Path) -> None:
    async with Spool(folder) as content:
        await spooled(content, b"x" * 3_000_000, 100_000)
        assert open_spools(folder.parent) == 1
        assert not list(folder.iterdir())
    await eventually(lambda: open_spools(folder.parent) == 0)


async def test_it_is_not_closed_under_the_feet_of_its_thread(folder: Path) -> None:
    """Who is cancelled leaves at once. What the thread does goes on, on its own file and no other."""
    began, go_on, seen = threading.Event(), threading.Event(), []

    def look(file: BinaryIO) -> None:
        began.set()
        assert go_on.wait(60)
        seen.append(file.read())

    async def use() -> None:
        async with Spool(folder) as content:
            await spooled(content, b"abc", 3)
            await content.examine(look)

    using = asyncio.create_task(use())
    await eventually(began.is_set)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert open_spools(folder.parent) == 1
    go_on.set()
    await eventually(lambda: open_spools(folder.parent) == 0)
    assert seen == [b"abc"]


async def test_the_loop_goes_on_while_the_disk_is_slow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            assert go_on.wait(60)
            return super().write(data)

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Slow(tempfile.mkstemp(dir=folder)[0], "r+b"))
    async with Spool(folder) as content:
        writing = asyncio.create_task(content.write(bytes(2 << 20)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not writing.done()
        go_on.set()
        await writing


async def test_a_disk_that_takes_a_part_is_given_the_rest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Narrow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:100_000])

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Narrow(tempfile.mkstemp(dir=folder)[0], "r+b"))
    data = os.urandom(3_000_000)
    async with Spool(folder) as content:
        await spooled(content, data, 300_000)
        assert await content.examine(lambda file: file.read()) == data


class TestAFullDisk:
    async def test_is_told_as_such(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A device that has no room takes the place of the disk."""
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: io.FileIO("/dev/full", "r+b"))
        async with Spool(folder) as content:
            with pytest.raises(NoRoom, match="No space left"):
                await content.write(bytes(2 << 20))
        async with Spool(folder) as content:
            await content.write(b"little")
            with pytest.raises(NoRoom):
                await content.finish()

    async def test_may_be_a_limit_of_the_process(self, folder: Path, low_limit: int) -> None:
        """What is left of the room is used first, then the rest is refused."""
        async with Spool(folder) as content:
            with pytest.raises(NoRoom, match="too large"):
                await spooled(content, bytes(low_limit * 2), 100_000)
            assert await content.examine(lambda file: file.seek(0, os.SEEK_END)) == low_limit

    async def test_leaves_nothing_open_when_not_even_the_file_can_be_made(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(**_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(NoRoom):
            await Spool(folder).__aenter__()

    async def test_is_no_excuse_for_another_fault(self, folder: Path) -> None:
        folder.parent.write_text("a file where a directory is needed")
        with pytest.raises(OSError, match="deep"):
            await Spool(folder).__aenter__()

    @pytest.fixture
    def low_limit(self) -> Iterator[int]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit = 3 * (1 << 20) + 17
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        yield limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_file_that_lost_bytes_is_not_read_as_if_it_were_whole(folder: Path) -> None:
    async with Spool(folder) as content:
        await spooled(content, bytes(3_000_000), 100_000)
        assert content._file is not None
        content._file.truncate(1_500_000)
        with pytest.raises(OSError, match="shorter"):
            assert [chunk async for chunk in content.chunks()]


_KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from pyoco_server.ports.spool import Spool

async def main():
    async with Spool(Path(sys.argv[1])) as content:
        await content.write(bytes(2 << 20))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_kill_9_leaves_nothing(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, folder], timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(folder.iterdir())
