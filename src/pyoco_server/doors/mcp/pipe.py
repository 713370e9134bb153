"""The tools over stdin and stdout, until stdin closes or a signal comes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import anyio
import mcp_types as types
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from pyoco_server.client.connection import Connection
from pyoco_server.doors.cli.signals import StopSignal
from pyoco_server.doors.mcp.calls import PATIENCE, Send
from pyoco_server.doors.mcp.messages import PARSE_ERROR, misfit, readable_id
from pyoco_server.doors.mcp.outside import Outside
from pyoco_server.doors.mcp.server import build_server
from pyoco_server.logs import get_logger

__all__ = ["offer"]

log = get_logger(__name__)

#: For calls under way when the agent closes our input; and for an agent that does not read what it is still sent.
_GRACE_SECONDS = 1.5
#: Until a line has got from here to its tool, and an answer from there to stdout.
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
            await way.leave(0)
            await asyncio.sleep(_ON_THE_WAY_SECONDS)
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
    @contextmanager
    def way_of(_: object) -> Iterator[tuple[Send, str | None]]:
        with way.call():
            yield way, None

    server = build_server(way_of, PATIENCE.lasting(patience_seconds))
    # Not sys.stdin's own buffer: Python closes that at its end, and aborts while our thread reads from it.
    lines = _Lines(open(os.dup(sys.stdin.fileno()), "rb"), way)  # noqa: ASYNC230, PTH123, SIM115 - a descriptor, for good
    # The SDK keeps whatever else prints away from stdout.
    async with stdio_server(stdin=cast(Any, lines)) as (read, write):
        lines.answer.set_result(write.send)
        await server.run(read, write, server.create_initialization_options())


class _Lines:
    """stdin, line by line, read by a thread that nobody waits for: a read cannot be cancelled."""

    def __init__(self, stream: BinaryIO, way: Outside) -> None:
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        #: Lines that may still be read before one was taken.
        self._room = threading.Semaphore(_LINES_MAX)
        self._loop, self._stream, self._way = asyncio.get_running_loop(), stream, way
        #: How to answer what no server can be asked.
        self.answer: asyncio.Future[Callable[[SessionMessage], Awaitable[None]]] = self._loop.create_future()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._stream:
                self._pass_on(line)
            self._pass_on(None)
        except (OSError, ValueError, RuntimeError):  # stdin is broken, or the loop is gone: we are leaving
            return

    def _pass_on(self, line: bytes | None) -> None:
        """Waits for room. Raises RuntimeError once the loop is closed; nothing is left half done then."""
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    def __aiter__(self) -> _Lines:
        return self

    async def __anext__(self) -> str:
        while True:
            line = await self._lines.get()
            self._room.release()
            if line is None:
                await self._settled()
                raise StopAsyncIteration
            if not line.strip():
                continue
            wrong = _misfit(line)
            if wrong is None:
                return line.decode()
            await self._refuse(line, *wrong)

    async def _refuse(self, line: bytes, code: int, message: str) -> None:
        """Without an answer the agent would wait for ever. Nothing of the line is told or logged but its id."""
        log.warning("a message was refused", code=code, reason=message, bytes=len(line))
        error = types.ErrorData(code=code, message=message)
        answer = await self.answer
        await answer(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=readable_id(line), error=error)))

    async def _settled(self) -> None:
        """What was asked last may still be answered: nobody would hear of it otherwise."""
        await asyncio.sleep(_ON_THE_WAY_SECONDS)
        await self._way.leave(_GRACE_SECONDS)
        await asyncio.sleep(_ON_THE_WAY_SECONDS)


def _misfit(line: bytes) -> tuple[int, str] | None:
    """What is wrong with a line: code and words. The SDK passes over what it cannot read, and takes a request with an
    id that is none for a notification."""
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return misfit(line) or (PARSE_ERROR, "the message cannot be read")
    if isinstance(message, types.JSONRPCNotification) and "id" in json.loads(line):
        return misfit(line)
    return None
