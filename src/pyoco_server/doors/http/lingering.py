"""Send a refusal while the client is still sending its body."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["Lingering"]

#: Limits on how much of a refused body is still read, and for how long.
BYTES_MAX: Final = 64 * 1024 * 1024
SECONDS_MAX: Final = 1.0


class Lingering(Response):
    """A refusal sent before the body has arrived completely. The connection is closed afterwards.

    It is not closed immediately: a client that is still sending would get a connection reset, and many clients then
    discard the response. So incoming data is read and dropped for a while. A client that keeps sending is cut off, so a
    body of gigabytes is not read.
    """

    def __init__(self, answer: Response) -> None:
        self.status_code, self.body, self.background = answer.status_code, answer.body, None
        self.raw_headers = [*answer.raw_headers, (b"connection", b"close")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_MAX):
                await _drop(receive)
        await send({"type": "http.response.body", "body": b""})


async def _drop(receive: Receive) -> None:
    """Drop data until the body ends, the client disconnects, or the limit is reached."""
    size = 0
    while size <= BYTES_MAX:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        size += len(message.get("body", b""))
