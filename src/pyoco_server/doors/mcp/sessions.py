"""The MCP SDK's part of `/mcp/`: started by the first agent, stopped with the gateway."""

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

#: A call that uploads a file, plus its other arguments.
BODY_BYTES_MAX: Final = FILE_BASE64_LENGTH_MAX + REQUEST_BODY_MAX_BYTES


class Sessions:
    """Stateless: requests are independent, and any gateway can serve the next one.

    The SDK takes half a second to import, and memory; a gateway without agents pays neither. The SDK's task group
    belongs to a task of its own, because it must be entered and exited by the same task.
    """

    def __init__(self) -> None:
        self._gate = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._app: ASGIApp | None = None

    async def app(self) -> ASGIApp:
        """Return the ASGI app. The first caller waits until it is loaded."""
        async with self._gate:
            if self._app is None:
                await asyncio.to_thread(_load)
                begun: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._run(begun), name="mcp sessions")
                self._app = await begun
            return self._app

    async def stop(self) -> None:
        """Return once nothing is running. Cannot be restarted."""
        self._stopping.set()
        async with self._gate:
            if self._task is not None:
                await self._task
                self._task = None

    async def _run(self, begun: asyncio.Future[ASGIApp]) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from pyoco_server.doors.mcp.server import build_server

        # The guard and `http.py` have already checked the caller, the origin and the size.
        manager = StreamableHTTPSessionManager(
            build_server(_way_of), json_response=True, stateless=True, max_request_body_size=BODY_BYTES_MAX
        )
        async with manager.run():
            begun.set_result(manager.handle_request)
            await self._stopping.wait()


def _load() -> None:
    """Import in a thread, so that other requests are served meanwhile."""
    import mcp.server.streamable_http_manager  # noqa: F401

    import pyoco_server.doors.mcp.server  # noqa: F401


@contextmanager
def _way_of(context: ServerRequestContext[Any, Any]) -> Iterator[tuple[Send, str | None]]:
    from pyoco_server.core.priced.submission import TRACE_ID
    from pyoco_server.doors.mcp.inside import Inside

    request = context.request
    assert request is not None  # set by this transport on every request
    given = request.headers.get("x-trace-id", "")
    yield Inside(request), given if TRACE_ID.fullmatch(given) else None
