"""The id of the deployment's ledger in a KV bucket of JetStream."""

from __future__ import annotations

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.known_ledger.port import Remembered
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.dependency import dependency_errors
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import PRICED_BUCKET, priced_bucket_resources

__all__ = ["JetStreamKnownLedger"]

_ID_BYTES_MAX = 100


class JetStreamKnownLedger:
    """The key contains the name of the bucket of runs: several deployments may share one NATS account with different
    names."""

    def __init__(self, link: Link, config: NatsBackendConfig) -> None:
        self._link, self._replicas = link, config.jetstream_replicas
        self._bucket = Bucket(link, PRICED_BUCKET)
        self._key = f"ledger.{config.runs_kv_bucket}"

    async def start(self) -> None:
        with dependency_errors("create the bucket that names the ledger"):
            await ensure(self._link, priced_bucket_resources(self._replicas))

    async def get(self) -> Remembered:
        with dependency_errors("read which ledger this deployment uses"):
            entry = await self._bucket.get(self._key)
        if entry is None or entry.value is None:
            return Remembered(None, entry.revision if entry is not None else 0)
        # A value that is no ledger id is returned as it is, so that it can be shown.
        return Remembered(entry.value[:_ID_BYTES_MAX].decode(errors="replace"), entry.revision)

    async def remember(self, ledger_id: str, over: Remembered) -> bool:
        with dependency_errors("remember which ledger this deployment uses"):
            return await self._bucket.write(self._key, ledger_id.encode(), over.revision) is not None

    async def forget(self, over: Remembered) -> bool:
        with dependency_errors("forget which ledger this deployment uses"):
            return await self._bucket.delete(self._key, over.revision)
