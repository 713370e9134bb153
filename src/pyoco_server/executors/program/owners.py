"""The worker that owns a job directory.

The owner is the target of a symbolic link next to the directory, `a1.owner` for `a1`, as editors do for their locks: a
link is created atomically and is never empty. It is not inside the directory, where a program that opens every file
would find it. Earlier versions had it there, as `.owner`.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["OWNER", "owner_of"]

#: Suffix of the link's name, after that of the directory.
OWNER = ".owner"


def owner_of(directory: str) -> str:
    """Return the owner of a directory, or an empty text if none is recorded."""
    for link in (directory + OWNER, f"{directory}/{OWNER}"):
        with contextlib.suppress(OSError):
            return os.readlink(link)
    return ""
