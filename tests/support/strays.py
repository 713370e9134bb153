"""Processes that leave their process group in every way we know.

`token` is a number of seconds that is unique to a test: the command lines of its strays have it, so they are found
whatever their parents and variables are.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["COUNT", "WITH_MARK", "a_token", "alive_with", "daemon", "inherited_descriptors", "strays"]

_DAEMON = """
import os, sys
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir("/")
os.execvp("sleep", ["sleep", sys.argv[1]])
"""
#: As many processes does `start_strays` leave: `timeout` stays beside its command.
COUNT = 5
#: So many of them have the variables of the process that started them.
WITH_MARK = 4


def a_token() -> str:
    return str(random.randrange(10**8, 10**9))


def alive_with(token: str) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if token.encode() in words and words[0] in (b"sleep", b"timeout") and state not in "ZX":
            found.append(int(path.name))
    return found


def daemon(token: str) -> None:
    """In a session of its own, and without a parent."""
    subprocess.run([sys.executable, "-S", "-c", _DAEMON, token], check=True)


def start_strays(token: str) -> None:
    """Returns when all of them are there."""
    subprocess.Popen(["setsid", "sleep", token])
    subprocess.Popen(["timeout", token, "sleep", token])
    daemon(token)
    subprocess.Popen(["setsid", "env", "-i", "sleep", token])
    until = time.monotonic() + 60
    while len(alive_with(token)) < COUNT:
        assert time.monotonic() < until
        time.sleep(0.01)


def strays(token: str, note: str = "", seconds: float = 0.0) -> str:
    """With a note, the process id is in it once they are there."""
    start_strays(token)
    if note:
        Path(note + ".new").write_text(str(os.getpid()))
        Path(note + ".new").rename(note)
    time.sleep(seconds)
    return "done"


def inherited_descriptors() -> list[str]:
    """Of a process that is started here; one more is open in it, for the look."""
    look = "import os; print(*sorted(os.listdir('/proc/self/fd')))"
    ran = subprocess.run([sys.executable, "-c", look], close_fds=False, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout.split()
