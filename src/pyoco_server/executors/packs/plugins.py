"""Packs that others ship: an entry point names the spec, and the executor is loaded in processes of its own alone.

The module of a spec is somebody else's code, and the gateway has to import it to know what may be asked. So each is
tried in a process of its own first: one that hangs, crashes or ends the process is left out, as is one that raises or
is no spec. None of them keeps a gateway or a worker from its other packs.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, Final

from pyoco_server.core.packs import PACKS, PackSpec
from pyoco_server.core.packs.spec import Here, is_pack_name
from pyoco_server.core.priced.input_key import is_own_key
from pyoco_server.core.priced.plain_text import plain
from pyoco_server.errors import Problem
from pyoco_server.executors.flow.told import told

__all__ = ["GROUP", "Installed", "LeftOut", "installed_packs", "known_names"]

GROUP: Final = "pyoco_server.packs"
#: A spec is a table. What takes longer to import does something else.
_TRY_SECONDS = 15.0
_WHY_LENGTH_MAX = 300
_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

#: Comes back from the import, whatever that raises, and says so. `os._exit`: no thread of it is waited for.
_TRY: Final = """
import importlib, json, os, sys
module, path, fd = sys.argv[1:]
sys.path[:] = json.loads(path)
try:
    importlib.import_module(module)
except BaseException:
    pass
os.write(int(fd), b"!")
os._exit(0)
"""


@dataclass(frozen=True)
class LeftOut:
    """A pack that is installed and cannot be offered."""

    name: str
    #: The distribution that brings it, with its version.
    package: str
    #: With what to do about it.
    why: str


@dataclass(frozen=True)
class Installed:
    """What there is: ours, then those of others by name."""

    packs: Mapping[str, PackSpec]
    left_out: tuple[LeftOut, ...] = ()


def known_names() -> tuple[str, ...]:
    """Of all packs that are installed, whether they work or not. Imports nothing."""
    return (*PACKS, *sorted({point.name for point in metadata.entry_points(group=GROUP)} - set(PACKS)))


def installed_packs(names: Collection[str] = (), seconds: float = _TRY_SECONDS) -> Installed:
    """Ours and those of others; `names`: of these alone, and no other is imported. Takes milliseconds without packs of
    others, and a process's start with them, at most `seconds`. Blocks."""
    points = [point for point in metadata.entry_points(group=GROUP) if not names or point.name in names]
    refused = {point: why for point in points if (why := _named_wrongly(point, points)) is not None}
    packs = {name: spec for name, spec in PACKS.items() if not names or name in names}
    tried = _tried([point for point in points if point not in refused], seconds)
    for point, why in sorted(tried.items(), key=lambda item: item[0].name):
        found = why or _loaded(point)
        if isinstance(found, PackSpec):
            packs[point.name] = found
        else:
            refused[point] = found
    return Installed(packs, tuple(_left_out(point, why) for point, why in refused.items()))


def _left_out(point: metadata.EntryPoint, why: str) -> LeftOut:
    package = "a package without a name" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return LeftOut(plain(point.name, 64), plain(package, 128), why)


def _named_wrongly(point: metadata.EntryPoint, points: Sequence[metadata.EntryPoint]) -> str | None:
    if not is_pack_name(point.name):
        return "its entry point is not named like a pack: a small letter, then at most 31 of a-z 0-9 _; rename it"
    if not _PLACE.fullmatch(point.value):
        return "its entry point has no form such as module:PACK; correct it"
    if point.name in PACKS:
        return "a pack of this name comes with pyoco-server; rename it, or uninstall it"
    if Counter(each.name for each in points)[point.name] > 1:  # which of them is meant, nobody can say
        return "another package has a pack of this name; uninstall one of them"
    return None


def _tried(points: Sequence[metadata.EntryPoint], seconds: float) -> dict[metadata.EntryPoint, str | None]:
    """What is wrong with the import of each; None: it came back. All at once."""
    deadline = time.monotonic() + seconds
    tries: dict[metadata.EntryPoint, _Try] = {}
    outcomes: dict[metadata.EntryPoint, str | None] = {}
    try:
        for point in points:
            try:
                tries[point] = _Try(point.module)
            except OSError as error:  # no room for another process
                outcomes[point] = f"it could not be tried: {plain(str(error), _WHY_LENGTH_MAX)}; start this again"
        return outcomes | {point: each.outcome(deadline, seconds) for point, each in tries.items()}
    finally:
        for each in tries.values():
            each.end()


class _Try:
    """The import of a module in another process."""

    def __init__(self, module: str) -> None:
        self._line, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-c", _TRY, module, json.dumps(sys.path), str(theirs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except OSError:
            os.close(self._line)
            raise
        finally:
            os.close(theirs)

    def outcome(self, deadline: float, seconds: float) -> str | None:
        look = select.poll()
        look.register(self._line, select.POLLIN)
        if not look.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return f"its import does not come to an end within {seconds:g} s; see what its module does when imported"
        if os.read(self._line, 1):
            return None
        return "its import ends the process; see what its module does when imported"

    def end(self) -> None:
        os.close(self._line)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has gone, with all it started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _loaded(point: metadata.EntryPoint) -> PackSpec | str:
    """The spec, or what is wrong."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            spec = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (somebody else's code: a sys.exit() is no more than a fault, too)
        return f"it cannot be imported: {plain(told(error), _WHY_LENGTH_MAX)}; repair it, or uninstall it"
    if not isinstance(spec, PackSpec):
        return f"its entry point names no PackSpec, but: {type(spec).__name__}; see pyoco_server.packs"
    if spec.name != point.name:
        return "the name of its PackSpec is not that of its entry point; make them the same"
    if not isinstance(spec.executor, str) or not _PLACE.fullmatch(spec.executor):
        return "its PackSpec names no executor; one has a form such as module:function"
    return _kept_in(spec)


def _kept_in(spec: PackSpec) -> PackSpec:
    """The same, for a gateway and a worker to call without a thought."""
    beyond, files = _guarded(spec.beyond, Problem), _guarded(spec.files, str)

    def check(inputs: Mapping[str, Any], here: Here) -> tuple[Problem, ...]:
        """PRICED-147: files of the tenant alone, whatever the pack has looked at itself."""
        problems: tuple[Problem, ...] = beyond(inputs, here)
        if not problems and not all(is_own_key(key, here.tenant_id) for key in files(inputs)):
            problems = (Problem((), "names a file that is not one of this tenant's", "value"),)
        return problems

    return replace(
        spec,
        has_own_process=True,
        inputs=_guarded(spec.inputs, Problem),
        beyond=check,
        files=files,
        needs=_guarded(spec.needs, str),
    )


def _guarded(asked: Callable[..., Any], kind: type) -> Callable[..., Any]:
    """Whatever somebody else's function does in a gateway, it costs the one request and tells nothing of it."""

    @functools.wraps(asked, assigned=())
    def guarded(*arguments: Any) -> tuple[Any, ...]:
        try:
            answer = tuple(asked(*arguments))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001  (as above; its message may quote the inputs)
            raise RuntimeError(f"the check of a pack raised {type(error).__name__}") from None
        if not all(isinstance(item, kind) for item in answer):
            raise TypeError(f"the check of a pack returned something else than {kind.__name__}")
        return answer

    return guarded
