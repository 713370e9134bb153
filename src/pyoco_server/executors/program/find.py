"""Finds the program for a name in one directory (GRID-89, GRID-91)."""

from __future__ import annotations

import errno
import os
import stat
import sys
from dataclasses import dataclass

from pyoco_server.core.programs.names import is_exec_name

__all__ = ["FoundProgram", "ProgramNotFound", "find", "names_in"]

_SUFFIXES = ("", ".exe", ".py", ".sh")
#: `-B`: a program that imports one of its inputs would leave compiled files, which would be in the archive.
_INTERPRETERS = {".py": (sys.executable, "-B"), ".sh": ("/bin/sh",)}
#: O_NONBLOCK: opening a FIFO must not wait for a writer.
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class ProgramNotFound(Exception):
    """No executable program has this name (EXEC_NOT_FOUND). The message is one line for users."""


@dataclass(frozen=True, slots=True)
class FoundProgram:
    """A program, opened for reading. The owner of this object closes it."""

    descriptor: int
    size: int
    file_name: str
    #: Its interpreter; empty: it is executed directly.
    interpreter: tuple[str, ...]


def find(exec_dir: str, exec_name: str) -> FoundProgram:
    """Return the first of `name`, `name.exe`, `name.py`, `name.sh` that is a regular file in the directory, or a link
    to one in it. `exec_name` must be a valid name. Raises NotFound. Costs one `open` if the first candidate matches."""
    for suffix in _SUFFIXES:
        file_name = exec_name + suffix
        descriptor = _open(exec_dir, file_name)
        if descriptor is None:
            continue
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode):
            interpreter = _INTERPRETERS.get(suffix, ())
            if not interpreter and not about.st_mode & 0o111:
                os.close(descriptor)
                raise ProgramNotFound(f"{file_name} is not executable")
            return FoundProgram(descriptor, about.st_size, file_name, interpreter)
        os.close(descriptor)
    raise ProgramNotFound(f"there is no program {exec_name} on this worker")


def names_in(exec_dir: str) -> tuple[str, ...]:
    """Names of the programs in the directory; empty if it cannot be read. O(files)."""
    try:
        files = os.listdir(exec_dir)
    except OSError:
        return ()
    stems = (file.removesuffix(suffix) for file in files for suffix in _SUFFIXES if file.endswith(suffix))
    return tuple(sorted({stem for stem in stems if is_exec_name(stem)}))


def _open(exec_dir: str, file_name: str) -> int | None:
    """Open a candidate. Returns None if no file of that name could be a program. Raises NotFound."""
    path = f"{exec_dir}/{file_name}"
    try:
        return os.open(path, _OPEN | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return _follow(exec_dir, path, file_name)
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}:  # ENXIO, ENODEV: a socket, a device
            return None
        raise ProgramNotFound(f"{file_name} cannot be read: {error.strerror}") from error


def _follow(exec_dir: str, path: str, file_name: str) -> int | None:
    """Follow a link, which must end inside the directory. Returns None for a dangling link."""
    end, home = os.path.realpath(path), os.path.realpath(exec_dir)
    if os.path.commonpath((end, home)) != home:
        raise ProgramNotFound(f"{file_name} is a link that leaves the directory of programs")
    try:
        return os.open(end, _OPEN | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ELOOP}:
            return None
        raise ProgramNotFound(f"{file_name} cannot be read: {error.strerror}") from error
