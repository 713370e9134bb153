"""Collect all facts about a deployment that the doctor's rules check."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.diagnosis.facts import (
    Account,
    Facts,
    GatewayFacts,
    MachineFacts,
    Monitor,
    Off,
    Server,
    Unknown,
    Unreachable,
    Wishes,
    Workers,
)
from pyoco_server.core.diagnosis.packs import unexecuted
from pyoco_server.core.diagnosis.priced_facts import PricedFacts
from pyoco_server.core.diagnosis.work import is_deaf
from pyoco_server.core.run import Run
from pyoco_server.logs import redact_url
from pyoco_server.ports.deployment.port import Deployment

__all__ = ["Surroundings", "examine"]

_UNREACHED = Unknown("NATS does not answer")
#: Maximum number of runs that are read, of those that were in flight on disconnected workers.
_LEFT_BEHIND_MAX = 50
#: The second read of the workers waits for their next heartbeat, this long at most.
_HEARTBEAT_SECONDS_MAX = 6.0
_NATS_PORT = 4222
#: Size of a job and of a record beyond the parts that settings limit.
_HEAD_BYTES = 128 * 1024


@dataclass(frozen=True)
class Surroundings:
    """Facts that do not come from NATS."""

    machine: MachineFacts
    #: None: not requested.
    monitor: Monitor | Unknown | None = None
    gateway: GatewayFacts | None = None
    #: None: this deployment has no priced runs.
    priced: PricedFacts | None = None


async def examine(
    deployment: Deployment,
    config: NatsBackendConfig,
    around: Surroundings,
    on_step: Callable[[str], None] = lambda _: None,
) -> Facts:
    """Read the facts; change nothing. O(streams + tags + workers + files); run records are read for three seconds at
    most.

    Each check is bounded. A check that fails yields an Unknown, and the others continue. `on_step` is called with the
    name of each step, to show progress.
    """
    on_step("NATS")
    server = await deployment.reach()
    account = await deployment.account() if isinstance(server, Server) else _UNREACHED
    if not isinstance(account, Account):
        return _without_jetstream(config, around, server, account)
    on_step("streams, queues and workers")
    streams, ahead, queue, keeper, orphans, (workers, unreadable) = await asyncio.gather(
        deployment.streams(),
        deployment.clock_ahead(),
        deployment.queue(),
        deployment.keeper(),
        deployment.orphans(),
        asyncio.gather(deployment.workers(), deployment.unreadable()),
    )
    offset = ahead if isinstance(ahead, float) else 0.0
    if isinstance(workers, Workers) and _needs_second_read(workers, time.time() - offset, config, around):
        # A worker may have been full for a long time and have a free slot only since now, or may still be loading its
        # packs: its next heartbeat shows that.
        on_step("workers, second read")
        await asyncio.sleep(min(config.worker_heartbeat_interval_sec + 1.0, _HEARTBEAT_SECONDS_MAX))
        workers = await deployment.workers()
    now = time.time() - offset
    return Facts(
        now=now,
        wishes=_wishes(config),
        server=server,
        account=account,
        streams=streams,
        clock_ahead_seconds=ahead,
        queue=queue,
        workers=workers,
        keeper=keeper,
        orphans=orphans,
        left_behind=await _left_behind(deployment, workers, now, config),
        machine=around.machine,
        monitor=around.monitor,
        gateway=around.gateway,
        priced=around.priced,
        remembered_ledger=await _remembered(deployment, around),
        unreadable=unreadable,
    )


async def _remembered(deployment: Deployment, around: Surroundings) -> str | Unknown | None:
    return None if around.priced is None else await deployment.remembered_ledger()


def _without_jetstream(
    config: NatsBackendConfig, around: Surroundings, server: Server | Unreachable, account: Off | Unknown
) -> Facts:
    return Facts(
        now=time.time(),
        wishes=_wishes(config),
        server=server,
        account=account,
        streams=(),
        clock_ahead_seconds=_UNREACHED,
        queue=_UNREACHED,
        workers=_UNREACHED,
        keeper=_UNREACHED,
        orphans=(),
        left_behind=_UNREACHED,
        machine=around.machine,
        monitor=around.monitor,
        gateway=around.gateway,
        priced=around.priced,
    )


def _needs_second_read(workers: Workers, now: float, config: NatsBackendConfig, around: Surroundings) -> bool:
    seconds = config.worker_disconnect_timeout_sec
    if any(is_deaf(record, now, seconds) for record in workers.records):
        return True
    return bool(unexecuted(around.machine.packs, around.priced, workers, now, seconds))


async def _left_behind(
    deployment: Deployment, workers: Workers | Unknown, now: float, config: NatsBackendConfig
) -> tuple[Run, ...] | Unknown:
    """Return the runs that were in flight on workers that are now disconnected, and whose records still name those
    workers."""
    if isinstance(workers, Unknown):
        return workers
    seconds = config.worker_disconnect_timeout_sec
    disconnected = [record for record in workers.records if not record.is_alive(now, seconds)]
    owners = {run_id: record.worker_id for record in disconnected for run_id in record.running}
    found = await deployment.runs(list(owners)[:_LEFT_BEHIND_MAX])
    if isinstance(found, Unknown):
        return found
    return tuple(run for run in found if not run.is_terminal and run.worker_id == owners[run.run_id])


def _wishes(config: NatsBackendConfig) -> Wishes:
    addresses = [urlsplit(part.strip()) for part in config.nats_url.split(",")]
    return Wishes(
        nats_url=redact_url(config.nats_url),
        nats_hosts=tuple(address.hostname or "" for address in addresses),
        nats_port=addresses[0].port or _NATS_PORT,
        replicas=config.jetstream_replicas,
        # A job contains a flow.yaml as JSON text, where a line break takes two bytes.
        payload_bytes=2 * config.workflow_yaml_max_bytes + config.max_run_snapshot_bytes + _HEAD_BYTES,
        work_stream=config.work_stream,
        dead_letters_stream=config.dlq_stream,
        default_tag=config.default_tag,
        ack_wait_seconds=config.consumer_ack_wait_sec,
        max_deliver=config.consumer_max_deliver,
        in_hand_max=config.consumer_max_ack_pending,
        abandon_seconds=config.abandon_after_sec,
        heartbeat_seconds=config.worker_heartbeat_interval_sec,
        disconnect_seconds=config.worker_disconnect_timeout_sec,
        retention_seconds=config.runs_retention_sec,
        wants_key=config.http_auth_mode == "api_key",
        has_pepper=bool(config.auth_pepper),
    )
