"""The part of `sys.path` that contains the modules of wheels."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

__all__ = ["forget_modules", "is_below", "place_wheels", "remove_wheels"]

_LIBRARY = Path(os.path.realpath(os.__file__)).parent
_LIBRARIES = frozenset({str(_LIBRARY), str(_LIBRARY / "lib-dynload")})


def place_wheels(paths: Sequence[str]) -> None:
    """Insert after the standard library, so that no wheel can shadow a part of it, and before installed packages.

    Entries before the library, such as the working directory and PYTHONPATH, stay before the wheels, too.
    """
    if paths:
        last = max((at for at, entry in enumerate(sys.path) if os.path.realpath(entry) in _LIBRARIES), default=None)
        at = len(sys.path) if last is None else last + 1
        sys.path[at:at] = paths
        importlib.invalidate_caches()


def remove_wheels(paths: Sequence[str]) -> None:
    if paths:
        sys.path[:] = [entry for entry in sys.path if entry not in paths]
        for path in paths:
            sys.path_importer_cache.pop(path, None)
        importlib.invalidate_caches()


def forget_modules(paths: Sequence[str]) -> list[str]:
    """Unload every module whose file is below one of `paths`, so that the next import loads it again.

    Returns the extension modules among them, which this cannot replace: only a new process loads another version.
    """
    # Collect all places before removing anything: a nested namespace computes its path from its parent.
    places = {name: _places_of(module) for name, module in list(sys.modules.items())}
    unloaded = {
        name: locations
        for name, locations in places.items()
        if locations and all(is_below(place, paths) for place in locations)
    }
    for name in unloaded:
        sys.modules.pop(name, None)
    return [name for name, locations in unloaded.items() if locations[0].endswith(tuple(EXTENSION_SUFFIXES))]


def _places_of(module: object) -> list[str]:
    """Return the module's file; for a namespace package, which has none, its directories."""
    if not isinstance(module, ModuleType):
        return []
    try:
        values = object.__getattribute__(module, "__dict__")  # getattr would trigger the import of a lazy module
    except AttributeError:  # an extension's own module type, such as cffi's: it has no file
        return []
    file = values.get("__file__")
    if isinstance(file, str):
        return [file]
    try:
        return [str(entry) for entry in values.get("__path__") or ()]
    except KeyError:  # a namespace whose parent was unloaded: it has no path
        return []


def is_below(place: str, paths: Iterable[str]) -> bool:
    return any(place == path or place.startswith(path + os.sep) for path in paths)
