"""The tools over stdin and stdout, until stdin closes or a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from typing import Any, BinaryIO, cast

import anyio
from mcp.server.stdio import stdio_server

from pyoco_server.doors.cli.client.connection import Connection
from pyoco_server.doors.cli.signals import StopSignal
from pyoco_server.doors.mcp.calls import PATIENCE
from pyoco_server.doors.mcp.outside import Outside
from pyoco_server.doors.mcp.server import build_server
from pyoco_server.logs import get_logger

__all__ = ["offer"]

log = get_logger(__name__)

#: For calls under way when the agent closes our input; and for an agent that does not read what it is still sent.
_GRACE_SECONDS = 1.5
#: Until a line has got from here to its tool.
_ON_THE_WAY_SECONDS = 0.05
_LINES_MAX = 64


async def offer(connection: Connection, patience_seconds: float) -> int:
    """Serves the one agent that started us. Returns the exit code."""
    stop = StopSignal(at_once=lambda: os._exit(1))
    async with Outside(connection) as way:
        talking = asyncio.create_task(_talk(way, patience_seconds), name="talk")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({talking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not talking.done():
            # A write that nobody reads cannot be cancelled.
            leaving = threading.Timer(_GRACE_SECONDS, os._exit, (stop.exit_code,))
            leaving.daemon = True
            leaving.start()
            talking.cancel()
        await _end_of(talking)
    return stop.exit_code


async def _end_of(talking: asyncio.Task[None]) -> None:
    """Whoever is told to stop in the middle of something complains; nobody is left to hear it. So does who writes to
    an agent that has gone."""
    is_told_to = bool(talking.cancelling())
    await asyncio.wait({talking})
    if talking.cancelled():
        return
    error = talking.exception()
    if error is None or is_told_to:
        return
    try:
        raise error
    except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        log.info("the agent does not listen any more")


async def _talk(way: Outside, patience_seconds: float) -> None:
    server = build_server(lambda _: (way, None), PATIENCE.lasting(patience_seconds))
    # Not sys.stdin's own buffer: Python closes that at its end, and aborts while our thread reads from it.
    lines = _Lines(open(os.dup(sys.stdin.fileno()), "rb"), way)  # noqa: ASYNC230, PTH123, SIM115 - a descriptor, for good
    # The SDK keeps whatever else prints away from stdout.
    async with stdio_server(stdin=cast(Any, lines)) as (read, write):
        await server.run(read, write, server.create_initialization_options())


class _Lines:
    """stdin, line by line, read by a thread that nobody waits for: a read cannot be cancelled."""

    def __init__(self, stream: BinaryIO, way: Outside) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        #: Lines that may still be read before one was taken.
        self._room = threading.Semaphore(_LINES_MAX)
        self._loop, self._stream, self._way = asyncio.get_running_loop(), stream, way
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._stream:
                self._pass_on(line.decode("utf-8", "replace"))
            self._pass_on(None)
        except (OSError, ValueError, RuntimeError):  # stdin is broken, or the loop is gone: we are leaving
            return

    def _pass_on(self, line: str | None) -> None:
        """Waits for room. Raises RuntimeError once the loop is closed; nothing is left half done then."""
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        self._room.release()
        if line is None:
            await self._settled()
            raise StopAsyncIteration
        return line

    async def _settled(self) -> None:
        """What was asked last may still be answered: nobody would hear of it otherwise."""
        await asyncio.sleep(_ON_THE_WAY_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._way.is_idle.wait()
        await asyncio.sleep(_ON_THE_WAY_SECONDS)
