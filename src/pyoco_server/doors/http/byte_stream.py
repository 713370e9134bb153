"""Many bytes of a known length, sent as they are read."""

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

#: A client takes a chunk within this time, or is cut off.
_SEND_SECONDS = 30.0
#: Until the server has noticed that the connection is gone.
_LAST_SECONDS = 1.0


class ByteStream(Response):
    """Sends chunk after chunk; the next one is read when the client has taken the one before.

    Who leaves ends the reading, and so does who does not read. When the chunks end in an error the connection is cut:
    fewer bytes than announced have been sent, and nobody takes that for the whole.
    """

    media_type = "application/octet-stream"

    def __init__(
        self, first: bytes, rest: AsyncGenerator[bytes, None], headers: Mapping[str, str], done: Callable[[], None]
    ) -> None:
        """`done` is called when nothing is read any more."""
        super().__init__(headers=headers)
        self._first, self._rest, self._done = first, rest, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_until_left(receive), name="ByteStream")
        try:
            async with contextlib.aclosing(self._rest):
                if not await self._sent_all(send, leaving):
                    await _cut(scope, leaving)
        except PyocoError as error:
            log.error("a download was cut off", path=scope["path"], error=error)
            await _cut(scope, leaving)
        except asyncio.CancelledError:
            if not _is_stopping(scope):
                raise
            log.info("a download was cut off: the gateway stops", path=scope["path"])
            await _cut(scope, leaving)
        finally:
            leaving.cancel()
            self._done()

    async def _sent_all(self, send: Send, leaving: asyncio.Task[None]) -> bool:
        """False: the client does not read, or has left."""
        start: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            await _send(send, start)
            await _send(send, {"type": "http.response.body", "body": self._first, "more_body": True})
            async for chunk in self._rest:
                if leaving.done():
                    return False
                await _send(send, {"type": "http.response.body", "body": chunk, "more_body": True})
            await _send(send, {"type": "http.response.body", "body": b""})
        except OSError:  # a TimeoutError among them
            return False
        return True


async def _send(send: Send, message: Message) -> None:
    async with asyncio.timeout(_SEND_SECONDS):
        await send(message)


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        """A body that nobody asked for."""


async def _cut(scope: Scope, leaving: asyncio.Task[None]) -> None:
    """Hang up, and drop what was not fetched. A server that lends us no connection closes it by itself, since the
    answer is not complete."""
    transport = transport_of(scope)
    if transport is not None:
        transport.abort()
        await asyncio.wait({leaving}, timeout=_LAST_SECONDS)


def _is_stopping(scope: Scope) -> bool:
    return getattr(scope["app"].state, "stopping", False) or server_is_stopping()
