"""Packages that register tasks by an entry point, and the selection of those that a flow needs.

Plug-ins are third-party code, and a worker may have many. So a run only calls those that register the names it uses. A
plug-in of a wheel that fails, hangs or kills the process is detected before any run uses it. A plug-in installed with
the worker is loaded once, on demand, when no earlier one registers a name that a run uses: only then its names are
known.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata

from pyoco.discovery.loader import TaskLoader
from pyoco.discovery.plugins import PluginRegistry

from pyoco_server.executors.flow.exception_text import exception_text
from pyoco_server.executors.flow.paths import is_below

__all__ = ["PlugIn", "PlugIns"]

_GROUP = "pyoco.tasks"
#: How much of a plug-in's own error text a message repeats.
_FAULT_LENGTH_MAX = 500


class PlugIn:
    """One entry point. Its task names are known once it was loaded; they are assumed to be the same each time."""

    def __init__(self, point: metadata.EntryPoint, home: str | None) -> None:
        self._point = point
        #: The directory of its wheel; None: it is installed with the worker.
        self.home = home
        #: The tasks it registered before it ended or failed.
        self.names: frozenset[str] = frozenset()
        self.is_asked = False
        #: The error, if it does not work. Also set while it is being loaded, so that no other thread waits for one that
        #: hangs.
        self.fault: str | None = None

    @property
    def module(self) -> str:
        return self._point.value.partition(":")[0].strip()

    def register(self, loader: TaskLoader) -> str | None:
        """Let it register its tasks. Returns the text of any exception, or None if it succeeded."""
        try:
            self._point.load()(PluginRegistry(loader, self._point.name))
        except BaseException as error:  # noqa: BLE001  (third-party code: even sys.exit() is only a fault)
            return f"Plug-in {self._point.name!r} failed to load: {exception_text(error)}"[:_FAULT_LENGTH_MAX]
        return None

    def ask(self) -> None:
        """Determine which tasks it registers, with a loader that is discarded."""
        self.is_asked, self.fault = True, f"Plug-in {self._point.name!r} does not come to an end"
        scratch = TaskLoader(None)
        with contextlib.redirect_stdout(io.StringIO()):  # discard the warnings of the loader
            self.fault = self.register(scratch)
        self.names = frozenset(scratch.tasks)


class PlugIns:
    """All plug-ins that can be imported now. Searched once, which takes milliseconds."""

    def __init__(self, wheels: Collection[str]) -> None:
        """`wheels`: the directories of wheels."""
        found = [PlugIn(point, _home_of(point, wheels)) for point in metadata.entry_points(group=_GROUP)]
        self.of_wheels = [each for each in found if each.home is not None]
        self.installed = [each for each in found if each.home is None]

    def __iter__(self) -> Iterator[PlugIn]:
        """If two register the same name, the later wins: wheels come before installed packages, as their modules do."""
        yield from self.installed
        yield from self.of_wheels

    def needed(self, names: Collection[str], defined: Collection[str]) -> list[PlugIn]:
        """Return the plug-ins to call for a flow that uses these `names`, in order. Names in `defined` are already
        defined.

        Loads the plug-ins of wheels first, then the installed ones, one after another, until all names are found. For a
        name that none registers, the failed plug-ins are called again, since it may be one of theirs.
        """
        for each in (*self.of_wheels, *self.installed):
            if not each.is_asked:
                if self._known.union(defined).issuperset(names):
                    break
                each.ask()
        is_open = not self._known.union(defined).issuperset(names)
        return [each for each in self if not each.names.isdisjoint(names) or (is_open and each.fault is not None)]

    def ask_wheels(self) -> dict[str, str]:
        """Load those of wheels. Returns the errors, by the directory of the wheel."""
        _ask(self.of_wheels)
        return {each.home: each.fault for each in self.of_wheels if each.home and each.fault is not None}

    @property
    def _known(self) -> frozenset[str]:
        return frozenset().union(*(each.names for each in self))


def _ask(plug_ins: Iterable[PlugIn]) -> None:
    for each in plug_ins:
        if not each.is_asked:
            each.ask()


def _home_of(point: metadata.EntryPoint, wheels: Collection[str]) -> str | None:
    if point.dist is None:
        return None
    place = str(point.dist.locate_file(""))
    return next((path for path in wheels if is_below(place, [path])), None)
