"""Third-party packs: an entry point names the spec; the executor is loaded only in separate processes.

The module of a spec is third-party code, and the gateway has to import it to get the spec. So each is first imported in
a separate process: a pack is left out if its import hangs, crashes, ends the process or raises, or if it yields no
spec. A broken pack never keeps a gateway or a worker from using the others.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
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
from pyoco_server.core.packs.spec import Here, PackCheckFailed, is_pack_name
from pyoco_server.core.priced.input_key import is_own_key
from pyoco_server.core.priced.plain_text import plain
from pyoco_server.errors import Problem
from pyoco_server.executors.flow.exception_text import exception_text

__all__ = ["GROUP", "Installed", "LeftOut", "installed_packs", "known_names"]

GROUP: Final = "pyoco_server.packs"
#: A spec is a table. An import that takes longer than this does something else.
_TRY_SECONDS = 15.0
_WHY_LENGTH_MAX = 300
_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

#: Reports that the import returned or raised. `os._exit`: does not wait for its threads.
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
    """An installed pack that cannot be offered."""

    name: str
    #: The distribution that contains it, with its version.
    package: str
    #: The problem, and what to do about it.
    why: str


@dataclass(frozen=True)
class Installed:
    """The installed packs: built-in ones, then third-party ones by name."""

    packs: Mapping[str, PackSpec]
    left_out: tuple[LeftOut, ...] = ()


def known_names() -> tuple[str, ...]:
    """Names of all installed packs, whether they work or not. Imports nothing."""
    return (*PACKS, *sorted({point.name for point in metadata.entry_points(group=GROUP)} - set(PACKS)))


def installed_packs(names: Collection[str] = (), seconds: float = _TRY_SECONDS) -> Installed:
    """Load the built-in and third-party packs; with `names`, only these are imported. Takes milliseconds without
    third-party packs; otherwise as long as a process start, at most `seconds`. Blocks."""
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
    if Counter(each.name for each in points)[point.name] > 1:  # ambiguous
        return "another package has a pack of this name; uninstall one of them"
    return None


def _tried(points: Sequence[metadata.EntryPoint], seconds: float) -> dict[metadata.EntryPoint, str | None]:
    """Try all imports concurrently. Returns what is wrong with each; None: the import returned."""
    deadline = time.monotonic() + seconds
    tries: dict[metadata.EntryPoint, _Try] = {}
    outcomes: dict[metadata.EntryPoint, str | None] = {}
    try:
        for point in points:
            try:
                tries[point] = _Try(point.module)
            except OSError as error:  # process limit reached
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
        poller = select.poll()
        poller.register(self._line, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return f"its import does not come to an end within {seconds:g} s; see what its module does when imported"
        if os.read(self._line, 1):
            return None
        return "its import ends the process; see what its module does when imported"

    def end(self) -> None:
        os.close(self._line)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has exited, with all it started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _loaded(point: metadata.EntryPoint) -> PackSpec | str:
    """Load a spec. Returns the spec, or what is wrong with it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            spec = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (third-party code: even a sys.exit() only counts as a fault)
        return f"it cannot be imported: {plain(exception_text(error), _WHY_LENGTH_MAX)}; repair it, or uninstall it"
    if not isinstance(spec, PackSpec):
        return f"its entry point names no PackSpec, but: {type(spec).__name__}; see pyoco_server.packs"
    if spec.name != point.name:
        return "the name of its PackSpec is not that of its entry point; make them the same"
    if not isinstance(spec.executor, str) or not _PLACE.fullmatch(spec.executor):
        return "its PackSpec names no executor; one has a form such as module:function"
    return _kept_in(spec)


def _kept_in(spec: PackSpec) -> PackSpec:
    """Wrap the spec's functions so that a gateway and a worker can call them safely."""
    beyond, files = _guarded(spec.beyond, Problem), _guarded(spec.files, str)

    def check(inputs: Mapping[str, Any], here: Here) -> tuple[Problem, ...]:
        """PRICED-147: accept only files of the tenant, whatever the pack's own check does."""
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
        price=_guarded_price(spec.price),
    )


def _guarded(asked: Callable[..., Any], kind: type) -> Callable[..., Any]:
    """Contain third-party code: an error fails only the one request, and its message is not disclosed."""

    @functools.wraps(asked, assigned=())
    def guarded(*arguments: Any) -> tuple[Any, ...]:
        answer: tuple[Any, ...] = _contained(lambda: tuple(asked(*arguments)))
        if not all(isinstance(item, kind) for item in answer):
            raise PackCheckFailed(f"the check of a pack returned something else than {kind.__name__}")
        return answer

    return guarded


def _guarded_price(asked: Callable[..., Any]) -> Callable[..., int]:
    @functools.wraps(asked, assigned=())
    def guarded(*arguments: Any) -> int:
        answer = _contained(lambda: asked(*arguments))
        if not isinstance(answer, int | float) or not math.isfinite(answer):
            raise PackCheckFailed("the check of a pack returned something else than a price")
        return math.ceil(answer)

    return guarded


def _contained(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (as above; its message may quote the inputs)
        raise PackCheckFailed(f"the check of a pack raised {type(error).__name__}") from None
