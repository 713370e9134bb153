"""HTTP clients for the deployment of a testing block: they know when a wait would never end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyoco_server.app.clients import Clients
from pyoco_server.client.aio import AsyncPyocoHttpClient
from pyoco_server.client.run_results import RunSnapshot
from pyoco_server.client.sync import PyocoHttpClient
from pyoco_server.core.states import TERMINAL
from pyoco_server.testing.transport import ADDRESS, AsyncTransport, Transport

if TYPE_CHECKING:
    from pyoco_server.testing.site import TestingSite

__all__ = ["TestingClients"]

_WAIT_SECONDS = 60.0


class _Client(PyocoHttpClient):
    def __init__(self, site: TestingSite) -> None:
        super().__init__(ADDRESS, retries=0, transport=Transport(site))
        self._site = site

    def wait_run(
        self,
        run_id: str,
        timeout_sec: float | None = None,
        *,
        patience_sec: float | None = None,
        progress: Callable[[RunSnapshot], object] | None = None,
    ) -> RunSnapshot:
        seconds = _WAIT_SECONDS if timeout_sec is None else timeout_sec
        why = self._site.begin(self._site.wait(run_id, seconds)).result()
        return _ended(self.get_run(run_id), why)

    def run_logs(self, run_id: str, follow: bool = False, **filters: Any) -> Any:
        self._site.begin(self._site.lines_stored()).result()
        return super().run_logs(run_id, follow, **filters)


class _AsyncClient(AsyncPyocoHttpClient):
    def __init__(self, site: TestingSite) -> None:
        super().__init__(ADDRESS, retries=0, transport=AsyncTransport(site))
        self._site = site

    async def wait_run(
        self,
        run_id: str,
        timeout_sec: float | None = None,
        *,
        patience_sec: float | None = None,
        progress: Callable[[RunSnapshot], object] | None = None,
    ) -> RunSnapshot:
        seconds = _WAIT_SECONDS if timeout_sec is None else timeout_sec
        why = await asyncio.wrap_future(self._site.begin(self._site.wait(run_id, seconds)))
        return _ended(await self.get_run(run_id), why)

    async def run_logs(self, run_id: str, follow: bool = False, **filters: Any) -> Any:
        await asyncio.wrap_future(self._site.begin(self._site.lines_stored()))
        async for line in super().run_logs(run_id, follow, **filters):
            yield line


def _ended(snapshot: RunSnapshot, why: str) -> RunSnapshot:
    """Raises TimeoutError."""
    if snapshot["status"] not in TERMINAL:
        raise TimeoutError(f"run {snapshot['run_id']} is still {snapshot['status']}: {why}")
    return snapshot


class TestingClients(Clients):
    def __init__(self, site: TestingSite) -> None:
        super().__init__(ADDRESS, None)
        self._site = site

    def _new(self) -> PyocoHttpClient:
        return _Client(self._site)

    def _new_of_loop(self) -> AsyncPyocoHttpClient:
        return _AsyncClient(self._site)

    def pause(self, seconds: float) -> None:
        self._site.begin(self._site.pause(seconds)).result()

    async def pause_of_loop(self, seconds: float) -> None:
        await asyncio.wrap_future(self._site.begin(self._site.pause(seconds)))
