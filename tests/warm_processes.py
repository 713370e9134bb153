"""Processes of Python programs that need not import what they are made of: forked from one that has.

A command of ours spends half a second of a processor with imports, and so does pip. In a test of what it does after
that, they prove nothing. It is a process like any other: with a session, an environment, a folder and signals of its
own.

    process = await started(["-m", "pip", "--version"], env={}, cwd=folder, stdout=PIPE, stderr=STDOUT)

Started by the first test that asks, as `python -m warm_processes FD`, and gone with the test process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["WarmProcess", "started"]

#: Imported before anybody asks.
_MODULES = (
    "pip._internal.cli.main",
    "pip._internal.commands.install",
    "pyoco_server.doors.cli.admin",
    "pyoco_server.doors.cli.backup",
    "pyoco_server.actions.backup",
    "pyoco_server.ports.ledger.connect",
    "pyoco_server.wiring",
)
_ASK_BYTES_MAX = 1 << 20


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
    """`python -m module …`: the arguments begin with `-m`. A stream is a file descriptor, PIPE, DEVNULL or STDOUT."""
    assert arguments[0] == "-m"
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
        ask = {"argv": list(arguments[1:]), "env": dict(env), "cwd": str(cwd)}
        line = _kindred()
        socket.send_fds(line, [json.dumps(ask).encode()], [*theirs, end])
        pid = int.from_bytes(line.recv(8), "big")
    status: asyncio.Future[int] = asyncio.ensure_future(_status(told))
    return WarmProcess(pid, status, readers)


@functools.cache
def _kindred() -> socket.socket:
    """The line to the process that all others are forked from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYOCO_")}
    environment |= {"PYTHONPATH": str(Path(__file__).parent), "PYTHONUTF8": "1"}
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(
        command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL
    )
    theirs.close()
    atexit.register(_end, ours, process)
    return ours


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    process.wait()


async def _pipe(ours: contextlib.ExitStack) -> tuple[asyncio.StreamReader, int]:
    """A reader, and the end that somebody else writes to: ours is closed with the block."""
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
    return int(await told.read())


async def _rest(reader: asyncio.StreamReader | None) -> bytes | None:
    return None if reader is None else await reader.read()


# The process that has imported everything, from here on


def _serve(line: socket.socket) -> dict[str, Any]:
    """Returns in a child, with what that is to do. Ends with the test process."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    waited_for: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([line.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _bury(waited_for)
        if line.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(line, _ASK_BYTES_MAX, 4)
            if not data:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for fd in (line.detach(), woken, wake, fds[3], *waited_for.values()):
                    os.close(fd)
                return {**json.loads(data), "fds": fds[:3]}
            waited_for[pid] = fds[3]
            for fd in fds[:3]:
                os.close(fd)
            line.send(pid.to_bytes(8, "big"))


def _bury(waited_for: dict[int, int]) -> None:
    for pid in list(waited_for):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            to = waited_for.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody wants to know
                os.write(to, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(to)


def _become(ask: dict[str, Any]) -> str:
    """This process is from here on what somebody asked for. Returns the module that it is to run."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.setsid()
    for to, fd in enumerate(ask["fds"]):
        os.dup2(fd, to)
    for fd in ask["fds"]:
        os.close(fd)
    os.chdir(ask["cwd"])
    sys.path[0] = str(Path.cwd())  # as `-m` has it
    os.environ.clear()
    os.environ.update(ask["env"])
    sys.argv = ask["argv"]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", errors="backslashreplace")  # noqa: SIM115
    return str(ask["argv"][0])


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    for module in _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    module = _become(_serve(line))
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code
    if isinstance(code, int | None):
        # All that Python does at the end, but for taking everything apart that was imported.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(str(code))


if __name__ == "__main__":
    main()
