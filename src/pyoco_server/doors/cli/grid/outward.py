"""How a command reaches doors: their addresses, and the TLS options of clients, workers and routers (GRID-166)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from pyoco_server.discovery import FRAMES, Need
from pyoco_server.doors.cli.local_server import find_door
from pyoco_server.errors import UsageError
from pyoco_server.frames.tls import client_context

__all__ = ["local_door", "split_door", "tls_to_doors"]


def split_door(arguments: tuple[str, ...], *, has_door: bool) -> tuple[tuple[str, int], tuple[str, ...]]:
    """Return host and port of the door, and the remaining arguments. Without a door: that of the server on this
    machine.

    Raises UsageError, SeveralServers, SettingError.
    """
    if not has_door:
        return local_door(), arguments
    host, port = arguments[0], arguments[1] if len(arguments) > 1 else ""
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise UsageError(f"PORT {port[:40]!r} is not a number from 1 to 65535")
    return (host, int(port)), arguments[2:]


def local_door(need: Need = FRAMES) -> tuple[str, int]:
    """Return the door of a server on this machine. Raises UsageError if there is none; SeveralServers, SettingError."""
    found = find_door(need)
    if found is None:
        raise UsageError("no server with a door runs on this machine: start one with `pyoco-server up --frames-port 0`")
    return found.host, found.port


def tls_to_doors(given: Mapping[str, Any], option: str = "--tls") -> ssl.SSLContext | None:
    """Return the TLS context for the flag `option` and the files `option`-ca, -cert and -key. None: none is given, so
    no TLS.

    An empty file name counts as given: an unset shell variable must not turn TLS off. Reads the files. Raises
    UsageError.
    """
    name = option.removeprefix("--").replace("-", "_")
    files = {each: given[f"{name}_{each}"] for each in ("ca", "cert", "key")}
    if not given[name] and all(each is None for each in files.values()):
        return None
    return client_context(**files, option=option)
