"""A backup in a folder, in the layout of the `nats` command: `<stream>/stream.tar.s2` and `<stream>/backup.json`.

In addition each stream's folder holds what changed during the copy, and the top folder holds the manifest.

A backup contains hashed keys, params and results, so only its owner may read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from pyoco_server.core.backup import Manifest, StoredFile, decode_manifest, encode_manifest
from pyoco_server.errors import BackupFailed
from pyoco_server.ports.backups.troubles import disk_troubles

__all__ = ["FolderArchive"]

_MANIFEST = "backup.json"
_PART = ".part"
_READ_BYTES = 128 * 1024
_MANIFEST_BYTES_MAX = 64 * 1024 * 1024


class FolderArchive:
    """One backup in one folder.

    The unfinished manifest file exists from the start: the process that created it owns the folder. Every step that
    creates or renames a file holds `_gate`: the thread of a cancelled caller may still be running, and must not create
    anything after `discard`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._manifest_file = path / _MANIFEST
        self._gate = threading.Lock()
        #: Folders and files, in order of creation.
        self._made: list[Path] = []
        #: The folder's mode, if it existed before.
        self._mode_before: int | None = None
        self._is_over = False

    async def begin(self) -> None:
        await asyncio.to_thread(self._begin)

    def _begin(self) -> None:
        with self._making(f"make {self._path}"):
            for folder in reversed([each for each in (self._path, *self._path.parents) if not each.exists()]):
                self._make_folder(folder)
            self._check_empty()
            try:
                os.close(self._make_file(_part(self._manifest_file)))
            except FileExistsError:
                raise BackupFailed(f"another backup is being made in {self._path}") from None
            self._check_empty()
            if self._path not in self._made:
                self._mode_before = stat.S_IMODE(self._path.stat().st_mode)
                with contextlib.suppress(PermissionError):  # owned by another user; our files are private anyway
                    self._path.chmod(0o700)

    def _check_empty(self) -> None:
        """Raise BackupFailed if the folder contains anything that this backup did not create."""
        if any(entry not in self._made for entry in self._path.iterdir()):
            raise BackupFailed(f"{self._path} is not empty: a backup needs a folder of its own")

    @contextlib.contextmanager
    def _making(self, doing: str) -> Iterator[None]:
        with self._gate, disk_troubles(doing):
            if self._is_over:
                raise BackupFailed(f"cannot {doing}: this backup has been given up")
            yield

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o777 if folder in self._path.parents else 0o700)
        except FileExistsError:
            if not folder.is_dir():
                raise
        else:
            self._made.append(folder)

    def _make_file(self, file: Path) -> int:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._made.append(file)
        return opened

    async def keep(self, stream: str, name: str, chunks: AsyncIterable[bytes]) -> StoredFile:
        file = self._path / stream / name
        digest, size = hashlib.sha256(), 0

        def write(output: BinaryIO, chunk: bytes) -> None:
            with disk_troubles(f"write {file}"):
                output.write(chunk)
            digest.update(chunk)

        output = await asyncio.to_thread(self._open, file)
        try:
            async for chunk in chunks:
                size += len(chunk)
                await asyncio.to_thread(write, output, chunk)
            await asyncio.to_thread(self._close, output, file)
        finally:
            with contextlib.suppress(OSError):
                output.close()
        return StoredFile(name, size, digest.hexdigest())

    async def keep_file(self, stream: str, name: str, write: Callable[[Path], None]) -> StoredFile:
        file = self._path / stream / name
        (await asyncio.to_thread(self._open, file)).close()
        await asyncio.to_thread(write, _part(file))
        return await asyncio.to_thread(self._keep_written, file)

    def _keep_written(self, file: Path) -> StoredFile:
        with disk_troubles(f"write {file}"):
            output = _part(file).open("rb+")
        with output, disk_troubles(f"write {file}"):
            digest = hashlib.file_digest(output, "sha256")
            size = output.tell()
            self._close(output, file)
        return StoredFile(file.name, size, digest.hexdigest())

    def _open(self, file: Path) -> BinaryIO:
        with self._making(f"write {file}"):
            self._make_folder(file.parent)
            return os.fdopen(self._make_file(_part(file)), "wb")

    def _close(self, output: BinaryIO, file: Path) -> None:
        """Sync the complete file to disk, then rename it to its final name."""
        with disk_troubles(f"write {file}"):
            output.flush()
            os.fsync(output.fileno())
            output.close()
        with self._making(f"write {file}"):
            self._made.append(file)
            _part(file).rename(file)
            folder = os.open(file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    async def finish(self, manifest: Manifest) -> None:
        await asyncio.to_thread(self._finish, encode_manifest(manifest))

    def _finish(self, data: bytes) -> None:
        file = self._manifest_file
        with disk_troubles(f"write {file}"):
            output = _part(file).open("rb+")
        with output, disk_troubles(f"write {file}"):
            output.write(data)
            self._close(output, file)

    async def discard(self) -> None:
        await asyncio.to_thread(self._discard)

    def _discard(self) -> None:
        with self._gate, disk_troubles(f"remove what is left in {self._path}"):
            self._is_over = True
            if self._manifest_file in self._made:
                self._manifest_file.unlink(missing_ok=True)  # first: without it the remaining files are not a backup
            for made in reversed(self._made):
                _remove(made)
            if self._mode_before is not None:
                with contextlib.suppress(PermissionError):
                    self._path.chmod(self._mode_before)

    async def manifest(self) -> Manifest:
        return decode_manifest(await asyncio.to_thread(self._manifest))

    def _manifest(self) -> bytes:
        file = self._manifest_file
        with disk_troubles(f"read {self._path}"):
            if not self._path.is_dir():
                raise BackupFailed(f"{self._path} is not a folder")
            if not file.is_file():
                is_begun = _part(file).exists() or any(self._path.glob("*/stream.tar.s2*"))
                why = "it is still being made, or was interrupted and is of no use" if is_begun else "this is no backup"
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
            with disk_troubles(f"read {path}"):
                return opened.read(_READ_BYTES)

        with disk_troubles(f"read {path}"):
            opened = await asyncio.to_thread(path.open, "rb")
        try:
            while chunk := await asyncio.to_thread(read):
                yield chunk
        finally:
            opened.close()


def _part(file: Path) -> Path:
    """Return the name of a file while it is incomplete."""
    return file.with_name(file.name + _PART)


def _remove(made: Path) -> None:
    try:
        if made.is_dir():
            made.rmdir()
        else:
            made.unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:  # keep a folder that contains other files
            raise
