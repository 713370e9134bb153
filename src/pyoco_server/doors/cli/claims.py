"""Claims what a command needs exclusively before it starts anything: the data directory and the ports."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.errors import UsageError

__all__ = ["DataDir", "check_port", "claim_data_dir", "open_port"]

#: After a kill -9, the children of the previous holder need a moment to exit.
_LOCK_SECONDS = 5.0
_EXAMPLE = "example: --data-dir .pyoco-2"


@dataclass(frozen=True)
class DataDir:
    """A directory owned by this process while `lock` is open, here or in a child that inherited it."""

    path: Path
    lock: int

    def release(self) -> None:
        os.close(self.lock)


def claim_data_dir(path: Path) -> DataDir:
    """Create and lock the directory. Raises UsageError if another process holds it or it cannot be written.

    NATS inherits the lock, so that its store is never opened twice, not even right after a kill -9.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error
    deadline = time.monotonic() + _LOCK_SECONDS
    while not _locked(lock):
        holder = _holder(lock)
        if _is_alive(holder) or time.monotonic() > deadline:
            os.close(lock)
            raise UsageError(
                f"another pyoco-server (pid {holder}) uses {path}; stop it or choose --data-dir; {_EXAMPLE}"
            )
        time.sleep(0.02)
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # for example, the disk is full
        os.close(lock)
        raise _unusable(path, error) from error
    return DataDir(path.resolve(), lock)


def _unusable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"the data directory {path} cannot be used: {error.strerror}; choose another; {_EXAMPLE}")


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> int:
    text = os.pread(lock, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else 0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def open_port(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a listening socket; port 0 selects a free one. Raises UsageError that names the port and the option."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot represent
        why = getattr(error, "strerror", None) or "it is not a host name"
        raise UsageError(f"{host!r} is not an address to listen on: {why}; example: 127.0.0.1") from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(2048)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port < 65535 else 0
            problem = f"port {port} on {host} is already in use"
            message = f"{problem}; stop what uses it or choose {option}; example: {option} {other}"
        else:
            message = f"cannot listen on {host} port {port}: {error.strerror}; example: {option} 0"
        raise UsageError(message) from error
    return opened


def check_port(host: str, port: int, option: str) -> None:
    """Raise UsageError if the port is taken. Port 0 is always accepted."""
    if port:
        open_port(host, port, option).close()
