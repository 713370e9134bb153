"""Where this process looks for the modules of wheels."""

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
    """Behind the standard library, so that no wheel can stand in for a part of it, and before installed packages.

    What stands before the library, the working directory and PYTHONPATH, stays before the wheels, too.
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
    """Drop every loaded module whose file lies below one of `paths`, so that the next import reads it anew.

    Returns those that this cannot do for, since they are extension modules: only a new process loads another one.
    """
    # First all places, then the first loss: a namespace in a namespace asks its parent where it is.
    places = {name: _places_of(module) for name, module in list(sys.modules.items())}
    gone = {name: some for name, some in places.items() if some and all(is_below(place, paths) for place in some)}
    for name in gone:
        sys.modules.pop(name, None)
    return [name for name, some in gone.items() if some[0].endswith(tuple(EXTENSION_SUFFIXES))]


def _places_of(module: object) -> list[str]:
    """Its file; of a namespace package, which has none, its directories."""
    if not isinstance(module, ModuleType):
        return []
    try:
        values = object.__getattribute__(module, "__dict__")  # asked otherwise, a lazy module would begin to load
    except AttributeError:  # an extension's idea of a module, such as cffi's: it has no place
        return []
    file = values.get("__file__")
    if isinstance(file, str):
        return [file]
    try:
        return [str(entry) for entry in values.get("__path__") or ()]
    except KeyError:  # a namespace whose parent somebody has dropped: it is nowhere
        return []


def is_below(place: str, paths: Iterable[str]) -> bool:
    return any(place == path or place.startswith(path + os.sep) for path in paths)
