"""Finding the program that a name means, in one directory (GRID-89, GRID-91)."""

from __future__ import annotations

import errno
import os
import stat
import sys
from dataclasses import dataclass

from pyoco_server.core.programs.names import is_exec_name

__all__ = ["Found", "NotFound", "find", "names_in"]

_SUFFIXES = ("", ".exe", ".py", ".sh")
#: `-B`: a program that imports one of its inputs would leave compiled files behind, and they would be in the archive.
_INTERPRETERS = {".py": (sys.executable, "-B"), ".sh": ("/bin/sh",)}
#: O_NONBLOCK: opening a FIFO must not wait for somebody to write to it.
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class NotFound(Exception):
    """There is no such program that could be run (EXEC_NOT_FOUND). Its text is one line for people."""


@dataclass(frozen=True, slots=True)
class Found:
    """A program, opened for reading. Whoever has it closes it."""

    descriptor: int
    size: int
    file_name: str
    #: What it is run with; empty: it runs by itself.
    interpreter: tuple[str, ...]


def find(exec_dir: str, exec_name: str) -> Found:
    """The first of `name`, `name.exe`, `name.py`, `name.sh` that is a regular file in the directory, or a link to one
    in it. `exec_name` must have the form of a name. Raises NotFound. One `open` when it is the first."""
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
                raise NotFound(f"{file_name} is not executable")
            return Found(descriptor, about.st_size, file_name, interpreter)
        os.close(descriptor)
    raise NotFound(f"there is no program {exec_name} on this worker")


def names_in(exec_dir: str) -> tuple[str, ...]:
    """The programs that lie there now, by name; empty when the directory cannot be read. O(files)."""
    try:
        files = os.listdir(exec_dir)
    except OSError:
        return ()
    stems = (file.removesuffix(suffix) for file in files for suffix in _SUFFIXES if file.endswith(suffix))
    return tuple(sorted({stem for stem in stems if is_exec_name(stem)}))


def _open(exec_dir: str, file_name: str) -> int | None:
    """None: there is nothing of that name that could be a program. Raises NotFound."""
    path = f"{exec_dir}/{file_name}"
    try:
        return os.open(path, _OPEN | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return _follow(exec_dir, path, file_name)
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}:  # the last two: a socket, a device
            return None
        raise NotFound(f"{file_name} cannot be read: {error.strerror}") from error


def _follow(exec_dir: str, path: str, file_name: str) -> int | None:
    """A link must end inside the directory; one that ends nowhere is nothing."""
    end, home = os.path.realpath(path), os.path.realpath(exec_dir)
    if os.path.commonpath((end, home)) != home:
        raise NotFound(f"{file_name} is a link that leaves the directory of programs")
    try:
        return os.open(end, _OPEN | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.ENODEV, errno.ELOOP}:
            return None
        raise NotFound(f"{file_name} cannot be read: {error.strerror}") from error
