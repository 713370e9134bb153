"""The root of job directories: whether it may be used, and what dead predecessors have left there (GRID-92, GRID-95).

Processes are found by what they were started with: whoever has a job's directory as its HOME is of that job, also one
that has left its group. So nothing has to be written down for each start, and no number that is used again misleads.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Callable, Iterator

from pyoco_server.errors import UsageError
from pyoco_server.executors.program.directory import remove
from pyoco_server.executors.program.owners import OWNER, is_gone, owner_of
from pyoco_server.executors.program.removal import remove_tree
from pyoco_server.executors.program.settings import PACKED

__all__ = ["check_root", "clean_root", "end_processes"]

_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_ATTEMPT = re.compile(r"a[0-9]+", re.ASCII)
#: Whoever is killed may have started another in the meantime.
_ROUNDS_MAX = 10
_ROUND_SECONDS = 0.05
_OLD_SECONDS = 90_000.0


def check_root(root: str) -> None:
    """Make the root if need be. Raises UsageError when it is a link, another user's, or writable by others."""
    try:
        os.makedirs(root, 0o700, exist_ok=True)
        about = os.lstat(root)
    except OSError as error:
        raise UsageError(f"WORK_ROOT={root} cannot be made: {error.strerror}") from error
    problem = None
    if stat.S_ISLNK(about.st_mode):
        problem = "is a symbolic link"
    elif not stat.S_ISDIR(about.st_mode):
        problem = "is no directory"
    elif about.st_uid != os.geteuid():
        problem = "belongs to another user"
    elif about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = "is writable by others"
    elif not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        problem = "cannot be written to"
    if problem is not None:
        raise UsageError(f"WORK_ROOT={root} {problem}; example: WORK_ROOT=/var/lib/pyoco-jobs, made with mode 0700")


def clean_root(root: str, tell: Callable[[str, OSError], None]) -> int:
    """End the processes and remove the directories whose owner is gone. Returns how many directories that were.

    What cannot be removed is told, and stays. O(processes + directories).
    """
    places = [path for path in _attempts(root) if is_gone(owner_of(path), _changed_at(path))]
    end_processes(places)
    for path in places:
        try:
            remove(path)
        except OSError as error:
            tell(path, error)
    for folder in _folders(f"{root}/{PACKED}"):
        path = f"{root}/{PACKED}/{folder}"
        if is_gone(folder, _changed_at(path)):
            try:
                remove_tree(path)
            except OSError as error:
                tell(path, error)
    return len(places)


def end_processes(places: list[str]) -> None:
    """Kill whoever was started in one of these directories of attempts. O(processes), ten times at most."""
    if not places:
        return
    homes = {b"HOME=" + os.fsencode(path) for path in places}
    for _ in range(_ROUNDS_MAX):
        found = False
        for pid in _processes():
            found |= _end(pid, homes)
        if not found:
            return
        time.sleep(_ROUND_SECONDS)


def _end(pid: int, homes: set[bytes]) -> bool:
    """Kill it if it is one of those. The descriptor names the process, whatever its number is used for later."""
    if homes.isdisjoint(_environment(pid)):
        return False
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if homes.isdisjoint(_environment(pid)):
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
        return True
    return False


def _environment(pid: int) -> list[bytes]:
    """What it was started with; nothing when it is gone, or another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _processes() -> Iterator[int]:
    own = os.getpid()
    for name in _folders("/proc"):
        if name.isdecimal() and int(name) != own:
            yield int(name)


def _attempts(root: str) -> Iterator[str]:
    for job in _folders(root):
        if not _JOB.fullmatch(job):
            continue
        attempts = _folders(f"{root}/{job}")
        yield from (f"{root}/{job}/{name}" for name in attempts if _ATTEMPT.fullmatch(name))
        if not attempts and time.time() - _changed_at(f"{root}/{job}") > 1:
            _remove_empty(f"{root}/{job}")


def _remove_empty(job: str) -> None:
    """The directory of a job without attempts, in which a crash may have left names of owners."""
    with contextlib.suppress(OSError):
        for name in os.listdir(job):
            if name.endswith(OWNER) and _ATTEMPT.fullmatch(name.removesuffix(OWNER)):
                os.unlink(f"{job}/{name}")
        os.rmdir(job)


def _folders(path: str) -> list[str]:
    """The names of the directories in it. Raises nothing: what cannot be read is not ours to tidy."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except PermissionError:
        # A program took the rights on its job's directory. Once it is old it is given back, for the next start.
        with contextlib.suppress(OSError):
            if time.time() - _changed_at(path) > _OLD_SECONDS:
                os.chmod(path, stat.S_IRWXU)
        return []
    except OSError:
        return []


def _changed_at(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return time.time()
