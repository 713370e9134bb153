"""Send a result in pieces. It is held in memory, so its transfer slot is kept until the last byte is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pyoco_server.doors.http.byte_stream import ByteStream
from pyoco_server.doors.http.v1.visit import visit_of

__all__ = ["in_pieces"]

_PIECE_BYTES: Final = 256 * 1024


def in_pieces(data: bytes, headers: Mapping[str, str], done: Callable[[], None]) -> Response:
    """Return a response that sends the data in pieces.

    It is cut off if the client does not accept a piece in time, so slow clients cannot occupy memory. `done` is called
    once the data is released. The headers must contain its length.
    """
    return _Pieces(data[:_PIECE_BYTES], _rest(data), headers, done)


class _Pieces(ByteStream):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The path of a result works as a credential, so the log gets a redacted path (PRICED-171).
        await super().__call__({**scope, "path": visit_of(scope).logged_path}, receive, send)


async def _rest(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(_PIECE_BYTES, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
