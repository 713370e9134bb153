"""Check the paths in a wheel: all stay inside its own directory, and none overwrites another."""

from __future__ import annotations

import re
import stat
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

from pyoco_server.core.zip_archive import ArchiveMember, shown
from pyoco_server.errors import InvalidWheel

__all__ = ["check_apart", "check_paths", "path_problem"]

#: The limit of common file systems.
_PART_BYTES_MAX = 255
_DEPTH_MAX = 32
_DRIVE = re.compile(r"[A-Za-z]:")


def check_paths(members: Iterable[ArchiveMember]) -> None:
    """Check all paths. Raises InvalidWheel. O(n log n) time, and a copy of the names."""
    names = []
    for member in members:
        problem = path_problem(member.name) or _kind_problem(member)
        if problem:
            raise InvalidWheel(f"{shown(member.name)} {problem}")
        names.append((member.name, member.name))
    check_apart(names)


def check_apart(places: Iterable[tuple[str, str]]) -> None:
    """Raise InvalidWheel if two places coincide, or one lies below another that is a file.

    Takes pairs of a place and the name to report; the place of a directory ends in a slash.
    """
    # Fold what some file systems treat as equal. With "\0" for "/", the contents of a directory sort directly after it.
    folded = sorted((_folded(place), not place.endswith("/"), name) for place, name in places)
    for (one, is_file, name), (other, _, other_name) in pairwise(folded):
        if one == other:
            raise InvalidWheel(f"{shown(name)} and {shown(other_name)} would be the same file on some systems")
        if is_file and other.startswith(f"{one}\0"):
            raise InvalidWheel(f"{shown(name)} is a file, and {shown(other_name)} would lie in it")


def _folded(place: str) -> str:
    return unicodedata.normalize("NFC", place.removesuffix("/")).casefold().replace("/", "\0")


def path_problem(path: str) -> str | None:
    """Return why a file with this name must not be unpacked, or None. The name of a directory ends in a slash."""
    parts = path.removesuffix("/").split("/")
    problem = None
    if path.startswith("/") or _DRIVE.match(path) or ".." in parts:
        problem = "leaves the directory of the wheel; paths must be relative and stay inside"
    elif "\\" in path or not path.isprintable():
        problem = "has a backslash or a control character in its name; rename it"
    elif len(parts) > _DEPTH_MAX:
        problem = f"lies more than {_DEPTH_MAX} directories deep"
    elif any(len(part.encode()) > _PART_BYTES_MAX for part in parts):
        problem = f"has a name longer than {_PART_BYTES_MAX} bytes"
    elif any(not part or part.endswith((".", " ")) for part in parts):  # Windows drops trailing dots and spaces
        problem = "has a part that is empty or ends in a dot or a space; rename it"
    return problem


def _kind_problem(member: ArchiveMember) -> str | None:
    wanted = stat.S_IFDIR if member.is_directory else stat.S_IFREG
    kind = stat.S_IFMT(member.mode)
    if kind not in {0, wanted}:
        return "is a link or a special file; a wheel holds plain files only"
    if member.is_directory and member.size_bytes:
        return "is a directory with bytes in it"
    return None
