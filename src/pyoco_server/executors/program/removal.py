"""Removes everything a program left behind: any depth, any permissions, any number of files."""

from __future__ import annotations

import contextlib
import errno
import os
from itertools import count

__all__ = ["remove_tree"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Files may still be added: by a process that left its group, or by one that is exiting.
_ROUNDS_MAX = 20
#: Moving a directory takes longer than removing it in place, so few are moved.
_DEPTH_MAX = 50


def remove_tree(path: str) -> None:
    """Remove a directory with its content, or a file or link. Raises OSError, but not if it does not exist.

    Deeply nested directories are moved up before they are emptied: so paths, open descriptors and recursion stay
    bounded, at any depth. O(files).
    """
    for left in reversed(range(_ROUNDS_MAX)):
        try:
            return _remove(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in {errno.ENOTDIR, errno.ELOOP}:  # a file, or a link that replaced the directory
                return os.unlink(path)
            if not left or error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}:
                raise
    return None


def _remove(path: str) -> None:
    top = _open(path)
    names = count()
    try:
        while _clear(top, top, names, 0):
            pass
    finally:
        os.close(top)
    os.rmdir(path)


def _clear(folder: int, top: int, names: count[int], depth: int) -> bool:
    """Remove the content. Returns whether a part of it was moved to the top, and has to be removed there."""
    has_moved = False
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # scanning a directory that changes may yield a file twice
                    os.unlink(entry.name, dir_fd=folder)
                continue
            try:
                inner = _open(entry.name, folder)
            except FileNotFoundError:
                continue
            try:
                if depth < _DEPTH_MAX:
                    has_moved |= _clear(inner, top, names, depth + 1)
                    os.rmdir(entry.name, dir_fd=folder)
                else:
                    _lift(entry.name, folder, top, names)
                    has_moved = True
            finally:
                os.close(inner)
    return has_moved


def _lift(name: str, folder: int, top: int, names: count[int]) -> None:
    while True:
        try:
            return os.rename(name, f".{next(names)}", src_dir_fd=folder, dst_dir_fd=top)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:  # the name is taken
                raise


def _open(name: str, folder: int | None = None) -> int:
    """Open a directory, without following links, and give us all permissions on it."""
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        os.chmod(name, 0o700, dir_fd=folder)
        return os.open(name, _FOLDER, dir_fd=folder)
    if os.fstat(descriptor).st_mode & 0o700 != 0o700:
        os.fchmod(descriptor, 0o700)
    return descriptor
