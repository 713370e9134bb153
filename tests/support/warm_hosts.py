"""Hosts in processes that need not import what they are made of (see `warm_processes`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.executors.host import process
from support.warm_processes import WarmProcess, prepare, started

__all__ = ["cold_hosts", "warm_hosts", "warm_hosts_of_module"]

#: Its stdin is a socket on which its lines come; what it says goes where stderr does.
_HOST = """
import os, runpy, socket, sys
module = sys.argv[1]
with socket.socket(fileno=os.dup(0)) as carrier:
    lines = socket.recv_fds(carrier, 1, 3)[1]
nothing = os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
os.close(nothing)
os.dup2(2, 1)
sys.argv = [module, *map(str, lines)]
sys.modules.pop(module, None)  # or runpy says that it is there already
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class _WarmAsyncio:
    """asyncio, as far as `executors/host/process.py` knows it; but hosts are forks."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def create_subprocess_exec(
        self, *command: str, stderr: int | None, pass_fds: tuple[int, ...], env: Mapping[str, str], **_: object
    ) -> WarmProcess:
        python, minus_m, module, *lines = command
        assert (python, minus_m, lines) == (sys.executable, "-m", [str(fd) for fd in pass_fds])
        said = os.open(os.devnull, os.O_WRONLY) if stderr == asyncio.subprocess.DEVNULL else os.dup(2)
        ours, theirs = socket.socketpair()
        try:
            with ours, theirs:
                socket.send_fds(ours, [b"x"], pass_fds)
                arguments = ["-c", _HOST, module]
                stdin = theirs.fileno()
                return await started(arguments, env=env, cwd=Path.cwd(), stdin=stdin, stdout=said, stderr=said)
        finally:
            os.close(said)


@contextlib.contextmanager
def _warm() -> Iterator[None]:
    prepare()  # a child of this process as well: tests look for new ones
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "asyncio", _WarmAsyncio())
        yield


@pytest.fixture
def cold_hosts() -> None:
    """For who looks for hosts among the children of this process, or at how one starts."""


@pytest.fixture
def warm_hosts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers have real hosts, in processes that are forked, unless a test uses `cold_hosts`."""
    with contextlib.nullcontext() if "cold_hosts" in request.fixturenames else _warm():
        yield


@pytest.fixture(scope="module")
def warm_hosts_of_module() -> Iterator[None]:
    """For hosts that several tests share."""
    with _warm():
        yield
