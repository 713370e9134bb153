"""A wheel in the registry: its name, which contains package and version, and the tags of the workers that install it
(section 12).

`packaging` is the only library that core may use: it implements PEP 425, 427 and 440, and only parses text (ADR 13).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.tags import Tag
from packaging.utils import BuildTag, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from pyoco_server.core.names import is_tag
from pyoco_server.errors import InvalidWheel

__all__ = [
    "TAGS_HEADER",
    "TAGS_MAX",
    "WHEEL_NAME_LENGTH_MAX",
    "Skipped",
    "Wheel",
    "WheelChoice",
    "WheelName",
    "choose",
    "newest_of",
    "read_wheel_name",
    "read_wheel_tags",
]

#: FLOW-211: the object header that holds the tags, separated by commas.
TAGS_HEADER = "X-Pyoco-Wheel-Tags"
TAGS_MAX = 64
#: The limit of file systems.
WHEEL_NAME_LENGTH_MAX = 255
#: The characters of a name: words, versions such as `1!2.0+local`, and dashes between.
_NAME = re.compile(r"[A-Za-z0-9_.!+-]+\.whl", re.ASCII)
#: `py2.py3-none-any` stands for two platforms. 255 bytes could spell 64,000.
_PLATFORMS_MAX = 512
_DOES_NOT_FIT = "it does not fit this worker's Python, ABI or platform"


@dataclass(frozen=True)
class WheelName:
    """A parsed wheel file name (FLOW-39)."""

    file_name: str
    #: Normalised (FLOW-40).
    package: str
    version: Version
    #: The supported combinations of Python, ABI and platform.
    platforms: frozenset[Tag]
    #: Among builds of the same version, the higher is the newer.
    build: BuildTag = ()


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One registered wheel."""

    name: WheelName
    size_bytes: int
    sha256_hex: str
    #: New for every upload, even of the same name.
    nuid: str
    modified: float
    #: The tags of workers that install it; empty: all workers.
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Skipped:
    wheel_name: str
    reason: str


@dataclass(frozen=True)
class WheelChoice:
    """The wheels a worker installs, and those it skips although their tags match; one per package."""

    wanted: tuple[Wheel, ...]
    skipped: tuple[Skipped, ...]


def read_wheel_name(file_name: str) -> WheelName:
    """Parse a wheel file name (FLOW-39, FLOW-156). Raises InvalidWheel."""
    if len(file_name) > WHEEL_NAME_LENGTH_MAX:
        raise InvalidWheel(f"the name of a wheel has at most {WHEEL_NAME_LENGTH_MAX} characters")
    if _NAME.fullmatch(file_name) is None:
        raise InvalidWheel(f"{file_name!r} is not the name of a wheel: my_tasks-1.0-py3-none-any.whl is one")
    if math.prod(part.count(".") + 1 for part in file_name.removesuffix(".whl").split("-")[-3:]) > _PLATFORMS_MAX:
        raise InvalidWheel(f"{file_name!r} names more than {_PLATFORMS_MAX} platforms")
    try:
        package, version, build, platforms = parse_wheel_filename(file_name)
        return WheelName(file_name, canonicalize_name(package, validate=True), version, platforms, build)
    except ValueError as error:  # the library does not always raise its own exception types
        raise InvalidWheel(f"{file_name!r} is not the name of a wheel: {error}") from error


def read_wheel_tags(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list: trimmed, without empty entries and duplicates (FLOW-212). Raises InvalidWheel."""
    tags = tuple(dict.fromkeys(part for item in text.split(",") if (part := item.strip())))
    for tag in tags:
        if not is_tag(tag):
            raise InvalidWheel(f"tag {tag[:80]!r} may hold letters, digits, '_' and '-', 128 at most")
    if len(tags) > TAGS_MAX:
        raise InvalidWheel(f"a wheel has at most {TAGS_MAX} tags")
    return tags


def newest_of(package: str, wheels: Iterable[Wheel]) -> Wheel | None:
    """Return the newest registered version of a package, by PEP 440 (FLOW-213). O(wheels)."""
    return max((w for w in wheels if w.name.package == package), key=lambda w: w.name.version, default=None)


def choose(wheels: Iterable[Wheel], worker_tags: Sequence[str], supported: Sequence[Tag]) -> WheelChoice:
    """Select the newest compatible wheel of each package among those for this worker (FLOW-231 to FLOW-233). O(wheels).

    `supported` lists the platforms of the worker, best first, as returned by `packaging.tags.sys_tags`. The registry
    holds each version once (FLOW-213); if another client stored a version twice, the better fit is chosen, then the
    newer build, then the later upload.
    """
    own_tags = set(worker_tags)
    ranks = {tag: rank for rank, tag in reversed(list(enumerate(supported)))}
    skipped: dict[str, Wheel] = {}
    wanted: dict[str, tuple[tuple[object, ...], Wheel]] = {}
    for wheel in wheels:
        if wheel.tags and own_tags.isdisjoint(wheel.tags):
            continue
        fit = min((ranks[tag] for tag in wheel.name.platforms if tag in ranks), default=None)
        if fit is None:
            last = skipped.setdefault(wheel.name.package, wheel)
            if wheel.name.version >= last.name.version:
                skipped[wheel.name.package] = wheel
            continue
        worth = (wheel.name.version, -fit, wheel.name.build, wheel.modified, wheel.name.file_name)
        other = wanted.get(wheel.name.package)
        if other is None or worth > other[0]:
            wanted[wheel.name.package] = worth, wheel
    return WheelChoice(
        tuple(wanted[name][1] for name in sorted(wanted)),
        tuple(Skipped(wheel.name.file_name, _DOES_NOT_FIT) for _, wheel in sorted(skipped.items())),
    )
