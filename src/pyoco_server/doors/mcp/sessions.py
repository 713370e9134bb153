"""The MCP SDK's part of `/mcp/`: begun by the first agent, ended with the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp

from pyoco_server.core.priced.constants import REQUEST_BODY_MAX_BYTES
from pyoco_server.doors.mcp.forms import FILE_BASE64_LENGTH_MAX

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from pyoco_server.doors.mcp.calls import Send

__all__ = ["BODY_BYTES_MAX", "Sessions"]

#: A call that brings a file, and what is said of the file.
BODY_BYTES_MAX: Final = FILE_BASE64_LENGTH_MAX + REQUEST_BODY_MAX_BYTES


class Sessions:
    """Without state: each request stands alone, and any gateway can answer the next one.

    The SDK takes half a second to import, and memory; a gateway that no agent uses pays neither. What it runs in is
    owned by a task of its own: who enters a task group has to be the one who leaves it.
    """

    def __init__(self) -> None:
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._app: ASGIApp | None = None

    async def app(self) -> ASGIApp:
        """What answers requests. The first caller waits until it is there."""
        async with self._gate:
            if self._app is None:
                await asyncio.to_thread(_load)
                begun: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._run(begun), name="mcp sessions")
                self._app = await begun
            return self._app

    async def stop(self) -> None:
        """Returns once nothing runs. It does not begin again."""
        self._stopping.set()
        async with self._gate:
            if self._task is not None:
                await self._task
                self._task = None

    async def _run(self, begun: asyncio.Future[ASGIApp]) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: PLC0415 - see above

        from pyoco_server.doors.mcp.server import build_server  # noqa: PLC0415

        # Who may ask, from which page and how much is decided before: by the guard, and in `http.py`.
        manager = StreamableHTTPSessionManager(
            build_server(_way_of), json_response=True, stateless=True, max_request_body_size=BODY_BYTES_MAX
        )
        async with manager.run():
            begun.set_result(manager.handle_request)
            await self._stopping.wait()


def _load() -> None:
    """In a thread: everybody else is served meanwhile."""
    import mcp.server.streamable_http_manager  # noqa: F401, PLC0415

    import pyoco_server.doors.mcp.server  # noqa: F401, PLC0415


@contextmanager
def _way_of(context: ServerRequestContext[Any, Any]) -> Iterator[tuple[Send, str | None]]:
    from pyoco_server.doors.http.v1.visit import TRACE_ID  # noqa: PLC0415
    from pyoco_server.doors.mcp.inside import Inside  # noqa: PLC0415

    request = context.request
    assert request is not None  # this transport always has one
    told = request.headers.get("x-trace-id", "")
    yield Inside(request), told if TRACE_ID.fullmatch(told) else None
