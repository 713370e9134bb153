"""Find the server on this machine that a command or a client means when nobody has named one (FIND-4 to FIND-9).

A server in the current directory comes first, then the only one that this user runs. Clients import this module, so it
needs the standard library, `errors` and `server_file` only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.discovery.server_file import (
    DEFAULT_DATA_DIR,
    FILE_NAME,
    LocalServer,
    flag,
    is_enabled,
    is_running,
    read,
    state_files,
)
from pyoco_server.errors import SeveralServers

__all__ = ["FRAMES", "GROUPS", "HTTP", "NATS", "Found", "Need", "find", "is_quiet"]


@dataclass(frozen=True)
class Need:
    """The address that the caller connects to, and how a person names another one."""

    #: The member of the discovery file.
    member: str
    option: str

    def address(self, server: LocalServer) -> str:
        """Empty where the server has no such address."""
        if self.member == "nats":
            return server.nats_url
        if self.member == "http":
            return server.http[0] if server.http else ""
        return server.frames or ""

    def choosing(self, address: str) -> str:
        """What to write on the command line."""
        if self.member != "frames":
            return f"{self.option} {address}"
        host, _, port = address.rpartition(":")
        return address if self.option == "HOST:PORT" else f"{host.strip('[]')} {port}"


HTTP = Need("http", "--server")
NATS = Need("nats", "--nats-url")
FRAMES = Need("frames", "HOST PORT")
GROUPS = Need("frames", "HOST:PORT")


@dataclass(frozen=True)
class Found:
    """A running server, and the file that says where it is."""

    server: LocalServer
    path: Path
    #: The one that the caller needs.
    address: str

    @property
    def line(self) -> str:
        """FIND-7"""
        return f"using {self.address} of {self.place}"

    @property
    def place(self) -> str:
        return f"{self.server.data_dir} (pid {self.server.pid})"

    @property
    def origin(self) -> str:
        """FIND-10"""
        return f"discovery {self.path}"


def find(
    need: Need, *, data_dir: str | None = None, known: str | None = None, environ: Mapping[str, str] | None = None
) -> Found | None:
    """The server that is meant, or None. Reads one file, or those of all servers of this user; sends nothing.

    `data_dir`: the data directory that somebody has named, if any. `known`: the address that somebody has named; only a
    server with this address is found, so that its data directory is not combined with another server.
    Raises SeveralServers, SettingError.
    """
    variables = os.environ if environ is None else environ
    if not is_enabled(variables):
        return None
    here = _usable(Path(data_dir or DEFAULT_DATA_DIR, FILE_NAME), need, known)
    if here is not None:
        return here
    every = [found for path in state_files(variables) if (found := _usable(path, need, known)) is not None]
    # A server with a data directory of another name, in the current directory.
    beside = [found for found in every if Path(found.server.data_dir).parent == _current_folder()]
    chosen = _distinct(beside or every)
    if len(chosen) > 1:
        raise SeveralServers(_told(chosen, need))
    return chosen[0] if chosen else None


def _distinct(candidates: Sequence[Found]) -> list[Found]:
    """A door beside a server has a file of its own, with the same NATS and the same data directory: there is nothing to
    choose between them, and the one that started first stands for both."""
    first: dict[tuple[str, str], Found] = {}
    for each in sorted(candidates, key=lambda found: found.server.started_at):
        first.setdefault((each.address, each.server.data_dir), each)
    return list(first.values())


def _usable(path: Path, need: Need, known: str | None) -> Found | None:
    server = read(path)
    if server is None or not is_running(server):
        return None
    address = need.address(server)
    if not address or (known is not None and not _is_same(known, server, need)):
        return None
    return Found(server, path.absolute(), address)


def _is_same(known: str, server: LocalServer, need: Need) -> bool:
    """Whether at least one of the addresses that somebody has named is one of this server."""
    addresses = server.nats if need.member == "nats" else (need.address(server),)
    return not {_place(each) for each in known.split(",")}.isdisjoint(map(_place, addresses))


def _place(address: str) -> str:
    """Host and port."""
    return address.strip().rstrip("/").rpartition("://")[2].rpartition("@")[2]


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # it was removed
        return None


def _told(candidates: Sequence[Found], need: Need) -> str:
    """FIND-8: each line begins with the option, ready to be pasted."""
    head = f"{len(candidates)} local servers are running; choose one with {need.option}:"
    lines = [
        f"  {need.choosing(each.address)} of {each.server.data_dir} (pid {each.server.pid})" for each in candidates
    ]
    return "\n".join([head, *lines])


def is_quiet(environ: Mapping[str, str]) -> bool:
    """FIND-7: whether the line about the server that is used is left out. Raises SettingError."""
    return flag(environ, "PYOCO_QUIET", default=False)
