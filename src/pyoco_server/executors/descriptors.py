"""Closes file descriptors that a child process inherited by accident."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["close_inherited"]


def close_inherited(*kept: int) -> None:
    """SAFE-8: close every descriptor above 2 except these. Must be the first call in a child process.

    uvloop leaves its copies of a child's standard streams open in the child, including the service's stderr; whatever a
    task or a program starts would inherit them. O(open descriptors).
    """
    for entry in Path("/dev/fd").iterdir():
        descriptor = int(entry.name)
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # the descriptor that the directory was read with
                os.close(descriptor)
