"""Packages that register tasks by an entry point, and which of them a flow needs.

The code of a plug-in is somebody else's, and a worker may have many. So a run calls those that register what it names.
One of a wheel that fails, hangs or ends the process never gets as far as a run. One that is installed with the worker
is asked, once, when no other before it has what a run names: that is how its names become known.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterable, Iterator
from importlib import metadata

from pyoco.discovery.loader import TaskLoader
from pyoco.discovery.plugins import PluginRegistry

from pyoco_server.executors.flow.paths import is_below
from pyoco_server.executors.flow.told import told

__all__ = ["PlugIn", "PlugIns"]

_GROUP = "pyoco.tasks"
#: How much of a plug-in's own words a message repeats.
_FAULT_LENGTH_MAX = 500


class PlugIn:
    """One entry point. What it registers is known once it was asked; it is taken to be the same each time."""

    def __init__(self, point: metadata.EntryPoint, home: str | None) -> None:
        self._point = point
        #: The directory of the wheel it lies in; None: it is installed with the worker.
        self.home = home
        #: The tasks it registers, as far as it came.
        self.names: frozenset[str] = frozenset()
        self.is_asked = False
        #: Why it does not work. Set while it is being asked, too: another thread need not wait for one that hangs.
        self.fault: str | None = None

    @property
    def module(self) -> str:
        return self._point.value.partition(":")[0].strip()

    def register(self, loader: TaskLoader) -> str | None:
        """Let it register its tasks. Whatever it throws becomes the text that is returned; None: all is well."""
        try:
            self._point.load()(PluginRegistry(loader, self._point.name))
        except BaseException as error:  # noqa: BLE001  (somebody else's code: a sys.exit() is no more than a fault, too)
            return f"Plug-in {self._point.name!r} failed to load: {told(error)}"[:_FAULT_LENGTH_MAX]
        return None

    def ask(self) -> None:
        """Find out which tasks it registers, with a loader that nobody uses."""
        self.is_asked, self.fault = True, f"Plug-in {self._point.name!r} does not come to an end"
        scratch = TaskLoader(None)
        with contextlib.redirect_stdout(io.StringIO()):  # the loader has warnings for nobody
            self.fault = self.register(scratch)
        self.names = frozenset(scratch.tasks)


class PlugIns:
    """Every plug-in that can be imported now, looked for once: it takes milliseconds."""

    def __init__(self, wheels: Collection[str]) -> None:
        """`wheels`: the directories of wheels."""
        found = [PlugIn(point, _home_of(point, wheels)) for point in metadata.entry_points(group=_GROUP)]
        self.of_wheels = [each for each in found if each.home is not None]
        self.installed = [each for each in found if each.home is None]

    def __iter__(self) -> Iterator[PlugIn]:
        """Of two that register one name the later counts: a wheel goes before what is installed, as its modules do."""
        yield from self.installed
        yield from self.of_wheels

    def needed(self, names: Collection[str], there: Collection[str]) -> list[PlugIn]:
        """Those to call for a flow that has these `names` in it, in order. Those it finds `there` already need none.

        Asks the plug-ins of wheels first, then those that are installed, one after another, until nothing is open. For
        a name that nobody registers those that have failed are tried again: it may be one of theirs.
        """
        for each in (*self.of_wheels, *self.installed):
            if not each.is_asked:
                if self._known.union(there).issuperset(names):
                    break
                each.ask()
        is_open = not self._known.union(there).issuperset(names)
        return [each for each in self if not each.names.isdisjoint(names) or (is_open and each.fault is not None)]

    def ask_wheels(self) -> dict[str, str]:
        """Ask those of wheels. Returns what went wrong, by the directory of the wheel."""
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
