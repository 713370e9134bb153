"""A gateway that one of our commands has started, as seen from outside."""

from __future__ import annotations

import asyncio
import json

from pyoco_server.errors import Unavailable

__all__ = ["Serving"]

#: A gateway first loads its index of runs, which may contain millions.
_READY_SECONDS = 600.0


class Serving:
    """Polls the gateway until it is ready, and remembers that it was."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"http://{host}:{port}"
        self._host, self._port = host.strip("[]"), port
        self.ready = asyncio.Event()

    async def until_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready():  # noqa: ASYNC110 - another process; only polling works
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise Unavailable(f"the gateway was not ready within {_READY_SECONDS:.0f} s") from None
        self.ready.set()

    async def is_stuck(self) -> bool:
        """Return whether the gateway reports that NATS stores nothing until it is restarted. False if it does not
        respond."""
        _, _, body = (await self._ask_ready()).partition(b"\r\n\r\n")
        try:
            return json.loads(body).get("stuck") is True
        except (ValueError, AttributeError):
            return False

    async def _is_ready(self) -> bool:
        return (await self._ask_ready()).split(maxsplit=2)[1:2] == [b"200"]

    async def _ask_ready(self) -> bytes:
        """Return the complete response, or nothing if there is none."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return await reader.read()
        except (OSError, TimeoutError):
            return b""
        finally:
            if writer is not None:
                writer.close()
