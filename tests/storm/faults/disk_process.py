"""The keeper of one small file system: mounts it, makes it slow when told to, and takes it away when whoever started
this process is gone, however that happened. Linux, root.

Run as a script: the kind (`ext4` or `tmpfs`), the folder to mount on, the file of an ext4 (ignored for the other), the
megabytes. It says `ready` or why not; then it hears `slow SECONDS` and `heal`, a line each, until its input ends.

A slow disk is one whose file system is frozen again and again (FIFREEZE): whoever writes or syncs waits in the kernel,
uninterruptibly, as for a disk that does not answer; whoever reads does not wait. Nobody but this process may hold it
frozen: a frozen file system with nobody to thaw it keeps its writers for ever, kill -9 or not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import sys
import time
from pathlib import Path

_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878
#: Of each turn, the part in which writes get through.
_THAWED_PART = 0.1
_THAWED_SECONDS_MIN = 0.01


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)


def _mount(kind: str, folder: str, image: str, megabytes: str) -> None:
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "tmpfs", folder)
        return
    with Path(image).open("wb") as file:
        file.truncate(int(megabytes) * 2**20)
    # No journal: its 4 MB are a good part of so small a disk, and no power is ever lost here.
    _run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", image)
    _run("mount", "-o", "loop,noatime", image, folder)


def _unmount(folder: str, image: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _run("umount", "-l", folder)  # lazily: a process may still have a file open
    with contextlib.suppress(OSError):
        Path(image).unlink()


class _Frost:
    """Freezes and thaws in turn, while `seconds` is above zero."""

    def __init__(self, folder: str) -> None:
        self._directory = os.open(folder, os.O_RDONLY)
        self.seconds = 0.0
        self._is_frozen = False
        self._until = 0.0

    def turn(self) -> float | None:
        """What is due. Returns the seconds until the next turn; None: there is none."""
        if not self.seconds:
            self.thaw()
            return None
        now = time.monotonic()
        if now >= self._until:
            if self._is_frozen:
                self.thaw()
                self._until = now + max(_THAWED_SECONDS_MIN, self.seconds * _THAWED_PART)
            else:
                fcntl.ioctl(self._directory, _FIFREEZE, 0)
                self._is_frozen = True
                self._until = time.monotonic() + self.seconds
        return max(0.0, self._until - time.monotonic())

    def thaw(self) -> None:
        if self._is_frozen:
            with contextlib.suppress(OSError):  # another process has
                fcntl.ioctl(self._directory, _FITHAW, 0)
            self._is_frozen = False

    def end(self) -> None:
        self.thaw()
        os.close(self._directory)


def _obey(frost: _Frost) -> None:
    """Until the input ends."""
    heard = b""
    while True:
        wait = frost.turn()
        if not select.select([0], [], [], wait)[0]:
            continue
        data = os.read(0, 4096)
        if not data:
            return
        *lines, heard = (heard + data).split(b"\n")
        for line in lines:
            word, _, amount = line.decode().partition(" ")
            frost.seconds = float(amount) if word == "slow" else 0.0


def main() -> None:
    kind, folder, image, megabytes = sys.argv[1:]
    try:
        _mount(kind, folder, image, megabytes)
    except (OSError, subprocess.SubprocessError) as error:
        _unmount(folder, image)
        print(f"not here: {error}", flush=True)
        return
    try:
        frost = _Frost(folder)
        try:
            print("ready", flush=True)
            _obey(frost)
        finally:
            frost.end()
    finally:
        _unmount(folder, image)


if __name__ == "__main__":
    main()
