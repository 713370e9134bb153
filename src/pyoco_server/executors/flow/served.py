"""Loads the app that a host serves (APP-9)."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Protocol, runtime_checkable

from pyoco.core.models import Flow

from pyoco_server.core.offered_flow import OfferedFlow
from pyoco_server.errors import AppNotLoaded, UsageError

__all__ = ["ServedApp", "load_app", "offers_of"]


@runtime_checkable
class ServedApp(Protocol):
    """What a host needs of an app."""

    @property
    def name(self) -> str: ...

    def resolve(self, flow_name: str) -> Flow:
        """Return the flow. Raises KeyError."""

    def offered(self) -> tuple[OfferedFlow, ...]:
        """Return what the app offers, by name. Raises whatever building a graph raises."""


def load_app(spec: str) -> ServedApp:
    """Import the app named by `module:app`. The current directory is importable. Raises AppNotLoaded, UsageError."""
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"the app {spec!r} must be module:app, for example my_flows:app")
    if "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        target: object = importlib.import_module(module_name)
    except BaseException as error:  # third-party code: its import may raise anything, and call sys.exit()
        raise AppNotLoaded(f"{spec}: {_place_of(error)}") from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            raise AppNotLoaded(f"{spec}: module {module_name!r} has no {attribute!r}")
        target = getattr(target, part)
    if not isinstance(target, ServedApp):
        raise AppNotLoaded(f"{spec}: {attribute!r} is a {type(target).__name__}, not an App")
    return target


def offers_of(app: ServedApp) -> tuple[OfferedFlow, ...]:
    """Return what the app offers. Raises AppNotLoaded if a graph cannot be built."""
    try:
        return app.offered()
    except Exception as error:  # functions of flows may raise anything
        raise AppNotLoaded(f"app {app.name!r}: {_place_of(error)}") from error


def _place_of(error: BaseException) -> str:
    """Return the error in one line, with the line of code that raised it."""
    text = "".join(traceback.format_exception_only(error)).strip().replace("\n", " | ")
    if isinstance(error, SyntaxError):  # its text has the place
        return text
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if len(frames) < 2:  # the first is ours
        return text
    place = frames[-1]
    return f"{text} ({place.filename}, line {place.lineno}: {place.line})"
