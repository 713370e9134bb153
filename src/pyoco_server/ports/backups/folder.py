"""A backup in a folder, laid out as the `nats` command lays out its own: `<stream>/stream.tar.s2` and
`<stream>/backup.json`; beside them what changed meanwhile, and above all the manifest.

It holds hashed keys, params and results: only its owner may read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterable, Iterator
from pathlib import Path
from typing import BinaryIO

from pyoco_server.core.backup import Manifest, StoredFile, decode_manifest, encode_manifest
from pyoco_server.errors import BackupFailed, NoRoom

__all__ = ["FolderArchive"]

_MANIFEST = "backup.json"
_PART = ".part"
_READ_BYTES = 128 * 1024
_MANIFEST_BYTES_MAX = 64 * 1024 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def _troubles(doing: str) -> Iterator[None]:
    """The only place where a trouble of the disk becomes an error of ours."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise (NoRoom if error.errno in _FULL else BackupFailed)(f"cannot {doing}: {reason}") from error


class FolderArchive:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._made_it = False

    async def begin(self) -> None:
        await asyncio.to_thread(self._begin)

    def _begin(self) -> None:
        with _troubles(f"make {self._path}"):
            self._made_it = not self._path.exists()
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(self._path.iterdir()):
                raise BackupFailed(f"{self._path} is not empty: a backup needs a folder of its own")
            if not self._made_it:
                with contextlib.suppress(PermissionError):  # another's; what we put in it is closed all the same
                    self._path.chmod(0o700)

    async def keep(self, stream: str, name: str, chunks: AsyncIterable[bytes]) -> StoredFile:
        file = self._path / stream / name
        part = file.with_name(name + _PART)
        digest, size = hashlib.sha256(), 0

        def write(output: BinaryIO, chunk: bytes) -> None:
            with _troubles(f"write {file}"):
                output.write(chunk)
            digest.update(chunk)

        output = await asyncio.to_thread(self._open_part, part)
        try:
            async for chunk in chunks:
                size += len(chunk)
                await asyncio.to_thread(write, output, chunk)
            await asyncio.to_thread(_finish_part, output, part, file)
        finally:
            with contextlib.suppress(OSError):
                output.close()
        return StoredFile(name, size, digest.hexdigest())

    def _open_part(self, part: Path) -> BinaryIO:
        with _troubles(f"write {part}"):
            part.parent.mkdir(mode=0o700, exist_ok=True)
            return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    async def finish(self, manifest: Manifest) -> None:
        await asyncio.to_thread(self._finish, encode_manifest(manifest))

    def _finish(self, data: bytes) -> None:
        file = self._path / _MANIFEST
        part = file.with_name(_MANIFEST + _PART)
        output = self._open_part(part)
        with output, _troubles(f"write {file}"):
            output.write(data)
        with part.open("rb+") as written:
            _finish_part(written, part, file)

    async def discard(self) -> None:
        await asyncio.to_thread(self._discard)

    def _discard(self) -> None:
        with _troubles(f"remove what is left in {self._path}"):
            (self._path / _MANIFEST).unlink(missing_ok=True)  # first: what follows is no backup
            for entry in list(self._path.iterdir()):
                if entry.is_dir():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            if self._made_it:
                self._path.rmdir()

    async def manifest(self) -> Manifest:
        return decode_manifest(await asyncio.to_thread(self._manifest))

    def _manifest(self) -> bytes:
        file = self._path / _MANIFEST
        with _troubles(f"read {self._path}"):
            if not self._path.is_dir():
                raise BackupFailed(f"{self._path} is not a folder")
            if not file.is_file():
                begun = any(self._path.glob("*/stream.tar.s2*"))
                why = "it was interrupted and is of no use" if begun else "this is no backup"
                raise BackupFailed(f"{self._path} has no {_MANIFEST}: {why}")
            if file.stat().st_size > _MANIFEST_BYTES_MAX:
                raise BackupFailed(f"{file} is not one of a pyoco-server backup: it is too large")
            return file.read_bytes()

    async def check(self, stream: str, file: StoredFile) -> None:
        digest, size = hashlib.sha256(), 0
        async for chunk in self.chunks(stream, file):
            size += len(chunk)
            digest.update(chunk)
            if size > file.size_bytes:
                break
        if size != file.size_bytes:
            less = "shorter" if size < file.size_bytes else "longer"
            raise BackupFailed(f"{self._path / stream / file.name} is {less} than the {file.size_bytes} bytes it had")
        if digest.hexdigest() != file.sha256_hex:
            raise BackupFailed(f"{self._path / stream / file.name} was altered: its digest is another one")

    async def chunks(self, stream: str, file: StoredFile) -> AsyncGenerator[bytes, None]:
        path = self._path / stream / file.name

        def read() -> bytes:
            with _troubles(f"read {path}"):
                return opened.read(_READ_BYTES)

        with _troubles(f"read {path}"):
            opened = await asyncio.to_thread(path.open, "rb")
        try:
            while chunk := await asyncio.to_thread(read):
                yield chunk
        finally:
            opened.close()


def _finish_part(output: BinaryIO, part: Path, file: Path) -> None:
    """Whole and on the disk, and only then under its name."""
    with _troubles(f"write {file}"):
        output.flush()
        os.fsync(output.fileno())
        output.close()
        part.rename(file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
