"""Files on this side of the wire: what is read for an upload, and what a download becomes."""

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
    """A file became shorter or longer while it was read for an upload. Nothing of it was registered."""


class Readable(Protocol):
    """A file, open for reading bytes."""

    def read(self, size: int, /) -> bytes: ...


class Source:
    """What is uploaded: bytes, a path, or an open file from where it stands. Memory is O(1)."""

    def __init__(self, data: bytes | bytearray | memoryview | str | os.PathLike[str] | Readable) -> None:
        """Raises OSError for a path that cannot be read."""
        self._is_ours = not hasattr(data, "read")
        if isinstance(data, bytes | bytearray | memoryview):
            self._file: Any = io.BytesIO(data)
        elif isinstance(data, str | os.PathLike):
            self._file = Path(data).open("rb")  # noqa: SIM115  (closed by close)
        else:
            self._file = data
        self._begins_at = _tell(self._file)
        #: None: it is not known before the end.
        self.size = None if self._begins_at is None else _size(self._file, self._begins_at)
        self._is_touched = False
        self._count = 0

    @property
    def can_restart(self) -> bool:
        return self._begins_at is not None or not self._is_touched

    def restart(self) -> None:
        """To where it began."""
        if self._is_touched:
            self._file.seek(self._begins_at)
            self._is_touched = False
        self._count = 0

    def read(self) -> bytes:
        """The next bytes; none at the end. Raises TypeError for a file of text, SourceChanged."""
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
        """Of the whole, read once more."""
        self.restart()
        digest = hashlib.sha256()
        while chunk := self.read():
            digest.update(chunk)
        return digest.hexdigest()

    def close(self) -> None:
        """What the caller has opened stays open."""
        if self._is_ours:
            self._file.close()


def _tell(file: Any) -> int | None:
    try:
        return int(file.tell()) if file.seekable() else None
    except (AttributeError, OSError):
        return None


def _size(file: Any, begins_at: int) -> int:
    end = int(file.seek(0, os.SEEK_END))
    file.seek(begins_at)
    return max(0, end - begins_at)


class Arrival:
    """Bytes as they come in: counted, digested, written on, and compared with what the answer has promised."""

    def __init__(self, file: BinaryIO, headers: Mapping[str, str]) -> None:
        """Begins the file anew. Raises AnswerDamaged when the answer promises no digest."""
        self._file = file
        self._digest = hashlib.sha256()
        self.count = 0
        length = headers.get("Content-Length", "")
        #: None: the answer does not say.
        self.size = int(length) if length.isdecimal() else None
        self._sha256_hex = _promised(headers.get("Repr-Digest", ""))
        file.seek(0)
        file.truncate()

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._digest.update(chunk)
        self.count += len(chunk)

    def check(self) -> str:
        """The sha256 of the whole. Raises AnswerDamaged."""
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
    """A file beside its final place, under a name of its own. It gets its final name when it is whole, or goes."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        """A folder stands for the file of that name in it."""
        path = Path(path)
        self.path = path / _plain(name) if path.is_dir() else path
        self._part = self.path.with_name(f".{self.path.name[:200]}.{secrets.token_hex(6)}.part")

    def __enter__(self) -> Self:
        """Raises OSError."""
        self.file = self._part.open("xb")
        return self

    def settle(self) -> None:
        """In one step: whoever looks sees the old file or the new one, whole."""
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
    """A folder that these files can land in, made unless it is there.

    Raises FileExistsError for a file that is there, unless it may be written over; OSError; ValueError for a name that
    leads out of the folder.
    """
    folder = Path(directory)
    for name in names:
        path = folder / _plain(name)
        if not overwrite and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, "is there already", str(path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _plain(name: str) -> str:
    """Raises ValueError for a name that leads out of its folder."""
    if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} is no name of a file")
    return name
