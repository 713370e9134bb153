"""What the worker itself is made of, and what else is installed beside it."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pyoco_server.core.wheel_needs import Provided

__all__ = ["WorkerPackages", "look_at_worker", "supported_tags"]

_OURS = ("pyoco-server", "pyoco")
_OUR_MODULES = ("pyoco_server", "pyoco")


@dataclass(frozen=True)
class WorkerPackages:
    """What the interpreter of this worker has without any wheel."""

    provided: Mapping[str, Provided]
    #: Packages the worker itself is made of: ours, and whatever they require, to any depth.
    own: frozenset[str]
    #: Their top-level modules.
    own_modules: frozenset[str]


@functools.cache
def supported_tags() -> tuple[Tag, ...]:
    """What a wheel may be built for to run here, the closest first."""
    return tuple(sys_tags())


def look_at_worker(shelf: Path) -> WorkerPackages:
    """Looks through `sys.path` without what lies on the shelf: O(installed packages), some 50 ms. Blocks."""
    path = [entry for entry in sys.path if not Path(entry or ".").is_relative_to(shelf)]
    found: dict[str, importlib.metadata.Distribution] = {}
    provided: dict[str, Provided] = {}
    for distribution in importlib.metadata.distributions(path=path):
        try:
            head = distribution.metadata  # read anew each time it is asked for
            name, version = canonicalize_name(head["Name"]), Version(head["Version"])
        except (InvalidVersion, KeyError, TypeError, AttributeError):  # a leftover of a broken installation
            continue
        if name not in found:  # the first one on the path is the one that is imported
            found[name] = distribution
            provided[name] = Provided(version, "this worker has")
    own = _closure(found)
    return WorkerPackages(provided, own, frozenset(_OUR_MODULES) | _modules(found[name] for name in own & found.keys()))


def _closure(found: Mapping[str, importlib.metadata.Distribution]) -> frozenset[str]:
    """Ours and everything that ours requires, extras included where they are asked for."""
    seen: set[tuple[str, str]] = set()
    left = [(name, "") for name in _OURS]
    while left:
        name, extra = left.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in (found[name].requires or ()) if name in found else ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                other = canonicalize_name(requirement.name)
                left += [(other, one) for one in ("", *requirement.extras)]
    return frozenset(name for name, _ in seen)


def _modules(distributions: Iterable[importlib.metadata.Distribution]) -> frozenset[str]:
    """Top-level modules. Not those that several packages share by having no `__init__.py` there."""
    found: set[str] = set()
    for distribution in distributions:
        for line in (distribution.read_text("RECORD") or "").splitlines():
            top, _, rest = line.partition(",")[0].partition("/")
            if rest == "__init__.py" or (not rest and top.endswith((".py", ".so"))):
                found.add(top.partition(".")[0])
    return frozenset(found)
