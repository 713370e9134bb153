"""The worker's side of a runner: the process, and the socket to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pyoco_server.executors.program.settings import RunnerSettings
from pyoco_server.executors.program.wire import READY, RunnerFrames, frame
from pyoco_server.logs import get_logger

__all__ = ["RunnerConnection"]

log = get_logger(__name__)

#: The runner receives only the variables that Python needs to start, and no secret: programs are its children, run as
#: the same user, and can read its environment.
_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
_READY_SECONDS = 30.0
#: The runner ends every program, and gives their groups two seconds to exit.
_LEAVE_SECONDS = 10.0


class RunnerConnection(asyncio.Protocol):
    """One runner. `on_message` receives each of its messages; `on_lost` is called once when it has exited."""

    def __init__(
        self, on_message: Callable[[tuple[Any, ...]], None], on_lost: Callable[[RunnerConnection], None]
    ) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._frames = RunnerFrames()
        self._transport: asyncio.WriteTransport | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._is_ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.is_open = False

    async def open(self, settings: RunnerSettings, variables: Mapping[str, str]) -> None:
        """Start the runner and return once it accepts orders. Raises OSError, after removing the process."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "pyoco_server.executors.program.runner",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={name: variables[name] for name in _VARIABLES if name in variables},
                )
            ours.setblocking(False)
            self._transport, _ = await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()  # a runner that has started detects it, and exits
            raise
        self.send(settings.to_values(), os.getpid())
        try:
            async with asyncio.timeout(_READY_SECONDS):
                is_ready = await self._is_ready
        except TimeoutError:
            is_ready = False
        if not is_ready:
            await self.close()
            raise OSError("the process that starts programs did not get ready")
        self.is_open = True

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def send(self, *message: Any) -> None:
        if self._transport is not None:
            self._transport.write(frame(*message))

    def data_received(self, data: bytes) -> None:
        for message in self._frames.feed(data):
            if message == (READY,):
                self._is_ready.set_result(True)
            else:
                self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_ready.done():
            self._is_ready.set_result(False)
        was_open, self.is_open = self.is_open, False
        if was_open:
            self._on_lost(self)

    async def close(self) -> None:
        """Make the runner end every program and exit; return when it has exited. Idempotent."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            log.error("the process that starts programs did not exit in time; killing it", pid=self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
