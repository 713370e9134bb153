"""Which settings of its user `pyoco-server cluster demo` takes along: those that name no place and open no door."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyoco_server.config import DotenvSettings, settings
from pyoco_server.errors import SettingError

__all__ = ["own_settings", "set_aside"]

#: Ours begin so, and those that the SDKs of our stores read by themselves.
_PREFIXES = ("PYOCO_", "EXEC_", "WORKER_", "CLIENT_", "CLIENTX_", "AWS_")
_NAMES = frozenset({"WORK_ROOT"})
#: How it looks and how much it takes. All else could lead to stores that somebody works with, and lock out the demo.
_TAKEN = frozenset(
    {
        "PYOCO_LOG_LEVEL",
        "PYOCO_LOG_FORMAT",
        "PYOCO_LOG_UTC",
        "PYOCO_LOG_INCLUDE_TRACEBACK",
        "PYOCO_DASHBOARD_LANG",
        "PYOCO_NATS_SYNC",
        "PYOCO_PRICED_ENABLED",
        "PYOCO_WORKER_SLOTS",
        "PYOCO_CUTE",
        "PYOCO_DISCOVERY",
        "EXEC_QUEUE_MAX_BYTES",
        "WORKER_CPU_CAP",
        "WORKER_CPU_WAIT_SEC",
    }
)
_DOTENV = frozenset(each.variable for each in settings(DotenvSettings))
_TOLD = 5


def own_settings(variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What the demo and its processes may see of `variables`, and the names of what they may not. No dotenv file is
    read by anybody who is given the former."""
    aside = {name for name in variables if _is_ours(name) and name not in _TAKEN}
    seen = {name: value for name, value in variables.items() if name not in aside}
    return {**seen, "PYOCO_LOAD_DOTENV": "false"}, (*_dotenv_file(variables), *sorted(aside - _DOTENV))


def _is_ours(name: str) -> bool:
    return name.startswith(_PREFIXES) or name in _NAMES


def _dotenv_file(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The one that would have been read."""
    load, path = settings(DotenvSettings)
    try:
        is_read = bool(load.read(variables.get(load.variable, "true")))
    except SettingError:  # nothing else of it is used either
        is_read = True
    file = variables.get(path.variable, str(path.default))
    return (file,) if is_read and Path(file).is_file() else ()


@contextlib.contextmanager
def set_aside() -> Iterator[str | None]:
    """For the block, the variables of this process are those of `own_settings`: whatever reads settings in it, and
    whatever is started from it, sees no others. Yields a line for the person, if there is something to tell."""
    before = dict(os.environ)
    seen, aside = own_settings(before)
    _become(seen)
    try:
        yield _line(aside)
    finally:
        _become(before)


def _become(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _line(aside: tuple[str, ...]) -> str | None:
    if not aside:
        return None
    more = f" and {len(aside) - _TOLD} more" if len(aside) > _TOLD else ""
    return f"a demonstration has stores and settings of its own; left aside: {', '.join(aside[:_TOLD])}{more}"
