"""Which worker owns a job directory.

The owner is the target of a symbolic link beside the directory, `a1.owner` for `a1`, as editors do for their locks: it
is made in one step, and there is no moment in which it is empty. It is not in the directory, where a program that opens
every file would find it. Earlier versions had it there, as `.owner`.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["OWNER", "owner_of"]

#: What the name of the link adds to that of the directory.
OWNER = ".owner"


def owner_of(directory: str) -> str:
    """What a directory says of its owner; empty: nothing."""
    for link in (directory + OWNER, f"{directory}/{OWNER}"):
        with contextlib.suppress(OSError):
            return os.readlink(link)
    return ""
