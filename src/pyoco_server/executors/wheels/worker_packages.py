"""The packages the worker itself consists of, and those installed beside it."""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, sys_tags
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pyoco_server.core.wheel_needs import Extras, Provided

__all__ = ["WorkerPackages", "look_at_worker", "supported_tags"]

_OURS = ("pyoco-server", "pyoco")
_OUR_MODULES = ("pyoco_server", "pyoco")


@dataclass(frozen=True)
class WorkerPackages:
    """The packages of this interpreter without any wheel."""

    provided: Mapping[str, Provided]
    #: The packages the worker itself consists of: ours, and all their requirements, transitively.
    own: frozenset[str]
    #: Their modules: top-level ones, and for namespace packages shared with others, their own parts.
    own_modules: frozenset[str]
    #: The namespace packages shared in that way.
    own_namespaces: frozenset[str] = frozenset()

    def replaced_by(self, modules: Iterable[str]) -> str | None:
        """Return the first of a wheel's modules that would shadow one of the worker's own. O(modules)."""
        return min((name for name in modules if self._is_replaced_by(name)), default=None)

    def _is_replaced_by(self, module: str) -> bool:
        places = itertools.accumulate(module.split("."), "{}.{}".format)
        return module in self.own_namespaces or not self.own_modules.isdisjoint(places)


@functools.cache
def supported_tags() -> tuple[Tag, ...]:
    """Return the platforms that a wheel may be built for to run here, the best first."""
    return tuple(sys_tags())


def look_at_worker(shelf: Path) -> WorkerPackages:
    """Scan `sys.path` except for the shelf: O(installed packages), some 50 ms. Blocks."""
    path = [entry for entry in sys.path if not Path(entry or ".").is_relative_to(shelf)]
    found: dict[str, importlib.metadata.Distribution] = {}
    provided: dict[str, Provided] = {}
    here = {name: str(value) for name, value in default_environment().items()}
    for distribution in importlib.metadata.distributions(path=path):
        try:
            head = distribution.metadata  # parsed anew at each access
            name, version = canonicalize_name(head["Name"]), Version(head["Version"])
        except (InvalidVersion, KeyError, TypeError, AttributeError):  # left over from a broken installation
            continue
        if name not in found:  # the first one on the path is the one imported
            found[name] = distribution
            optional = tuple(text for text in head.get_all("Requires-Dist", ()) if "extra" in text)
            provided[name] = Provided(version, "this worker has", Extras(optional, here))
    own = _closure(found)
    modules, namespaces = _modules(found[name] for name in own & found.keys())
    return WorkerPackages(provided, own, modules.union(_OUR_MODULES), namespaces)


def _closure(found: Mapping[str, importlib.metadata.Distribution]) -> frozenset[str]:
    """Return our packages and all their requirements, including requested extras."""
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


def _modules(distributions: Iterable[importlib.metadata.Distribution]) -> tuple[frozenset[str], frozenset[str]]:
    """Return their modules, by the names with which a wheel would shadow them, and the namespaces that contain them."""
    modules: set[str] = set()
    namespaces: set[str] = set()
    for distribution in distributions:
        lines = (distribution.read_text("RECORD") or "").splitlines()
        files = [line.partition(",")[0].split("/") for line in lines if line.partition(",")[0].endswith((".py", ".so"))]
        packages = {tuple(folders) for *folders, file in files if file.startswith("__init__.")}
        for *folders, file in files:
            parts = (*folders, file.partition(".")[0])
            if not all(map(str.isidentifier, parts)):
                continue
            depth = next((n for n in range(1, len(parts)) if parts[:n] in packages), len(parts))
            modules.add(".".join(parts[:depth]))
            namespaces |= {".".join(parts[:n]) for n in range(1, depth)}
    return frozenset(modules), frozenset(namespaces)
