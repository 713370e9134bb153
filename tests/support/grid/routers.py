"""A router in this process, in front of doors that a test brings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyoco_server.client.frames.link import LinkSettings
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.doors.cli.claims import open_port
from pyoco_server.doors.frames.router.peer import RouterPeer
from pyoco_server.doors.frames.router.plan import RoutedGroup, RouterPlan, read_rule
from pyoco_server.doors.frames.router.router import Router, RouterContext
from pyoco_server.doors.frames.server import FrameServer
from pyoco_server.doors.frames.settings import DoorOptions
from pyoco_server.frames.addresses import Address
from pyoco_server.ports.backend import DoorBackend
from pyoco_server.ports.routes.port import Route
from pyoco_server.wiring.backend import open_door_backend
from support.grid.fake_door import QUICK
from support.grid.peers import grid_config
from support.servers import unique

__all__ = ["OpenRouter", "open_router"]


@dataclass(frozen=True)
class OpenRouter:
    router: Router
    server: FrameServer
    backend: DoorBackend
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def context(self) -> RouterContext:
        return self.router.context

    @property
    def sides(self) -> list[RouterPeer]:
        return [session.peer for session in self.router.sessions if isinstance(session.peer, RouterPeer)]

    async def route(self, job_id: str) -> Route | None:
        return await self.context.routes.find(job_id)


@contextlib.asynccontextmanager
async def open_router(
    config: NatsBackendConfig,
    groups: Mapping[str, str],
    *rules: str,
    policy: Any = "rr",
    grid: GridConfig | None = None,
    settings: LinkSettings = QUICK,
    peers: tuple[str, ...] = (),
) -> AsyncIterator[OpenRouter]:
    """`groups`: the address of a door by the group's name, as "127.0.0.1:5000|127.0.0.1:5001"."""
    grid = grid or grid_config(clientx_grace_sec=0.5)
    backends = tuple(
        RoutedGroup(name, tuple(Address.read(each) for each in doors.split("|"))) for name, doors in groups.items()
    )
    plan = RouterPlan(backends, tuple(map(read_rule, rules)), policy)
    async with open_door_backend(config, grid) as backend:
        listening = open_port("127.0.0.1", 0)
        port = int(listening.getsockname()[1])
        options = DoorOptions(door_id=unique("router"), address=f"127.0.0.1:{port}", peers=peers)
        router = Router(backend, plan, options, settings)
        server = FrameServer(listening, grid, router.serve, None, router.meter.error)
        await router.start()
        server.open()
        try:
            yield OpenRouter(router, server, backend, port)
        finally:
            server.close()
            await router.drain()
            await server.stop()
