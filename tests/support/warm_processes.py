"""Processes of Python programs that need not import what they are made of: forked from one that has.

A command of ours spends a second of a processor with imports, and pip half of one. In a test of what it does after
that, they prove nothing. It is a process like any other: with an environment, a folder, limits and signals of its own.
What differs: `/proc/PID/environ` is not its own, and its memory is that of its parent at first. Who looks at these, or
at how a command starts, asks for the fixture `cold_processes`.

    process = begun([sys.executable, "-m", "pyoco_server.doors.cli.keeper"], env=settings, stdout=log, stderr=log)
    process = await started(["-m", "pip", "--version"], env={}, cwd=folder, stdout=PIPE, stderr=STDOUT)

The process that all others are forked from is `warm_source.py`, started by the first test that asks. It ends with the
test process, and so does whatever was forked from it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import functools
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["WarmPopen", "WarmProcess", "begun", "prepare", "ran", "started"]

#: Images and runners have others with such names, as PYTHON_VERSION, which Python does not read.
_OF_PYTHON = re.compile(r"PYTHON[A-Z]+")
#: Taken from what the process was given. Any other variable of Python's own is for a new interpreter.
_KNOWN_VARIABLES = {
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONNOUSERSITE",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONUTF8",
}
_BIN = Path(sys.executable).parent
_SOURCE = Path(__file__).with_name("warm_source.py")
_ASK_BYTES_MAX = 1 << 20
#: Of a command line, as `ps` shows it.
_TITLE_BYTES_MAX = 4000
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]

#: One question at a time: its answer is the next on the line.
_asking = threading.Lock()
#: Set by the fixture `cold_processes`.
is_cold = False
#: Whether the process that others are forked from imports the product before the first fork.
is_preloaded = True


# For who knows Popen


class WarmPopen(subprocess.Popen[Any]):
    """A Popen in everything but how its process comes to be. Takes no `preexec_fn`, `pass_fds` or `user`."""

    _told = -1

    def _execute_child(self, *words: Any) -> None:
        """Called by Popen's constructor, once it knows what the streams are."""
        arguments, _, preexec, _, passed, cwd, env, _, _, _, *ends = words[:16]
        assert preexec is None
        assert not passed
        has_own_session = bool(words[21])
        ask = _ask(arguments, env, cwd, has_own_session=has_own_session)
        assert ask is not None
        streams = [own if own != -1 else usual for usual, own in enumerate((ends[0], ends[3], ends[5]))]
        self._told, end = os.pipe()
        try:
            self.pid = _send(ask, [*streams, end])
            self._child_created = True
        finally:
            os.close(end)
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def __del__(self) -> None:
        super().__del__()
        if self.returncode is not None and self._told != -1:  # not sooner: another thread may have waited at it
            os.close(self._told)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None:
            self._look(0.0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None and not self._look(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _look(self, seconds: float | None) -> bool:
        """Whether it has ended."""
        ready = select.poll()
        ready.register(self._told, select.POLLIN)
        if not ready.poll(None if seconds is None else 1000 * seconds):
            return False
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                # No answer: the process that it was forked from has exited, and this one with it.
                self.returncode = int(os.read(self._told, 64) or -signal.SIGKILL)
        return True


def begun(command: Sequence[str | Path], *, text: bool = False, **options: Any) -> subprocess.Popen[Any]:
    """A command of ours, a script or a module of Python: `[sys.executable, "-m", module, …]`, `[sys.executable,
    "script.py", …]`, `[sys.executable, "-c", code, …]`, `[".venv/bin/pyoco-server", …]`. Whatever else it is, and when
    somebody wants it cold, it is started as ever. Ends with the test process. Options are those of Popen."""
    words = [os.fspath(word) for word in command]
    is_linux = sys.platform == "linux"
    if is_cold or not is_linux or _ask(words, options.get("env"), None) is None:
        is_main = threading.current_thread() is threading.main_thread()  # the child ends with the thread that made it
        die = _die_with_parent if is_main and is_linux else None
        return subprocess.Popen(words, text=text, preexec_fn=die, **options)  # noqa: PLW1509  (it takes no lock)
    return WarmPopen(words, text=text, **options)


def ran(command: Sequence[str | Path], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """As subprocess.run with `capture_output=True, text=True, check=False`."""
    pipe = subprocess.PIPE
    with begun(command, text=True, stdout=pipe, stderr=pipe, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


# For who knows asyncio


class WarmProcess:
    """As much of `asyncio.subprocess.Process` as tests and our own code use."""

    def __init__(self, pid: int, status: asyncio.Future[int], readers: Sequence[asyncio.StreamReader | None]) -> None:
        self.pid = pid
        self.stdout, self.stderr = readers
        self._status = status

    @property
    def returncode(self) -> int | None:
        return self._status.result() if self._status.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    async def communicate(self) -> tuple[bytes | None, bytes | None]:
        out, err = await asyncio.gather(_rest(self.stdout), _rest(self.stderr))
        await self.wait()
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        if not self._status.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def started(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | Path,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.PIPE,
    stderr: int = asyncio.subprocess.PIPE,
) -> WarmProcess:
    """`python -m module …`, in a session of its own: the arguments begin with `-m`. A stream is a file descriptor,
    PIPE, DEVNULL or STDOUT."""
    ask = _ask([sys.executable, *arguments], env, cwd, has_own_session=True)
    assert ask is not None
    readers: list[asyncio.StreamReader | None] = []
    with contextlib.ExitStack() as ours:
        theirs = [_nothing(ours) if stdin == asyncio.subprocess.DEVNULL else stdin]
        for wanted in (stdout, stderr):
            if wanted == asyncio.subprocess.PIPE:
                reader, end = await _pipe(ours)
                readers.append(reader)
                theirs.append(end)
            else:
                readers.append(None)
                theirs.append(theirs[1] if wanted == asyncio.subprocess.STDOUT else wanted)
        told, end = await _pipe(ours)
        pid = _send(ask, [*theirs, end])
    status: asyncio.Future[int] = asyncio.ensure_future(_status(told))
    return WarmProcess(pid, status, readers)


async def _pipe(ours: contextlib.ExitStack) -> tuple[asyncio.StreamReader, int]:
    """A reader, and the end for the writer: ours is closed with the block."""
    out, into = os.pipe()
    ours.callback(os.close, into)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(out, "rb", 0))
    return reader, into


def _nothing(ours: contextlib.ExitStack) -> int:
    opened = os.open(os.devnull, os.O_RDONLY)
    ours.callback(os.close, opened)
    return opened


async def _status(told: asyncio.StreamReader) -> int:
    return int(await told.read() or -signal.SIGKILL)


async def _rest(reader: asyncio.StreamReader | None) -> bytes | None:
    return None if reader is None else await reader.read()


# The line to the process that all others are forked from


def _ask(
    command: Sequence[str], env: Mapping[str, str] | None, cwd: str | Path | None, *, has_own_session: bool = False
) -> dict[str, Any] | None:
    """What is to become of a fork. None: it takes a new interpreter, or none at all."""
    env = os.environ if env is None else env
    if any(_OF_PYTHON.fullmatch(name) and name not in _KNOWN_VARIABLES for name in env):
        return None
    program, *rest = command
    if program == sys.executable and rest and rest[0] in ("-m", "-c"):
        kind, argv = rest[0], rest[1:]
    elif program == sys.executable and rest and rest[0].endswith(".py"):
        kind, argv = "script", rest
    elif Path(program).parent == _BIN and Path(program).name.startswith("pyoco-"):
        kind, argv = "script", list(command)
    else:
        return None
    return {
        "kind": kind,
        "argv": argv,
        "title": list(command),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "has_own_session": has_own_session,
        "limits": [(limit, resource.getrlimit(limit)) for limit in _LIMITS],
        "umask": _umask(),
    }


def _umask() -> int:
    """To ask the system for it is to change it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)


def _send(ask: dict[str, Any], fds: list[int]) -> int:
    """The pid."""
    with _asking:
        line = _kindred()
        socket.send_fds(line, [json.dumps(ask).encode()], fds)
        pid = line.recv(8)
    assert pid, "the process that others are forked from is gone"
    return int.from_bytes(pid, "big")


def prepare() -> None:
    """So that the first request need not wait for the imports."""
    with _asking:
        _kindred()


@functools.cache
def _kindred() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYOCO_", "PYTHON"))}
    environment |= {"PYTHONUTF8": "1"}
    command = [sys.executable, str(_SOURCE), str(theirs.fileno()), str(int(is_preloaded)), "." * _TITLE_BYTES_MAX]
    process = subprocess.Popen(
        command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=Path("/")
    )
    theirs.close()
    atexit.register(_end, ours, process)
    return ours


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    process.wait()
