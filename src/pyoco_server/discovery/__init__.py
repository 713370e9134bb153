"""Find the local server to use when none is configured (FIND-4 to FIND-9).

A server of the current directory comes first, then the only one that this user runs. Clients import this module, so it
depends only on the standard library, `errors` and `server_file`.
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

__all__ = ["FRAMES", "GROUPS", "HTTP", "NATS", "FoundServer", "Need", "find", "find_in", "is_quiet"]


@dataclass(frozen=True)
class Need:
    """The kind of address that the caller needs, and the option that selects it explicitly."""

    #: The field of the discovery file.
    member: str
    option: str

    def address(self, server: LocalServer) -> str:
        """Return the address, or "" if the server has none of this kind."""
        if self.member == "nats":
            return server.nats_url
        if self.member == "http":
            return server.http[0] if server.http else ""
        return server.frames or ""

    def choosing(self, address: str) -> str:
        """Return the command-line text that selects this address."""
        if self.member != "frames":
            return f"{self.option} {address}"
        host, _, port = address.rpartition(":")
        return address if self.option == "HOST:PORT" else f"{host.strip('[]')} {port}"


HTTP = Need("http", "--server")
NATS = Need("nats", "--nats-url")
FRAMES = Need("frames", "HOST PORT")
GROUPS = Need("frames", "HOST:PORT")


@dataclass(frozen=True)
class FoundServer:
    """A running server and its discovery file."""

    server: LocalServer
    path: Path
    #: The address of the kind that the caller needs.
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
) -> FoundServer | None:
    """Return the server to use, or None. Reads one file, or those of all servers of this user; sends nothing.

    `data_dir` is the explicitly configured data directory, if any. `known` is the explicitly configured address, if
    any; it restricts the search to the server with this address, so that its data directory is not combined with
    another server. Raises SeveralServers, SettingError.
    """
    variables = os.environ if environ is None else environ
    if not is_enabled(variables):
        return None
    here = _usable(Path(data_dir or DEFAULT_DATA_DIR, FILE_NAME), need, known)
    if here is not None:
        return here
    every = [found for path in state_files(variables) if (found := _usable(path, need, known)) is not None]
    # A server in the current directory whose data directory has a different name.
    beside = [found for found in every if Path(found.server.data_dir).parent == _current_folder()]
    chosen = _distinct(beside or every)
    if len(chosen) > 1:
        raise SeveralServers(_choices(chosen, need))
    return chosen[0] if chosen else None


def find_in(data_dir: str, need: Need, environ: Mapping[str, str] | None = None) -> FoundServer | None:
    """Return the server of exactly this data directory, or None, for callers without data of their own.

    To them, a named data directory is the name of a server: while that server is stopped, no other one takes its place
    (FIND-4).
    """
    variables = os.environ if environ is None else environ
    if not is_enabled(variables):
        return None
    folder = Path(data_dir)
    for path in (folder / FILE_NAME, *state_files(variables)):
        found = _usable(path, need, None)
        if found is not None and Path(found.server.data_dir).resolve() == folder.resolve():
            return found
    return None


def _distinct(candidates: Sequence[FoundServer]) -> list[FoundServer]:
    """Drop duplicates.

    A door next to a server has its own file with the same NATS and the same data directory: the two are equivalent, and
    the one that started first is returned.
    """
    first: dict[tuple[str, str], FoundServer] = {}
    for each in sorted(candidates, key=lambda found: found.server.started_at):
        first.setdefault((each.address, each.server.data_dir), each)
    return list(first.values())


def _usable(path: Path, need: Need, known: str | None) -> FoundServer | None:
    server = read(path)
    if server is None or not is_running(server):
        return None
    address = need.address(server)
    if not address or (known is not None and not _is_same(known, server, need)):
        return None
    return FoundServer(server, path.absolute(), address)


def _is_same(known: str, server: LocalServer, need: Need) -> bool:
    """Return whether at least one of the configured addresses belongs to this server."""
    addresses = server.nats if need.member == "nats" else (need.address(server),)
    return not {_place(each) for each in known.split(",")}.isdisjoint(map(_place, addresses))


def _place(address: str) -> str:
    """Return host and port."""
    return address.strip().rstrip("/").rpartition("://")[2].rpartition("@")[2]


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # the directory was removed
        return None


def _choices(candidates: Sequence[FoundServer], need: Need) -> str:
    """FIND-8: each line begins with the option, ready to copy."""
    head = f"{len(candidates)} local servers are running; choose one with {need.option}:"
    lines = [
        f"  {need.choosing(each.address)} of {each.server.data_dir} (pid {each.server.pid})" for each in candidates
    ]
    return "\n".join([head, *lines])


def is_quiet(environ: Mapping[str, str]) -> bool:
    """FIND-7: return whether to suppress the line about the server in use. Raises SettingError."""
    return flag(environ, "PYOCO_QUIET", default=False)
