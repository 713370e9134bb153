"""What a wheel is to us: a name that tells package and version, tags that tell which workers want it (section 12).

`packaging` is the one library core may use: it is the written form of PEP 425, 427 and 440, and does no more than read
text (ADR 13).
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
    "Choice",
    "Skipped",
    "Wheel",
    "WheelName",
    "choose",
    "newest_of",
    "read_wheel_name",
    "read_wheel_tags",
]

#: FLOW-211: the word beside an object's bytes that holds its tags, with commas between.
TAGS_HEADER = "X-Pyoco-Wheel-Tags"
TAGS_MAX = 64
#: What a file system takes.
WHEEL_NAME_LENGTH_MAX = 255
#: What the parts of a name are made of: words, versions such as `1!2.0+local`, and dashes between.
_NAME = re.compile(r"[A-Za-z0-9_.!+-]+\.whl", re.ASCII)
#: `py2.py3-none-any` is two of them. 255 bytes could spell 64,000.
_PLATFORMS_MAX = 512
_DOES_NOT_FIT = "it does not fit this worker's Python, ABI or platform"


@dataclass(frozen=True)
class WheelName:
    """A wheel's file name, read (FLOW-39)."""

    file_name: str
    #: Normalised (FLOW-40).
    package: str
    version: Version
    #: What it runs on: Python, ABI and platform.
    platforms: frozenset[Tag]
    #: Of two builds of one version, the higher is the later.
    build: BuildTag = ()


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One registered wheel."""

    name: WheelName
    size_bytes: int
    sha256_hex: str
    #: New for every upload, also of the same name.
    nuid: str
    modified: float
    #: Which workers want it; none: all of them.
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Skipped:
    wheel_name: str
    reason: str


@dataclass(frozen=True)
class Choice:
    """What a worker wants of the registry, and what it passes over although its tags fit, each package once."""

    wanted: tuple[Wheel, ...]
    skipped: tuple[Skipped, ...]


def read_wheel_name(file_name: str) -> WheelName:
    """Raises InvalidWheel (FLOW-39, FLOW-156)."""
    if len(file_name) > WHEEL_NAME_LENGTH_MAX:
        raise InvalidWheel(f"the name of a wheel has at most {WHEEL_NAME_LENGTH_MAX} characters")
    if _NAME.fullmatch(file_name) is None:
        raise InvalidWheel(f"{file_name!r} is not the name of a wheel: my_tasks-1.0-py3-none-any.whl is one")
    if math.prod(part.count(".") + 1 for part in file_name.removesuffix(".whl").split("-")[-3:]) > _PLATFORMS_MAX:
        raise InvalidWheel(f"{file_name!r} names more than {_PLATFORMS_MAX} platforms")
    try:
        package, version, build, platforms = parse_wheel_filename(file_name)
        return WheelName(file_name, canonicalize_name(package, validate=True), version, platforms, build)
    except ValueError as error:  # the library has a type for each kind of it, and forgets one now and then
        raise InvalidWheel(f"{file_name!r} is not the name of a wheel: {error}") from error


def read_wheel_tags(text: str) -> tuple[str, ...]:
    """FLOW-212: entries with commas between, trimmed, without empty ones, each once. Raises InvalidWheel."""
    tags = tuple(dict.fromkeys(part for item in text.split(",") if (part := item.strip())))
    for tag in tags:
        if not is_tag(tag):
            raise InvalidWheel(f"tag {tag[:80]!r} may hold letters, digits, '_' and '-', 128 at most")
    if len(tags) > TAGS_MAX:
        raise InvalidWheel(f"a wheel has at most {TAGS_MAX} tags")
    return tags


def newest_of(package: str, wheels: Iterable[Wheel]) -> Wheel | None:
    """The newest registered version of a package, by PEP 440 (FLOW-213); O(wheels)."""
    return max((w for w in wheels if w.name.package == package), key=lambda w: w.name.version, default=None)


def choose(wheels: Iterable[Wheel], worker_tags: Sequence[str], supported: Sequence[Tag]) -> Choice:
    """FLOW-231 to FLOW-233: of those that are for this worker, the newest that fits it of each package; O(wheels).

    `supported` is what the worker can run, the best first, as `packaging.tags.sys_tags` tells it. The registry holds a
    version once (FLOW-213); should another client have put it there twice, the better fit is taken, then the later
    build, then the later upload.
    """
    mine = set(worker_tags)
    ranks = {tag: rank for rank, tag in reversed(list(enumerate(supported)))}
    skipped: dict[str, Wheel] = {}
    wanted: dict[str, tuple[tuple[object, ...], Wheel]] = {}
    for wheel in wheels:
        if wheel.tags and mine.isdisjoint(wheel.tags):
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
    return Choice(
        tuple(wanted[name][1] for name in sorted(wanted)),
        tuple(Skipped(wheel.name.file_name, _DOES_NOT_FIT) for _, wheel in sorted(skipped.items())),
    )
