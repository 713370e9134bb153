"""A temporary file for the encoded values of one run, until the worker has stored them."""

from __future__ import annotations

import os
import tempfile
from typing import BinaryIO

__all__ = ["PART_BYTES", "Spool", "SpoolFile"]

#: A new part begins once the current one has this size: a reader of a value never skips more.
PART_BYTES = 8 * 1024 * 1024


class Spool:
    """Values one after another, cut into parts. The file has no name, so nothing is left of it after a crash."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self.parts: list[int] = []

    @property
    def size(self) -> int:
        return sum(self.parts)

    def begin(self) -> tuple[int, int]:
        """Return the part and the offset in it where the next value begins. Raises OSError."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="pyoco-outputs-", buffering=0)  # noqa: SIM115  (closed by `close`)
        if not self.parts or self.parts[-1] >= PART_BYTES:
            self.parts.append(0)
        return len(self.parts) - 1, self.parts[-1]

    def add(self, data: bytes) -> None:
        """Append to the current value. Raises OSError."""
        if self._file is None:
            raise ValueError("no value was begun")
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        self.parts[-1] += len(data)

    def undo(self, part: int, offset: int) -> None:
        """Remove the value that was begun there. Raises OSError."""
        if self._file is not None:
            self.parts[part:] = [offset] if offset else []
            self._file.seek(self.size)
            self._file.truncate()

    @property
    def place(self) -> tuple[int, int] | None:
        """Process and file descriptor, by which another process of the same user opens the file. None: it is empty."""
        return (os.getpid(), self._file.fileno()) if self._file is not None and self.parts else None

    def opened(self) -> SpoolFile | None:
        """Open the file for reading in this process. None: it is empty. Raises OSError."""
        return SpoolFile(os.dup(self._file.fileno())) if self._file is not None and self.parts else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class SpoolFile:
    """A spool, opened for reading. It stays readable when the process that wrote it has exited."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def of(cls, pid: int, fd: int) -> SpoolFile:
        """Open the spool of another process. Raises OSError."""
        # Not blocking: a task may have sent us to a pipe.
        return cls(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()  # of an unexpected outcome, such as that of a run with a new owner
