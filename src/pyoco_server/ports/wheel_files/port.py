"""Validation of the contents of a wheel file."""

from __future__ import annotations

from typing import BinaryIO, Protocol

from pyoco_server.core.wheel import WheelName

__all__ = ["WheelFiles"]


class WheelFiles(Protocol):
    def check(self, file: BinaryIO, name: WheelName) -> None:
        """Validate a wheel by reading the complete file. `file` must be seekable. Blocks: call it in a thread.

        Memory grows with the number of its files, not with their size.

        Raises InvalidWheel unless it is exactly the wheel that its name says. It refuses: an incomplete zip archive, or
        one that two readers could read differently; paths that leave the wheel's directory, links, more files or bytes
        than allowed once unpacked (by bytes read, not by the header); METADATA or WHEEL that are missing or unreadable,
        or belong to another package, version or platform; a RECORD that does not list exactly the files present with
        their digests; files that Python would run at startup, another package in disguise, two files that would be
        installed at one place. The message names the file and says what to do.
        """
