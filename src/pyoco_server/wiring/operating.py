"""What operator commands and the doctor open. Nothing is created, except for the bucket of API keys."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from pyoco_server.config import (
    GridConfig,
    NatsBackendConfig,
    PricedConfig,
)
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.backups.jetstream import JetStreamStreams
from pyoco_server.ports.backups.ledger_file import SqliteLedgerFile
from pyoco_server.ports.deployment.jetstream import PATIENCE, JetStreamDeployment
from pyoco_server.ports.keys.jetstream import JetStreamKeys
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.replicas.jetstream import JetStreamReplicas
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.wiring.backend import WORKER_PATIENCE, linked, runs_in

__all__ = ["backup_folder", "ledger_file", "open_backups", "open_deployment", "open_keys", "open_replicas", "open_runs"]


@contextlib.asynccontextmanager
async def open_deployment(
    config: NatsBackendConfig, priced: PricedConfig | None = None, grid: GridConfig | None = None
) -> AsyncIterator[JetStreamDeployment]:
    """Open a read-only view of a deployment: creates nothing, and does not raise if NATS is unreachable."""
    link = Link(PATIENCE)
    buckets = (config.wheel_object_store_bucket, config.workflow_object_store_bucket, config.outputs_bucket)
    stores = {bucket: JetStreamObjects(link, bucket) for bucket in buckets}
    try:
        known = JetStreamKnownLedger(link, config)
        yield JetStreamDeployment(
            link, config, runs_in(link, config), stores, priced=priced, grid=grid, known_ledger=known
        )
    finally:
        await link.close()


@contextlib.asynccontextmanager
async def open_keys(config: NatsBackendConfig) -> AsyncIterator[JetStreamKeys]:
    """Open the key store for the admin command. Raises Unavailable."""
    async with linked(config, "pyoco-admin", Patience()) as link:
        await ensure(link, [item for item in resources_of(config) if item.name == f"KV_{config.auth_kv_bucket}"])
        keys = JetStreamKeys(link, config.auth_kv_bucket)
        await keys.start()
        try:
            yield keys
        finally:
            await keys.stop()


@contextlib.asynccontextmanager
async def open_runs(config: NatsBackendConfig) -> AsyncIterator[JetStreamRuns]:
    """Open the records of runs for an operator command. Creates nothing. Raises Unavailable."""
    async with linked(config, "pyoco-admin", Patience()) as link:
        yield runs_in(link, config)


@contextlib.asynccontextmanager
async def open_backups(
    config: NatsBackendConfig, priced: PricedConfig | None = None, grid: GridConfig | None = None
) -> AsyncIterator[JetStreamStreams]:
    """Open all data stored in NATS for backup or restore.

    With the settings of priced runs and of programs, their data too. Creates nothing. Raises Unavailable.
    """
    async with linked(config, "pyoco-backup", Patience()) as link:
        yield JetStreamStreams(link, config, priced, grid)


@contextlib.asynccontextmanager
async def open_replicas(
    config: NatsBackendConfig, priced: PricedConfig | None = None, grid: GridConfig | None = None
) -> AsyncIterator[JetStreamReplicas]:
    """Open the view of replica counts. Creates nothing. Raises Unavailable."""
    async with linked(config, "pyoco-replicas", WORKER_PATIENCE) as link:
        yield JetStreamReplicas(link, config, priced, grid)


def ledger_file(config: NatsBackendConfig, priced: PricedConfig) -> SqliteLedgerFile | None:
    """Return the SQLite file of the ledger, or None if the ledger is not a file."""
    from pyoco_server.ports.ledger.connect import address, file_of

    path = file_of(address(priced.ledger_address(config.data_dir)))
    return SqliteLedgerFile(path) if path is not None else None


def backup_folder(path: Path) -> FolderArchive:
    return FolderArchive(path)
