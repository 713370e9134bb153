"""The HTTP clients of an app: made at first use, one for threads and one for each event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyoco_server.client.aio import AsyncPyocoHttpClient
    from pyoco_server.client.sync import PyocoHttpClient

__all__ = ["Clients"]


class Clients:
    """Finds server and key as `pyoco-client` does, unless they are given (FIND-4)."""

    def __init__(self, server: str | None, api_key: str | None) -> None:
        self._server, self._api_key = server, api_key
        self._lock = threading.Lock()
        self._blocking: PyocoHttpClient | None = None
        self._by_loop: dict[asyncio.AbstractEventLoop, AsyncPyocoHttpClient] = {}

    def blocking(self) -> PyocoHttpClient:
        """Return the client for callers without an event loop. Raises UsageError, SeveralServers."""
        with self._lock:
            if self._blocking is None:
                self._blocking = self._new()
            return self._blocking

    def _new(self) -> PyocoHttpClient:
        from pyoco_server.client.sync import PyocoHttpClient  # noqa: PLC0415 - not for hosts

        return PyocoHttpClient(self._server, self._api_key)

    def _new_of_loop(self) -> AsyncPyocoHttpClient:
        from pyoco_server.client.aio import AsyncPyocoHttpClient  # noqa: PLC0415 - not for hosts

        return AsyncPyocoHttpClient(self._server, self._api_key)

    def pause(self, seconds: float) -> None:
        """Wait between two reads. Raises TimeoutError if no further read could show anything new."""
        time.sleep(seconds)

    async def pause_of_loop(self, seconds: float) -> None:
        """As `pause`."""
        await asyncio.sleep(seconds)

    def of_loop(self) -> AsyncPyocoHttpClient:
        """Return the client of the running event loop. Raises as `blocking`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            client = self._by_loop.get(loop)
            if client is None:
                for closed in [each for each in self._by_loop if each.is_closed()]:  # their connections are of no use
                    del self._by_loop[closed]
                client = self._by_loop[loop] = self._new_of_loop()
            return client

    def close(self) -> None:
        """Close the connections of callers without an event loop. The next use opens new ones."""
        with self._lock:
            client, self._blocking = self._blocking, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next use opens new ones."""
        with self._lock:
            client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()
