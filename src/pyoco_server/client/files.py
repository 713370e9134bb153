"""Local files: sources of uploads and targets of downloads."""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hashlib
import io
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from pyoco_server.client.faults import AnswerDamaged

__all__ = ["CHUNK_BYTES", "Arrival", "Landing", "Readable", "Source", "SourceChanged", "folder_for"]

CHUNK_BYTES = 256 * 1024
_SHA256 = re.compile(r"sha-256=:([A-Za-z0-9+/=]{44}):", re.ASCII)


class SourceChanged(ValueError):
    """The size of a file changed while it was uploaded. Nothing was registered."""


class Readable(Protocol):
    """A file that is open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


class Source:
    """The source of an upload: bytes, a path, or an open file from its current position. Memory is O(1)."""

    def __init__(self, data: bytes | bytearray | memoryview | str | os.PathLike[str] | Readable) -> None:
        """Raises OSError for a path that cannot be read."""
        self._is_ours = not hasattr(data, "read")
        if isinstance(data, bytes | bytearray | memoryview):
            self._file: Any = io.BytesIO(data)
        elif isinstance(data, str | os.PathLike):
            self._file = Path(data).open("rb")  # noqa: SIM115  (closed by close)
        else:
            self._file = data
        self._begins_at = _position(self._file)
        #: None: not known before the end.
        self.size = None if self._begins_at is None else _size(self._file, self._begins_at)
        self._is_touched = False
        self._count = 0

    @property
    def can_restart(self) -> bool:
        return self._begins_at is not None or not self._is_touched

    def restart(self) -> None:
        """Seek back to the start."""
        if self._is_touched:
            self._file.seek(self._begins_at)
            self._is_touched = False
        self._count = 0

    def read(self) -> bytes:
        """Return the next bytes; empty at the end. Raises TypeError for a text file, SourceChanged."""
        self._is_touched = True
        chunk = self._file.read(CHUNK_BYTES)
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise TypeError("a file is bytes: open it with mode 'rb'")
        self._count += len(chunk)
        if self.size is not None and (self._count > self.size or (not chunk and self._count < self.size)):
            found = "no more than" if self._count < self.size else "at least"
            raise SourceChanged(
                f"the file has changed while it was read: it had {self.size} bytes, and now {found} {self._count}"
            )
        return bytes(chunk)

    def sha256_hex(self) -> str:
        """Return the sha256 of all bytes, reading them again from the start."""
        self.restart()
        digest = hashlib.sha256()
        while chunk := self.read():
            digest.update(chunk)
        return digest.hexdigest()

    def close(self) -> None:
        """Close the file, unless the caller opened it."""
        if self._is_ours:
            self._file.close()


def _position(file: Any) -> int | None:
    try:
        return int(file.tell()) if file.seekable() else None
    except (AttributeError, OSError):
        return None


def _size(file: Any, begins_at: int) -> int:
    end = int(file.seek(0, os.SEEK_END))
    file.seek(begins_at)
    return max(0, end - begins_at)


class Arrival:
    """Writes a response body to a file and checks its length and digest against the headers."""

    def __init__(self, file: BinaryIO, headers: Mapping[str, str]) -> None:
        """Truncate the file. Raises AnswerDamaged if the response has no digest."""
        self._file = file
        self._digest = hashlib.sha256()
        self.count = 0
        length = headers.get("Content-Length", "")
        #: None: the response has no length.
        self.size = int(length) if length.isdecimal() else None
        self._sha256_hex = _promised(headers.get("Repr-Digest", ""))
        file.seek(0)
        file.truncate()

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._digest.update(chunk)
        self.count += len(chunk)

    def check(self) -> str:
        """Check length and digest and return the sha256. Raises AnswerDamaged."""
        if self.size is not None and self.count != self.size:
            raise AnswerDamaged(f"{self.count} bytes came in, and {self.size} were announced")
        found = self._digest.hexdigest()
        if found != self._sha256_hex:
            raise AnswerDamaged(f"the sha256 of what came in is {found}, and {self._sha256_hex} was announced")
        self._file.flush()
        return found


def _promised(header: str) -> str:
    found = _SHA256.search(header)
    if found is None:
        raise AnswerDamaged("the answer does not tell the digest of what it brings")
    try:
        return base64.b64decode(found[1], validate=True).hex()
    except binascii.Error as error:
        raise AnswerDamaged("the answer's digest cannot be read") from error


class Landing:
    """A temporary file beside its target. It is renamed to the target when complete, and deleted otherwise."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        """If `path` is a folder, the target is the file `name` in it."""
        path = Path(path)
        self.path = path / _plain(name) if path.is_dir() else path
        self._part = self.path.with_name(f".{self.path.name[:200]}.{secrets.token_hex(6)}.part")

    def __enter__(self) -> Self:
        """Raises OSError."""
        self.file = self._part.open("xb")
        return self

    def settle(self) -> None:
        """Replace the target atomically: readers see either the old file or the complete new one."""
        self.file.close()
        self._part.replace(self.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.file.close()  # on a full disk even this may fail
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._part.unlink()


def folder_for(directory: str | os.PathLike[str], names: Iterable[str], *, overwrite: bool) -> Path:
    """Return the folder for these files, creating it if necessary.

    Raises FileExistsError for an existing file unless `overwrite`; OSError; ValueError for a name that would leave the
    folder.
    """
    folder = Path(directory)
    for name in names:
        path = folder / _plain(name)
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "is there already", str(path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _plain(name: str) -> str:
    """Return the name. Raises ValueError if it would leave its folder."""
    if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name of a file")
    return name
