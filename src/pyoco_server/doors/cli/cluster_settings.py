"""Selects the user's settings that `pyoco-server cluster demo` keeps: those that name no store and no credentials."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyoco_server.config import settings
from pyoco_server.config.environment import DotenvSettings
from pyoco_server.errors import SettingError

__all__ = ["own_settings", "set_aside"]

#: The prefixes of our settings, and of those that the SDKs of our stores read themselves.
_PREFIXES = ("PYOCO_", "EXEC_", "WORKER_", "CLIENT_", "CLIENTX_", "AWS_")
_NAMES = frozenset({"WORK_ROOT"})
#: Settings of appearance and resource use. All others could point to real stores, or lock out the demo.
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
_SHOWN_MAX = 5


def own_settings(variables: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Split `variables` into those the demo and its processes may use, and the names of those set aside.

    The returned variables also disable reading a dotenv file.
    """
    aside = {name for name in variables if _is_ours(name) and name not in _TAKEN}
    seen = {name: value for name, value in variables.items() if name not in aside}
    return {**seen, "PYOCO_LOAD_DOTENV": "false"}, (*_dotenv_file(variables), *sorted(aside - _DOTENV))


def _is_ours(name: str) -> bool:
    return name.startswith(_PREFIXES) or name in _NAMES


def _dotenv_file(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the dotenv file that would have been read."""
    load, path = settings(DotenvSettings)
    try:
        is_read = bool(load.read(variables.get(load.variable, "true")))
    except SettingError:  # an invalid value: the file is reported, and not used either
        is_read = True
    file = variables.get(path.variable, str(path.default))
    return (file,) if is_read and Path(file).is_file() else ()


@contextlib.contextmanager
def set_aside() -> Iterator[str | None]:
    """Restrict this process's environment to `own_settings` for the block.

    Everything that reads settings in this process, and every child process, sees only these. Yields a message for the
    user if settings were set aside.
    """
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
    more = f" and {len(aside) - _SHOWN_MAX} more" if len(aside) > _SHOWN_MAX else ""
    return f"the demo uses its own stores and settings; ignored: {', '.join(aside[:_SHOWN_MAX])}{more}"
