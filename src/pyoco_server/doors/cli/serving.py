"""A gateway that a command of ours has started, as seen from outside."""

from __future__ import annotations

import asyncio
import json

from pyoco_server.errors import Unavailable

__all__ = ["Serving"]

#: A gateway reads its index of runs first, and there may be millions.
_READY_SECONDS = 600.0


class Serving:
    """Asks it whether it is ready, and remembers that it was."""

    def __init__(self, host: str, port: int) -> None:
        self.address = f"http://{host}:{port}"
        self._host, self._port = host.strip("[]"), port
        self.ready = asyncio.Event()

    async def until_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not await self._is_ready():  # noqa: ASYNC110 - another process; there is nothing to wait for
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise Unavailable(f"the gateway was not ready within {_READY_SECONDS:.0f} s") from None
        self.ready.set()

    async def is_stuck(self) -> bool:
        """Whether it says that NATS writes nothing until it is restarted. False, too, when it says nothing."""
        _, _, body = (await self._ask_ready()).partition(b"\r\n\r\n")
        try:
            return json.loads(body).get("stuck") is True
        except (ValueError, AttributeError):
            return False

    async def _is_ready(self) -> bool:
        return (await self._ask_ready()).split(maxsplit=2)[1:2] == [b"200"]

    async def _ask_ready(self) -> bytes:
        """Its whole answer; nothing when there is none."""
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
