"""Assembles the adapters of programs, for `wiring/backend.py`."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.ports.acl.jetstream import JetStreamAcl
from pyoco_server.ports.door_records.jetstream import JetStreamDoorRecords
from pyoco_server.ports.nats.grid_resources import (
    ACL_BUCKET,
    CLIENTS_BUCKET,
    DOORS_BUCKET,
    LANES_BUCKET,
    ROUTES_BUCKET,
    SLOTS_BUCKET,
    ensure_grid,
)
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.program_events.jetstream import JetStreamEvents
from pyoco_server.ports.program_queue.jetstream import JetStreamProgramQueue
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.routes.jetstream import JetStreamRoutes
from pyoco_server.ports.slots.jetstream import JetStreamSlots
from pyoco_server.ports.wakeups.nats import NatsWakeups

__all__ = ["open_programs"]


@contextlib.asynccontextmanager
async def open_programs(
    config: NatsBackendConfig,
    grid: GridConfig,
    link: Link,
    clock: Callable[[], float],
    chance: Callable[[], float] = random.random,
) -> AsyncIterator[Programs]:
    """Create missing resources, and keep lanes, slots, doors and ACL cached in memory for the duration of the block.

    Raises DeploymentRefused, Unavailable.
    """
    await ensure_grid(link, config, grid)
    # The state of programs also depends on records, dead letters and slots, so their replicas are reported too.
    others = (f"KV_{config.runs_kv_bucket}", config.dlq_stream, f"KV_{SLOTS_BUCKET}")
    programs = Programs(
        config=grid,
        queue=JetStreamProgramQueue(link, grid.exec_stream, LANES_BUCKET, config.consumer_ack_wait_sec, clock, others),
        slots=JetStreamSlots(link, SLOTS_BUCKET, CLIENTS_BUCKET),
        doors=JetStreamDoorRecords(link, DOORS_BUCKET, clock),
        acl=JetStreamAcl(link, ACL_BUCKET),
        routes=JetStreamRoutes(link, ROUTES_BUCKET),
        events=JetStreamEvents(link, grid.exec_events_stream, is_kept=grid.exec_events),
        wakeups=NatsWakeups(link),
        artifacts=JetStreamObjects(link, grid.exec_artifacts_bucket),
        chance=chance,
    )
    followed = (programs.queue, programs.slots, programs.doors, programs.acl)
    try:
        await asyncio.gather(*(each.start() for each in followed))
        yield programs
    finally:
        await asyncio.gather(*(each.stop() for each in followed))
