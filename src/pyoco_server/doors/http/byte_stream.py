"""Stream a body while it is being read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from pyoco_server.doors.http.event_stream import server_is_stopping, transport_of
from pyoco_server.errors import PyocoError
from pyoco_server.logs import get_logger

__all__ = ["ByteStream"]

log = get_logger(__name__)

#: Time limit for the client to accept one chunk before the connection is cut.
_SEND_SECONDS = 30.0
#: Time limit for the server to notice the closed connection.
_LAST_SECONDS = 1.0


class ByteStream(Response):
    """Sends the body chunk by chunk; a chunk is read once the client has accepted the one before it.

    Reading stops when the client disconnects or stops reading. If reading the chunks fails, the connection is cut: the
    client received fewer bytes than announced, or no last chunk, and cannot mistake them for the complete file.
    """

    media_type = "application/octet-stream"

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        done: Callable[[], None],
        status: int = 200,
    ) -> None:
        """`done` is called once nothing is being read anymore."""
        super().__init__(headers=headers, status_code=status)
        if "Content-Length" not in headers:  # unknown: the end of the last chunk shows that the body is complete
            del self.headers["content-length"]
        self._first, self._rest, self._done = first, rest, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_until_disconnected(receive), name="ByteStream")
        try:
            async with contextlib.aclosing(self._rest):
                if not await self._sent_all(send, leaving):
                    await _cut(scope, leaving)
        except PyocoError as error:
            log.error("download aborted", path=scope["path"], error=error)
            await _cut(scope, leaving)
        except asyncio.CancelledError:
            if not _is_stopping(scope):
                raise
            log.info("download aborted: gateway is stopping", path=scope["path"])
            await _cut(scope, leaving)
        finally:
            leaving.cancel()
            self._done()

    async def _sent_all(self, send: Send, leaving: asyncio.Task[None]) -> bool:
        """Send all chunks. Returns False if the client stopped reading or disconnected."""
        start: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await _send(send, start)
            await _send(send, {"type": "http.response.body", "body": self._first, "more_body": True})
            async for chunk in self._rest:
                if leaving.done():
                    return False
                await _send(send, {"type": "http.response.body", "body": chunk, "more_body": True})
            await _send(send, {"type": "http.response.body", "body": b""})
        except OSError:  # includes TimeoutError
            return False
        return True


async def _send(send: Send, message: Message) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send(message)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        """Ignore body messages."""


async def _cut(scope: Scope, leaving: asyncio.Task[None]) -> None:
    """Abort the connection and drop unsent data.

    A server that does not expose its connection closes it by itself, because the response is incomplete.
    """
    transport = transport_of(scope)
    if transport is not None:
        transport.abort()
        await asyncio.wait({leaving}, timeout=_LAST_SECONDS)


def _is_stopping(scope: Scope) -> bool:
    return getattr(scope["app"].state, "stopping", False) or server_is_stopping()
