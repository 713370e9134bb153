"""Finds the files a program has left, and archives them (GRID-102)."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyoco_server.executors.program.archives import FILES_MAX, ArchiveWriter, entry_name
from pyoco_server.executors.program.directory import TMP, is_untouched, reopen

__all__ = ["LIGHT", "Limits", "Packed", "Staged", "TooMuch", "find_outputs", "pack", "pack_left"]

_PIECE_BYTES = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class TooMuch(Exception):
    """More files, bytes or depth than may be kept (OUTPUT_TOO_LARGE). The message is one line for users."""


@dataclass(frozen=True, slots=True)
class Limits:
    bytes_max: int
    files_max: int = FILES_MAX
    #: Directories, links and special files count as well: they are not kept, but still take time.
    entries_max: int = 10 * FILES_MAX


#: Limits of what takes about a millisecond.
LIGHT = Limits(bytes_max=256 * 1024, files_max=16, entries_max=32)


@dataclass(frozen=True, slots=True)
class Staged:
    """The files that were put into the directory: they are no output unless they have changed."""

    program: str
    #: Size and sha256 of each input.
    inputs: Mapping[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Packed:
    """An archive on the disk."""

    path: str
    size: int
    sha256: str


def find_outputs(path: str, staged: Staged, limits: Limits) -> list[tuple[str, int]]:
    """Return every regular file that is new or changed, with its size; links and special files are not followed.

    Raises TooMuch as soon as a limit is exceeded, and OSError. O(entries), up to the limit.
    """
    try:
        return _find(path, staged, limits)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise TooMuch("its files lie too deep") from error


def _find(path: str, staged: Staged, limits: Limits) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    folders = [""]
    entries = size = 0
    while folders:
        folder = folders.pop()
        for entry in _scan(f"{path}/{folder}"):
            entries += 1
            name = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                if name != TMP:
                    folders.append(f"{name}/")
            elif entry.is_file(follow_symlinks=False) and name != staged.program:
                about = entry.stat(follow_symlinks=False)
                if name in staged.inputs and _is_same(entry.path, about, *staged.inputs[name]):
                    continue
                found.append((name, about.st_size))
                size += about.st_size
            if entries > limits.entries_max or len(found) > limits.files_max:
                raise TooMuch(f"it left more than {limits.files_max} files")
            if size > limits.bytes_max:
                raise TooMuch(f"its files have more than {limits.bytes_max} bytes together")
    return found


def pack(path: str, files: list[tuple[str, int]], target: str) -> Packed:
    """Write an archive of these files of a directory to `target`. Equal content gives equal bytes.

    Raises OSError, after removing the file. Memory is one piece; time is dominated by compression.
    """
    try:
        out = os.open(target, _NEW, 0o600)
    except FileNotFoundError:  # a cleaner of /tmp removed the directory
        os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
        out = os.open(target, _NEW, 0o600)
    try:
        with ArchiveWriter(lambda data: _write(out, data)) as archive:
            for name, file, size in _named(files):
                source = _open(f"{path}/{file}")
                if source is None:
                    continue
                try:
                    archive.add(name, _pieces(source), size)
                finally:
                    os.close(source)
    except BaseException:
        os.unlink(target)
        raise
    finally:
        os.close(out)
    return Packed(target, archive.size, archive.sha256)


def _named(files: list[tuple[str, int]]) -> Iterator[tuple[str, str, int]]:
    """Yield the files sorted by their names in the archive, which are unique."""
    taken: set[str] = set()
    for name, file, size in sorted((entry_name(file), file, size) for file, size in files):
        free = name
        while free in taken:  # another file's encoded name is the same
            free += "~"
        taken.add(free)
        yield free, file, size


def _scan(path: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from entries
    except PermissionError:
        if stat.S_IMODE(os.lstat(path).st_mode) & stat.S_IRWXU == stat.S_IRWXU:
            raise
        os.chmod(path, stat.S_IRWXU)  # a program may have removed the permissions of its own directories
        with os.scandir(path) as entries:
            yield from entries


def _is_same(path: str, about: os.stat_result, size: int, sha256: str) -> bool:
    """Whether an input is unchanged. A change of the modification time alone does not count."""
    if is_untouched(about, size):
        return True
    source = _open(path) if about.st_size == size else None
    if source is None:
        return False
    try:
        digest = hashlib.sha256()
        for piece in _pieces(source):
            digest.update(piece)
    finally:
        os.close(source)
    return digest.hexdigest() == sha256


def _open(path: str) -> int | None:
    """Open a file. Returns None if it was removed or replaced by something else: a process that left its group may
    still be active. Raises OSError."""
    try:
        try:
            return os.open(path, _READ)
        except PermissionError:
            os.chmod(path, 0o600)
            return os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _pieces(descriptor: int) -> Iterator[bytes]:
    while piece := os.read(descriptor, _PIECE_BYTES):
        yield piece


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def pack_left(path: str, staged: Staged, limits: Limits, target: str) -> Packed | None:
    """Archive the outputs in the directory of an attempt. Returns None if there are none.

    Raises TooMuch, OSError. For a thread: takes as long as compressing does.
    """
    place = reopen(path)
    if place is None:
        return None
    try:
        here = f"/proc/self/fd/{place.descriptor}"  # this directory itself, even if it was renamed
        files = find_outputs(here, staged, limits)
        return pack(here, files, target) if files else None
    finally:
        place.close()
