"""The last answer on a connection whose client is still sending."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ["Lingering"]

#: So much of a body that was refused is still read, and for so long.
BYTES_MAX: Final = 64 * 1024 * 1024
SECONDS_MAX: Final = 1.0


class Lingering(Response):
    """A refusal that comes before the body has come: it goes out at once, and then the connection is closed.

    Not in the same moment: whoever still sends would get a reset, and many clients drop the answer with it. So what
    comes is read and dropped for a while. Who never stops sending is cut off, and a body of gigabytes is not swallowed.
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
    """Until the body ends, the client leaves, or it is too much."""
    size = 0
    while size <= BYTES_MAX:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            return
        size += len(message.get("body", b""))
