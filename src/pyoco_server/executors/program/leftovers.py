"""The root of job directories: whether it may be used, and what terminated workers have left there (GRID-92, GRID-95).

Processes are found by their initial environment (`strays.marks`): a process whose HOME is a job's directory belongs to
that job, even if it has left its process group.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator

from pyoco_server.errors import UsageError
from pyoco_server.executors.program.directory import remove
from pyoco_server.executors.program.owners import OWNER, owner_of
from pyoco_server.executors.program.removal import remove_tree
from pyoco_server.executors.program.settings import PACKED
from pyoco_server.executors.strays.marks import end_matching
from pyoco_server.executors.strays.owners import is_gone

__all__ = ["check_root", "clean_root", "end_earlier_attempts", "end_processes"]

_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_ATTEMPT = re.compile(r"a[0-9]+", re.ASCII)
_OLD_SECONDS = 90_000.0


def check_root(root: str) -> None:
    """Create the root if needed. Raises UsageError if it is a link, belongs to another user, or is writable by
    others."""
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
    """End the processes and remove the directories whose owner has exited. Returns the number of these directories.

    A directory that cannot be removed is passed to `tell` and stays. O(processes + directories).
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
    """Kill the processes that were started in one of these attempt directories. O(processes), at most ten scans."""
    if places:
        homes = {b"HOME=" + os.fsencode(path) for path in places}
        end_matching(lambda environment: not homes.isdisjoint(environment))


def end_earlier_attempts(job_id: str) -> None:
    """Kill what attempts of this job have left on this machine, if the worker that started them has exited (SAFE-6).

    Covers attempts below any WORK_ROOT. O(processes).
    """
    home = re.compile(rb"HOME=(.*/" + os.fsencode(job_id) + rb"/a[0-9]+)", re.DOTALL)

    def is_abandoned(environment: Collection[bytes]) -> bool:
        found = (home.fullmatch(variable) for variable in environment)
        place = next((os.fsdecode(each[1]) for each in found if each), None)
        return place is not None and (not os.path.isdir(place) or is_gone(owner_of(place), _changed_at(place)))

    end_matching(is_abandoned)


def _attempts(root: str) -> Iterator[str]:
    for job in _folders(root):
        if not _JOB.fullmatch(job):
            continue
        attempts = _folders(f"{root}/{job}")
        yield from (f"{root}/{job}/{name}" for name in attempts if _ATTEMPT.fullmatch(name))
        if not attempts and time.time() - _changed_at(f"{root}/{job}") > 1:
            _remove_empty(f"{root}/{job}")


def _remove_empty(job: str) -> None:
    """Remove the directory of a job without attempts, in which a crash may have left owner links."""
    with contextlib.suppress(OSError):
        for name in os.listdir(job):
            if name.endswith(OWNER) and _ATTEMPT.fullmatch(name.removesuffix(OWNER)):
                os.unlink(f"{job}/{name}")
        os.rmdir(job)


def _folders(path: str) -> list[str]:
    """Return the names of its subdirectories. Never raises: unreadable directories are not ours to clean up."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except PermissionError:
        # A program removed the permissions of its job's directory. They are restored once it is old, for the next
        # start.
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
