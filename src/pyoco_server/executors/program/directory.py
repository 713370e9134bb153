"""The directory of one attempt: created fresh, filled, emptied (GRID-92 to GRID-95).

Everything in it is accessed through its descriptor: a program may replace its directory by a link, which must not be
followed. This is no protection against the program, though: it runs as the same user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from pyoco_server.executors.program.find import FoundProgram
from pyoco_server.executors.program.owners import OWNER, owner_of
from pyoco_server.executors.program.removal import remove_tree
from pyoco_server.executors.strays.owners import is_gone

__all__ = [
    "STAGED_NS",
    "TMP",
    "InputWriter",
    "NameTaken",
    "Occupied",
    "WorkDirectory",
    "copy_program",
    "empty",
    "is_untouched",
    "make",
    "remove",
    "reopen",
]

TMP = "tmp"
#: Modification time of every input, by which a change is detected. The clock of a file system ticks every few
#: milliseconds, and a fast program may rewrite a file within one tick; but it will not set exactly this time, and no
#: archive can store its odd nanoseconds.
STAGED_NS = 981_173_106_789_012_345
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 5
_IS_OPEN = stat.S_IRWXU


class Occupied(OSError):
    """A living process uses the directory of the same attempt."""


class NameTaken(Exception):
    """An input has the name of the program, or of the directory for temporary files (GRID-93)."""


class InputWriter:
    """Writes one input. The first `write` creates the file; the caller must close it even if the file is incomplete."""

    __slots__ = ("_descriptor", "_folder", "_name")

    def __init__(self, folder: int, name: str) -> None:
        self._folder, self._name = folder, name
        self._descriptor = -1

    def write(self, data: bytes) -> None:
        """Write all of these bytes. Raises OSError."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._name, _NEW, 0o600, dir_fd=self._folder)
        written = os.write(self._descriptor, data)
        while written < len(data):  # a nearly full disk accepts only a part
            written += os.write(self._descriptor, memoryview(data)[written:])

    def close(self) -> None:
        if self._descriptor < 0:
            return
        try:
            os.utime(self._descriptor, ns=(STAGED_NS, STAGED_NS))
        finally:
            os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class WorkDirectory:
    """The open directory of an attempt. The owner of this object closes it."""

    path: str
    descriptor: int

    def close(self) -> None:
        os.close(self.descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Write a complete input. Raises OSError."""
        writer = self.input(name)
        try:
            writer.write(data)
        finally:
            writer.close()

    def input(self, name: str) -> InputWriter:
        """Return a writer for an input that is written in pieces."""
        return InputWriter(self.descriptor, name)

    def make_tmp(self) -> None:
        """Create the directory for temporary files. Raises NameTaken, OSError."""
        try:
            os.mkdir(TMP, 0o700, dir_fd=self.descriptor)
        except FileExistsError:
            raise NameTaken(f"an input may not be called {TMP!r}: the program's temporary files go there") from None


def make(root: str, job_id: str, attempt: int, owner: str) -> WorkDirectory:
    """Create a fresh directory `<root>/<JobId>/a<Attempt>`. One left over from a crash is removed first.

    Raises Occupied, OSError. Five system calls.
    """
    job, path = f"{root}/{job_id}", f"{root}/{job_id}/a{attempt}"
    for _ in range(_TRIES):
        try:
            os.mkdir(job, 0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(job).st_mode):
                remove_tree(job)
                continue
        except FileNotFoundError:  # a cleaner of /tmp removed the root
            os.makedirs(root, 0o700, exist_ok=True)
            continue
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            _evict(path)
        except FileNotFoundError:  # another attempt has just ended and removed the empty directory
            pass
        else:
            return _claim(path, owner)
    raise Occupied(errno.EEXIST, "the directory of this attempt cannot be made")


def _claim(path: str, owner: str) -> WorkDirectory:
    try:
        os.symlink(owner, path + OWNER)
    except FileExistsError:  # left over from a removed directory
        os.unlink(path + OWNER)
        os.symlink(owner, path + OWNER)
    return WorkDirectory(path, os.open(path, _FOLDER))


def _evict(path: str) -> None:
    owner = owner_of(path)
    # A directory without an owner may be removed: its name is that of this attempt, and nothing else creates it.
    if owner and not is_gone(owner, os.lstat(path).st_mtime):
        raise Occupied(errno.EBUSY, "the directory of this attempt is in use")
    remove_tree(path)


def reopen(path: str) -> WorkDirectory | None:
    """Open the directory of an attempt whose program has ended. Returns None if it is no longer a directory."""
    for _ in range(2):
        try:
            descriptor = os.open(path, _FOLDER)
        except PermissionError:
            for folder in (os.path.dirname(path), path):
                with contextlib.suppress(OSError):
                    os.chmod(folder, _IS_OPEN)
        except OSError:
            return None
        else:
            os.fchmod(descriptor, _IS_OPEN)
            return WorkDirectory(path, descriptor)
    return None


def copy_program(place: WorkDirectory, found: FoundProgram) -> None:
    """Copy the program into the directory, where it may modify its copy (GRID-93). Raises NameTaken, OSError."""
    try:
        target = os.open(found.file_name, _NEW, 0o500, dir_fd=place.descriptor)
    except FileExistsError:
        raise NameTaken(f"an input may not be called {found.file_name!r}, like the program") from None
    try:
        done = 0
        while done < found.size:
            sent = os.sendfile(target, found.descriptor, done, found.size - done)
            if not sent:
                break
            done += sent
    finally:
        os.close(target)


def is_untouched(about: os.stat_result, size: int) -> bool:
    """Whether nothing can have been written to an input since it was staged."""
    return about.st_mtime_ns == STAGED_NS and about.st_size == size and stat.S_ISREG(about.st_mode)


def empty(place: WorkDirectory, inputs: Mapping[str, tuple[int, str]], program: str) -> bool:
    """Remove the unchanged inputs, the program and the directory. Returns False if other or changed files are left.

    Removing the directory tells whether the program has left files: it only succeeds if the directory is empty.
    """
    folder = place.descriptor
    try:
        for name, (size, _) in inputs.items():
            try:
                if is_untouched(os.stat(name, dir_fd=folder, follow_symlinks=False), size):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                continue
        with contextlib.suppress(FileNotFoundError):
            os.unlink(program, dir_fd=folder)
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(TMP, dir_fd=folder)
        os.rmdir(place.path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    _leave(place.path)
    return True


def remove(path: str) -> None:
    """Remove the directory of an attempt with its content, and the directory of its job if it is then empty. Raises
    OSError."""
    try:
        remove_tree(path)
    except PermissionError:  # a program can also remove the permissions of its job's directory
        os.chmod(os.path.dirname(path), _IS_OPEN)
        remove_tree(path)
    _leave(path)


def _leave(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path + OWNER)
    with contextlib.suppress(OSError):  # another attempt of the same job exists
        os.rmdir(path.rpartition("/")[0])
