"""The tools over stdin and stdout, until stdin closes or a signal arrives."""

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

#: Time limit for calls in flight after the agent has closed our input, and for an agent that stops reading.
_GRACE_SECONDS = 1.5
#: Time for a line to reach its tool, and for a response to reach stdout.
_TRANSIT_SECONDS = 0.05
_LINES_MAX = 64


async def offer(connection: Connection, patience_seconds: float) -> int:
    """Serve the agent that started this process. Returns the exit code."""
    stop = StopSignal(at_once=lambda: os._exit(1))
    async with Outside(connection) as way:
        talking = asyncio.create_task(_talk(way, patience_seconds), name="talk")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({talking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not talking.done():
            # A blocked write cannot be cancelled.
            leaving = threading.Timer(_GRACE_SECONDS, os._exit, (stop.exit_code,))
            leaving.daemon = True
            leaving.start()
            await way.leave(0)
            await asyncio.sleep(_TRANSIT_SECONDS)
            talking.cancel()
        await _finish(talking)
    return stop.exit_code


async def _finish(talking: asyncio.Task[None]) -> None:
    """Wait for the task, and ignore errors caused by the shutdown or by an agent that has exited.

    A task that is stopped in the middle of something fails; there is no agent left to report it to.
    """
    is_cancelled = bool(talking.cancelling())
    await asyncio.wait({talking})
    if talking.cancelled():
        return
    error = talking.exception()
    if error is None or is_cancelled:
        return
    try:
        raise error
    except* (BrokenPipeError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        log.info("agent disconnected")


async def _talk(way: Outside, patience_seconds: float) -> None:
    @contextmanager
    def way_of(_: object) -> Iterator[tuple[Send, str | None]]:
        with way.call():
            yield way, None

    server = build_server(way_of, PATIENCE.lasting(patience_seconds))
    # Not sys.stdin's own buffer: Python closes it at exit, and aborts while our thread reads from it.
    lines = _Lines(open(os.dup(sys.stdin.fileno()), "rb"), way)  # noqa: ASYNC230, PTH123, SIM115 - a descriptor, for good
    # The SDK keeps other output away from stdout.
    async with stdio_server(stdin=cast(Any, lines)) as (read, write):
        lines.answer.set_result(write.send)
        await server.run(read, write, server.create_initialization_options())


class _Lines:
    """stdin, line by line, read by a daemon thread, because a read cannot be cancelled."""

    def __init__(self, stream: BinaryIO, way: Outside) -> None:
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        #: Limits the number of unprocessed lines.
        self._room = threading.Semaphore(_LINES_MAX)
        self._loop, self._stream, self._way = asyncio.get_running_loop(), stream, way
        #: Sends responses that do not come from the server.
        self.answer: asyncio.Future[Callable[[SessionMessage], Awaitable[None]]] = self._loop.create_future()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._stream:
                self._pass_on(line)
            self._pass_on(None)
        except (OSError, ValueError, RuntimeError):  # stdin is broken or the loop is closed: the process is exiting
            return

    def _pass_on(self, line: bytes | None) -> None:
        """Enqueue a line; blocks while the queue is full. Raises RuntimeError once the loop is closed."""
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
        """Answer an invalid line; the agent would wait forever otherwise. Only its id is repeated."""
        log.warning("message refused", code=code, reason=message, bytes=len(line))
        error = types.ErrorData(code=code, message=message)
        answer = await self.answer
        await answer(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=readable_id(line), error=error)))

    async def _settled(self) -> None:
        """Let the last requests finish before the stream ends; otherwise their responses would be lost."""
        await asyncio.sleep(_TRANSIT_SECONDS)
        await self._way.leave(_GRACE_SECONDS)
        await asyncio.sleep(_TRANSIT_SECONDS)


def _misfit(line: bytes) -> tuple[int, str] | None:
    """Return the error code and text of an invalid line, or None if it is valid.

    The SDK ignores lines that it cannot parse, and treats a request with an invalid id as a notification.
    """
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        return misfit(line) or (PARSE_ERROR, "the message cannot be read")
    if isinstance(message, types.JSONRPCNotification) and "id" in json.loads(line):
        return misfit(line)
    return None
