"""What every store of inputs promises."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.errors import NoRoom, TooLarge
from pyoco_server.ports.inputs.port import InputHead, Inputs

__all__ = ["KEY", "MANY", "InputsContract", "pieces", "put", "sha256_of"]

KEY = "dpp/t_a/0b0e8f0a-5d0c-4b7a-9d0e-2f6f1c1a7b11/scan.png"
MANY = 10**9


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def pieces(data: bytes, size: int = 1_000_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def put(inputs: Inputs, data: bytes, key: str = KEY, content_type: str = "image/png") -> InputHead:
    await inputs.put(key, pieces(data), len(data), content_type, sha256_of(data))
    return InputHead(len(data), content_type, sha256_of(data))


class InputsContract:
    """An adapter passes all of it or does not ship. `elsewhere` is the same store in another process's hands."""

    @pytest.mark.parametrize("size", [1, 70_000, 8 * 1024 * 1024, 17_000_001], ids=["one", "small", "part", "large"])
    async def test_what_was_put_can_be_fetched(
        self, inputs: Inputs, elsewhere: Inputs, tmp_path: Path, size: int
    ) -> None:
        """PRICED-147: only the owner of the copy can read it"""
        data = os.urandom(size)
        wanted = await put(inputs, data)
        assert await elsewhere.head(KEY) == wanted
        into = tmp_path / "copy"
        assert await elsewhere.fetch(KEY, into, size) == wanted
        assert into.read_bytes() == data
        assert stat.S_IMODE(into.stat().st_mode) == 0o600

    async def test_what_was_never_put_is_not_there(self, inputs: Inputs, tmp_path: Path) -> None:
        assert await inputs.head(KEY) is None
        assert await inputs.fetch(KEY, tmp_path / "copy", MANY) is None
        assert not (tmp_path / "copy").exists()

    async def test_a_file_that_is_too_large_is_not_fetched(self, inputs: Inputs, tmp_path: Path) -> None:
        await put(inputs, bytes(1001))
        with pytest.raises(TooLarge):
            await inputs.fetch(KEY, tmp_path / "copy", 1000)
        assert not (tmp_path / "copy").exists()

    @pytest.mark.parametrize("size", [1000, 9_000_000])
    @pytest.mark.parametrize("lie", ["shorter", "longer", "digest"])
    async def test_bytes_that_are_not_what_was_said_are_not_stored(self, inputs: Inputs, lie: str, size: int) -> None:
        data = bytes(size)
        sent = {"shorter": data[:-1], "longer": data + b"x", "digest": b"x" + data[1:]}[lie]
        with pytest.raises(ValueError, match="bytes"):
            await inputs.put(KEY, pieces(sent), size, "image/png", sha256_of(data))
        assert await inputs.head(KEY) is None

    async def test_a_sender_that_breaks_off_leaves_nothing(self, inputs: Inputs) -> None:
        async def breaking() -> AsyncIterator[bytes]:
            yield bytes(9_000_000)
            raise OSError("the disk is gone")

        with pytest.raises(OSError, match="the disk is gone"):
            await inputs.put(KEY, breaking(), 10_000_000, "image/png", "0" * 64)
        assert await inputs.head(KEY) is None

    async def test_what_is_deleted_is_gone_and_may_be_deleted_again(self, inputs: Inputs, elsewhere: Inputs) -> None:
        await put(inputs, b"one")
        other = KEY.replace("scan", "other")
        await put(inputs, b"two", other)
        for store in (inputs, elsewhere, inputs):
            await store.delete(KEY)
        assert await inputs.head(KEY) is None
        assert await inputs.head(other) is not None

    async def test_a_copy_that_the_disk_does_not_take_is_not_left_half(self, inputs: Inputs, tmp_path: Path) -> None:
        await put(inputs, b"one")
        with pytest.raises(NoRoom):
            await inputs.fetch(KEY, tmp_path / "no such folder" / "copy", MANY)

    async def test_a_copy_never_follows_a_link(self, inputs: Inputs, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("mine")
        (tmp_path / "copy").symlink_to(victim)
        await put(inputs, b"one")
        with pytest.raises(NoRoom):
            await inputs.fetch(KEY, tmp_path / "copy", MANY)
        assert victim.read_text() == "mine"

    async def test_a_start_may_be_repeated(self, inputs: Inputs, elsewhere: Inputs) -> None:
        await put(inputs, b"one")
        await asyncio.gather(inputs.start(), elsewhere.start())
        assert await inputs.head(KEY) is not None
        await inputs.ping()
