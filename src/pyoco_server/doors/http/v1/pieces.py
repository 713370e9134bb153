"""A result on its way out: in memory whole, so it has a turn until its last byte was taken."""

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
    """Who does not take a piece in time is cut off: nobody keeps a result in our memory by not reading it. `done` is
    called when nothing of it is held any more. The headers have to tell its length."""
    return _Pieces(data[:_PIECE_BYTES], _rest(data), headers, done)


class _Pieces(ByteStream):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A path may open a result to whoever reads it, and paths are told in the log (PRICED-171).
        await super().__call__({**scope, "path": visit_of(scope).logged_path}, receive, send)


async def _rest(data: bytes) -> AsyncGenerator[bytes, None]:
    for start in range(_PIECE_BYTES, len(data), _PIECE_BYTES):
        yield data[start : start + _PIECE_BYTES]
