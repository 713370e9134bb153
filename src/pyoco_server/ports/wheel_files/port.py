"""What is inside a wheel file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Protocol

from pyoco_server.core.wheel import WheelName

__all__ = ["WheelFacts", "WheelFiles"]


@dataclass(frozen=True)
class WheelFacts:
    """What a wheel says of itself, after it was found to be true."""

    #: Top-level modules and packages it installs.
    modules: tuple[str, ...]
    #: Requires-Dist, as written.
    requires: tuple[str, ...]
    #: Requires-Python, as written; empty: any.
    requires_python: str
    #: Groups and names of its entry points.
    entry_points: tuple[tuple[str, str], ...]
    files: int
    unpacked_bytes: int


class WheelFiles(Protocol):
    def check(self, file: BinaryIO, name: WheelName) -> WheelFacts:
        """Read the whole file, in memory that grows with the number of its files and not with their size. `file` can
        seek. Blocks: call it in a thread.

        Raises InvalidWheel when it is not exactly the wheel its name says: not a whole zip archive, or one that two
        readers could read differently; names that leave their directory, links, more files or bytes than it may have
        once unpacked (by bytes read, not by the header); METADATA or WHEEL missing or of another package, version or
        platform; RECORD that does not list exactly what is there with its digest; files that Python would run unasked.
        The message names the file and says what to do.
        """
