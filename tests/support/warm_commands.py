"""Commands of ours for a shell, as processes that need not import what they are made of (see `warm_processes`).

In the shell they are functions, which go before whatever is on the path: each passes its words, variables, folder and
streams on to the test process, waits, and leaves with the code of the process that was begun there. Where a shell does
not know them, as after `xargs`, the command itself is run.

    with WarmCommands() as commands:
        subprocess.run(["bash", "-c", f"{commands.functions}\\npyoco-client list | head -1"])
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from support.warm_processes import begun

__all__ = ["WarmCommands"]

_BIN = Path(sys.executable).parent
#: Those that end by themselves.
_NAMES = ("pyoco-client", "pyoco-grid", "pyoco-server", "pyoco-server-admin")
_ASK_BYTES_MAX = 1 << 20
#: What a function of the shell runs. It knows nothing of ours, so it is quick.
_PASS_ON = """
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(sys.argv[1])
ask = json.dumps({"command": sys.argv[2:], "env": dict(os.environ), "cwd": os.getcwd()})
socket.send_fds(line, [ask.encode()], [0, 1, 2])
told = line.recv(64)
sys.exit(int(told) if told else 255)
"""


class WarmCommands:
    """Begins what shells ask for, until it is left."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        #: Lines for a shell. None of them: it runs the commands themselves, as where there are no warm processes.
        self.functions = ""

    def __enter__(self) -> WarmCommands:
        if sys.platform == "linux":
            folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="pyoco"))  # its path has to be short
            door = self._open.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            door.bind(f"{folder}/door")
            door.listen()
            thread = threading.Thread(target=_serve, args=[door])
            thread.start()
            self._open.callback(thread.join)
            self._open.callback(door.shutdown, socket.SHUT_RDWR)  # no more connections
            quick = [sys.executable, "-I", "-S", "-c", _PASS_ON, f"{folder}/door"]
            lines = [f'{name}() {{ {shlex.join([*quick, str(_BIN / name)])} "$@"; }}' for name in _NAMES]
            self.functions = "\n".join(lines)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _serve(door: socket.socket) -> None:
    while True:
        try:
            line, _ = door.accept()
        except OSError:  # it was shut
            return
        threading.Thread(target=_run, args=[line], daemon=True).start()


def _run(line: socket.socket) -> None:
    """One command, up to its end or that of its caller."""
    with line:
        data, streams, _, _ = socket.recv_fds(line, _ASK_BYTES_MAX, 3)
        if not data:
            return
        ask = json.loads(data)
        try:
            given, out, err = streams
            process = begun(ask["command"], env=ask["env"], cwd=ask["cwd"], stdin=given, stdout=out, stderr=err)
        finally:
            for stream in streams:
                os.close(stream)
        threading.Thread(target=_kill_when_left, args=[line.dup(), process], daemon=True).start()
        code = process.wait()
        with contextlib.suppress(BrokenPipeError):  # its caller has exited
            line.send(str(code if code >= 0 else 128 - code).encode())


def _kill_when_left(line: socket.socket, process: subprocess.Popen[Any]) -> None:
    with line:
        line.recv(1)  # nothing comes but the end
        if process.poll() is None:
            process.kill()
