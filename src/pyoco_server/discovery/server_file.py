"""The discovery file, in which a running server on this machine publishes its addresses (FIND-1 to FIND-6).

`discovery.announcement` writes it, `discovery` finds it. Clients import this module too, so it depends only on the
standard library and `errors`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyoco_server.errors import SettingError

__all__ = [
    "DEFAULT_DATA_DIR",
    "FILE_NAME",
    "FORMAT",
    "LocalServer",
    "decode",
    "encode",
    "flag",
    "is_enabled",
    "is_running",
    "read",
    "started_at",
    "state_files",
    "state_folder",
]

FORMAT = 1
FILE_NAME = "server.json"
DEFAULT_DATA_DIR = ".pyoco"

#: Start times are compared with this tolerance: clock ticks are coarse, and clocks are adjusted.
_TOLERANCE_SECONDS = 2.0
_BYTES_MAX = 64 * 1024
#: Crashed servers in containers leave files that no other machine removes.
_FILES_MAX = 1000
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, kw_only=True)
class LocalServer:
    """The content of a discovery file. It contains no secret (FIND-3)."""

    id: str
    #: `up`, `dev`, `leader` or `cluster demo`.
    command: str
    version: str
    pid: int
    #: Unix seconds. Distinguishes the process from a later one with the same pid.
    pid_started_at: float
    hostname: str
    started_at: float
    #: Addresses of gateways; empty if there is none.
    http: tuple[str, ...]
    nats: tuple[str, ...]
    #: `host:port` of a door that serves frames over TCP.
    frames: str | None
    #: Absolute path.
    data_dir: str
    auth_mode: str
    pepper_fingerprint: str

    @property
    def nats_url(self) -> str:
        """All nodes, in the format of `PYOCO_NATS_URL`."""
        return ",".join(self.nats)


def encode(server: LocalServer) -> bytes:

    return json.dumps({"format": FORMAT, **asdict(server)}, indent=1).encode() + b"\n"


def decode(content: bytes) -> LocalServer | None:
    """Return None if the file is damaged or was written by a later version."""

    try:
        document = json.loads(content)
        if not isinstance(document, dict) or type(document.get("format")) is not int or document["format"] != FORMAT:
            return None
        values = {name: check(document[name]) for name, check in _MEMBERS.items()}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return LocalServer(**values)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise TypeError
    return value


def _pid(value: object) -> int:
    if type(value) is not int or not 0 < value < 2**31:
        raise TypeError
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)


def _addresses(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_text, value))


def _path(value: object) -> str:
    if not Path(_text(value)).is_absolute():
        raise TypeError
    return _text(value)


_MEMBERS: Mapping[str, Any] = {
    "id": _text,
    "command": _text,
    "version": _text,
    "pid": _pid,
    "pid_started_at": _seconds,
    "hostname": _text,
    "started_at": _seconds,
    "http": _addresses,
    "nats": _addresses,
    "frames": lambda value: None if value is None else _text(value),
    "data_dir": _path,
    "auth_mode": _text,
    "pepper_fingerprint": _text,
}


def read(path: Path) -> LocalServer | None:
    """Return the server of this file, or None if the file does not exist or must not be trusted (FIND-6).

    Requests and keys are sent to its addresses, so it must be a regular file that the caller owns and no other user can
    write. It is checked after opening: the path could be replaced a moment later.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_own or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_size > _BYTES_MAX:
            return None
        return decode(os.read(descriptor, _BYTES_MAX))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def is_running(server: LocalServer) -> bool:
    """Return whether the process that wrote the file is still running on this machine (FIND-6)."""
    if server.hostname != os.uname().nodename:
        return False
    began = started_at(server.pid)
    return began is not None and abs(began - server.pid_started_at) <= _TOLERANCE_SECONDS


def started_at(pid: int) -> float | None:
    """Return the start time of a process in Unix seconds, or None if it is not running or a zombie."""
    if sys.platform != "linux":
        return _started_at_by_ps(pid)
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        state, ticks = fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    if state in {b"Z", b"X", b"x"}:
        return None
    booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return booted_at + ticks / os.sysconf("SC_CLK_TCK")


def _started_at_by_ps(pid: int) -> float | None:
    """For systems without /proc."""
    import subprocess  # noqa: PLC0415 - only on such machines

    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        environment = {**os.environ, "LC_ALL": "C"}
        output = subprocess.run(  # noqa: S603 - a fixed command and a number
            command, env=environment, capture_output=True, text=True, timeout=5, check=True
        ).stdout
        state, _, began = output.strip().partition(" ")
        if not state.startswith("Z"):
            return time.mktime(time.strptime(began.strip(), "%a %b %d %H:%M:%S %Y"))
    return None


def is_enabled(environ: Mapping[str, str]) -> bool:
    """FIND-9. Also False on systems without file owners and modes. Raises SettingError."""
    return os.name == "posix" and flag(environ, "PYOCO_DISCOVERY", default=True)


def flag(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Parse a boolean variable; empty counts as unset. Raises SettingError."""
    text = environ.get(name, "").strip().lower()
    if not text:
        return default
    if text not in _FLAGS:
        raise SettingError(f"{name}={text[:80]!r} must be one of {', '.join(_FLAGS)}; example: {name}=0")
    return _FLAGS[text]


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder with the files of all servers of this user, or None if the user has no home directory."""
    given = Path(environ.get("XDG_STATE_HOME", ""))
    if given.is_absolute():  # the XDG specification says to ignore relative paths
        return given / "pyoco" / "servers"
    try:
        home = Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        return None
    return home / ".local" / "state" / "pyoco" / "servers" if home.is_absolute() else None


def state_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files in that folder, by any owner, sorted by name."""
    folder = state_folder(environ)
    if folder is None:
        return []
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json")[:_FILES_MAX]
    except OSError:
        return []
