"""What is inside a wheel file."""

from __future__ import annotations

from typing import BinaryIO, Protocol

from pyoco_server.core.wheel import WheelName

__all__ = ["WheelFiles"]


class WheelFiles(Protocol):
    def check(self, file: BinaryIO, name: WheelName) -> None:
        """Read the whole file, in memory that grows with the number of its files and not with their size. `file` can
        seek. Blocks: call it in a thread.

        Raises InvalidWheel when it is not exactly the wheel its name says: not a whole zip archive, or one that two
        readers could read differently; names that leave their directory, links, more files or bytes than it may have
        once unpacked (by bytes read, not by the header); METADATA or WHEEL missing or of another package, version or
        platform, or that cannot be read; RECORD that does not list exactly what is there with its digest; files that
        Python would run unasked, another package in disguise, two files that would be installed at one place. The
        message names the file and says what to do.
        """
