"""Compute where the files of a wheel are installed, and refuse what must not be installed there.

A worker installs each wheel into one directory with pip (`pip install --target`), and whatever is at the top level of
that directory can be imported:

    <path>                              <path>
    <wheel>.data/purelib/<path>         <path>, as from platlib
    <wheel>.data/data/<path>            <path>
    <wheel>.data/data/lib/python/<path> <path>
    <wheel>.data/scripts/<path>         bin/<path>
    <wheel>.data/headers/<path>         include/<package>/<path>

Without a target pip installs `data` beside the directory of packages, so that directory is searched for in it, too.
With a target pip omits everything else in `data/lib`, and folders of `data` that a package also has: that does no
harm, because no file replaces another.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyoco_server.core.wheel import WheelName
from pyoco_server.core.zip_archive import shown
from pyoco_server.errors import InvalidWheel
from pyoco_server.ports.wheel_files.dist_info import is_stem_of
from pyoco_server.ports.wheel_files.paths import check_apart

__all__ = ["check_places", "find_dist_info"]

_SCHEMES = ("data", "headers", "platlib", "purelib", "scripts")
_SITES = frozenset({"site-packages", "dist-packages"})
#: Python imports these at startup, before any task of the wheel is requested.
_STARTERS = frozenset({"sitecustomize", "usercustomize"})


def find_dist_info(files: Iterable[str], name: WheelName) -> str:
    """Return the wheel's only metadata directory.

    A second one would be another package in disguise. Raises InvalidWheel.
    """
    found = {top for path in files if _is_metadata(top := path.split("/", 1)[0])}
    if len(found) != 1:
        raise InvalidWheel(
            f"a wheel has one directory {name.file_name.split('-')[0]}-{name.version}.dist-info, "
            f"this one {', '.join(shown(each) for each in sorted(found)[:3]) or 'none'}; build it with a build tool"
        )
    [info] = found
    if not info.endswith(".dist-info") or not is_stem_of(info.removesuffix(".dist-info"), name):
        raise InvalidWheel(f"{shown(info)} is not of {name.package} {name.version}; do not rename wheels")
    return info


def check_places(files: Iterable[str], name: WheelName) -> None:
    """Raise InvalidWheel for files that Python would run at startup, another package in disguise, or colliding files.

    O(n log n) time, and a copy of the names.
    """
    places = []
    for path in files:
        place = _place(path, name)
        top, _, below = place.partition("/")
        if place != path and _is_metadata(top):
            raise InvalidWheel(f"{shown(path)} would be another package in disguise; leave it out of the wheel")
        if top.partition(".")[0] in _STARTERS or (not below and top.lower().endswith(".pth")):
            raise InvalidWheel(f"{shown(path)} would be run by every Python that starts; leave it out of the wheel")
        places.append((place, path))
    check_apart(places)


def _is_metadata(folder: str) -> bool:
    return folder.lower().endswith((".dist-info", ".egg-info"))  # lower case: Python finds them in any case


def _place(path: str, name: WheelName) -> str:
    top, _, below = path.partition("/")
    if not top.endswith(".data"):
        return path
    scheme, _, place = below.partition("/")
    if not is_stem_of(top.removesuffix(".data"), name) or scheme not in _SCHEMES or not place:
        raise InvalidWheel(f"{shown(path)}: a .data directory is the wheel's own, and holds {', '.join(_SCHEMES)}")
    if scheme == "scripts":
        return f"bin/{place}"
    if scheme == "headers":
        return f"include/{name.package}/{place}"
    return _place_of_data(place) if scheme == "data" else place


def _place_of_data(path: str) -> str:
    parts = path.split("/")
    folders = [part.casefold() for part in parts[:-1]]  # some systems take "Lib" for "lib"
    if folders[:2] == ["lib", "python"]:
        return "/".join(parts[2:])
    sites = [number for number, folder in enumerate(folders) if folder in _SITES]
    return "/".join(parts[sites[0] + 1 :]) if sites else path
