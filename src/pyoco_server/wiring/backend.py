"""Build backends from settings."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pyoco_server.config import (
    AwsSettings,
    GridConfig,
    NatsBackendConfig,
    PricedConfig,
    grid_from_env,
    priced_from_env,
    secret_variables,
)
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.executors.capture.port import Collector
from pyoco_server.executors.flow.build import FlowBuilder
from pyoco_server.executors.flow.limits import OutputLimits
from pyoco_server.executors.flow.reader import YamlFlowFiles
from pyoco_server.executors.flow.task_tries import Pace
from pyoco_server.executors.host.limits import memory_bytes
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.host.wire import Settings
from pyoco_server.executors.paced import PacedExecutor
from pyoco_server.executors.port import Executor
from pyoco_server.executors.threads import ThreadExecutor
from pyoco_server.executors.wheels.shelf import open_shelf
from pyoco_server.loops.wheel_sync import WheelSync
from pyoco_server.ports.alarms.jetstream import JetStreamAlarms
from pyoco_server.ports.backend import Backend, DoorBackend, GatewayBackend, OperatorBackend
from pyoco_server.ports.dead_letters.jetstream import JetStreamDeadLetters
from pyoco_server.ports.dead_letters.sqlite import SqliteDeadLetterIndex
from pyoco_server.ports.index.slot import index_slot
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.keys.jetstream import JetStreamKeys
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.clock import StoreClock, open_clock
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.grid_resources import ensure_product
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import beyond_door, beyond_keeper, beyond_worker, resources_of
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.outputs.jetstream import JetStreamOutputs
from pyoco_server.ports.queue.jetstream import JetStreamQueue
from pyoco_server.ports.receipts.jetstream import JetStreamReceipts
from pyoco_server.ports.registry.jetstream import JetStreamRegistry
from pyoco_server.ports.resources.jetstream import JetStreamResources
from pyoco_server.ports.run_logs.jetstream import JetStreamRunLogs
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.schedules.jetstream import JetStreamSchedules
from pyoco_server.ports.scheduling import Scheduling
from pyoco_server.ports.wheel_files.archive import ArchiveWheelFiles
from pyoco_server.ports.wheel_history.jetstream import JetStreamWheelHistory
from pyoco_server.wiring.programs import open_programs

if TYPE_CHECKING:
    from pyoco.core.models import Flow

__all__ = [
    "WORKER_PATIENCE",
    "ensure_resources",
    "host_executor",
    "linked",
    "open_backend",
    "open_dead_letter_index",
    "open_door_backend",
    "open_gateway_backend",
    "open_index",
    "open_operator_backend",
    "open_wheel_sync",
    "paced_executor",
    "runs_in",
    "thread_executor",
    "versions",
]

#: A worker would lose its runs, so it waits longer for NATS than a caller that needs a response.
WORKER_PATIENCE = Patience(down_seconds=15.0, full_seconds=15.0)


async def ensure_resources(config: NatsBackendConfig | None = None) -> None:
    """Create every missing stream and bucket; leave existing ones unchanged (FLOW-284, FLOW-285).

    Raises Unavailable (ERR-PYOCO-0003) if NATS or JetStream cannot be used.
    """
    config = config or NatsBackendConfig.from_env()
    async with linked(config, "pyoco-setup", Patience()) as link:
        await ensure(link, resources_of(config))


@contextlib.asynccontextmanager
async def linked(config: NatsBackendConfig, name: str, patience: Patience) -> AsyncIterator[Link]:
    link = await open_link(access_of(config), name, patience)
    try:
        yield link
    finally:
        await link.close()


@contextlib.asynccontextmanager
async def _prepared(
    link: Link, config: NatsBackendConfig, grid: GridConfig | None = None, without: Collection[str] = ()
) -> AsyncIterator[StoreClock]:
    """Create the resources that the process uses, and yield the store's clock.

    Raises Unavailable, DeploymentRefused.
    """
    await ensure_product(link, config, grid, without)
    async with open_clock(link, f"KV_{config.runs_kv_bucket}") as clock:
        yield clock


class _Ids:
    """Fresh UUIDs (version 4, FLOW-36) as text.

    Random bytes are drawn for many at a time: a system call for each would release the interpreter lock each time.
    """

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def __call__(self) -> str:
        if not self._drawn:
            some = os.urandom(16 * 256)
            self._drawn = [str(uuid.UUID(bytes=some[at : at + 16], version=4)) for at in range(0, len(some), 16)]
        return self._drawn.pop()


def runs_in(link: Link, config: NatsBackendConfig) -> JetStreamRuns:
    return JetStreamRuns(link, config.runs_kv_bucket, config.max_run_snapshot_bytes, config.runs_retention_sec)


def _outputs(link: Link, config: NatsBackendConfig) -> JetStreamOutputs:
    return JetStreamOutputs(JetStreamObjects(link, config.outputs_bucket))


def _logs(link: Link, config: NatsBackendConfig) -> JetStreamRunLogs | None:
    return JetStreamRunLogs(link, config.logs_stream) if config.logs_enabled else None


def _schedules(link: Link, config: NatsBackendConfig) -> JetStreamSchedules:
    return JetStreamSchedules(link, config.schedules_kv_bucket, config.schedule_history)


@contextlib.asynccontextmanager
async def _followed(link: Link, config: NatsBackendConfig) -> AsyncIterator[Scheduling]:
    """Follow the schedules and the keys of their writers."""
    keys, schedules = JetStreamKeys(link, config.auth_kv_bucket), _schedules(link, config)
    try:
        await keys.start()
        await schedules.start()
        yield Scheduling(schedules=schedules, keys=keys)
    finally:
        await schedules.stop()
        await keys.stop()


@contextlib.asynccontextmanager
async def open_backend(
    config: NatsBackendConfig,
    name: str,
    patience: Patience = WORKER_PATIENCE,
    priced: tuple[PricedConfig, AwsSettings] | None = None,
    grid: GridConfig | None = None,
    *,
    keeps: bool = False,
) -> AsyncIterator[Backend]:
    """Open the backend of a worker or a keeper; with the settings of priced runs or programs, their stores too.

    `keeps`: it is a keeper's, which handles the ticks of schedules.

    Raises Unavailable, DeploymentRefused, SettingError.
    """
    if grid is not None:
        grid.check_ack_wait(config.consumer_ack_wait_sec)
    async with (
        linked(config, name, patience) as link,
        _prepared(link, config, grid, (beyond_keeper if keeps else beyond_worker)(config)) as clock,
        contextlib.AsyncExitStack() as more,
    ):
        runs, new_id = runs_in(link, config), _Ids()
        stores = programs = None
        if grid is not None:
            programs = await more.enter_async_context(open_programs(config, grid, link, clock))
        if priced is not None and priced[0].priced_enabled:
            from pyoco_server.wiring.priced import PricedSettings, open_priced

            settings = PricedSettings(config=config, priced=priced[0], aws=priced[1], new_id=new_id, keeps=keeps)
            stores = await more.enter_async_context(open_priced(settings, link, runs))
        registry = JetStreamRegistry(link, config.workers_kv_bucket, config.worker_disconnect_timeout_sec)
        more.push_async_callback(registry.stop)
        scheduling = await more.enter_async_context(_followed(link, config)) if keeps else None
        yield Backend(
            config=config,
            runs=runs,
            queue=JetStreamQueue(link, config),
            registry=registry,
            wheels=JetStreamObjects(link, config.wheel_object_store_bucket),
            workflows=JetStreamObjects(link, config.workflow_object_store_bucket),
            outputs=_outputs(link, config),
            clock=clock,
            new_id=new_id,
            is_up=lambda: link.is_up,
            alarms=JetStreamAlarms(link, config.clock_stream),
            scheduling=scheduling,
            logs=_logs(link, config),
            resources=JetStreamResources(link),
            priced=stores,
            programs=programs,
        )


@contextlib.asynccontextmanager
async def open_door_backend(
    config: NatsBackendConfig, grid: GridConfig, name: str = "pyoco-door", patience: Patience = WORKER_PATIENCE
) -> AsyncIterator[DoorBackend]:
    """Open the backend of a door or a router, with keys, lanes, slots, doors and ACL cached in memory.

    Raises Unavailable, DeploymentRefused, SettingError.
    """
    grid.check_ack_wait(config.consumer_ack_wait_sec)
    async with (
        linked(config, name, patience) as link,
        _prepared(link, config, grid, beyond_door(config)) as clock,
        open_programs(config, grid, link, clock) as programs,
    ):
        backend = DoorBackend(
            config=config,
            runs=runs_in(link, config),
            queue=JetStreamQueue(link, config),
            registry=JetStreamRegistry(link, config.workers_kv_bucket, config.worker_disconnect_timeout_sec),
            keys=JetStreamKeys(link, config.auth_kv_bucket),
            wheels=JetStreamObjects(link, config.wheel_object_store_bucket),
            workflows=JetStreamObjects(link, config.workflow_object_store_bucket),
            outputs=_outputs(link, config),
            clock=clock,
            new_id=_Ids(),
            is_up=lambda: link.is_up,
            logs=_logs(link, config),
            resources=JetStreamResources(link),
            programs=programs,
            store_state=lambda: link.store_state,
        )
        try:
            await backend.keys.start()
            yield backend
        finally:
            await backend.keys.stop()
            await backend.registry.stop()


@contextlib.asynccontextmanager
async def open_operator_backend(config: NatsBackendConfig, grid: GridConfig) -> AsyncIterator[OperatorBackend]:
    """Open the backend of operator commands for programs. Raises Unavailable, DeploymentRefused."""
    async with (
        linked(config, "pyoco-operator", Patience()) as link,
        _prepared(link, config, grid) as clock,
        open_programs(config, grid, link, clock) as programs,
    ):
        backend = OperatorBackend(
            config=config,
            runs=runs_in(link, config),
            queue=JetStreamQueue(link, config),
            registry=JetStreamRegistry(link, config.workers_kv_bucket, config.worker_disconnect_timeout_sec),
            dead_letters=JetStreamDeadLetters(link, config),
            wheels=JetStreamObjects(link, config.wheel_object_store_bucket),
            workflows=JetStreamObjects(link, config.workflow_object_store_bucket),
            outputs=_outputs(link, config),
            clock=clock,
            new_id=_Ids(),
            is_up=lambda: link.is_up,
            logs=_logs(link, config),
            resources=JetStreamResources(link),
            programs=programs,
        )
        try:
            await backend.registry.start()
            yield backend
        finally:
            await backend.registry.stop()


async def _living(registry: JetStreamRegistry, clock: StoreClock, config: NatsBackendConfig) -> list[WorkerRecord]:
    """Return the records of live workers. Raises Unavailable."""
    now, silence = clock(), config.worker_disconnect_timeout_sec
    return [record for record in await registry.all() if record.is_alive(now, silence)]


@contextlib.asynccontextmanager
async def open_gateway_backend(
    config: NatsBackendConfig,
    priced: tuple[PricedConfig, AwsSettings] | None = None,
    grid: GridConfig | None = None,
) -> AsyncIterator[GatewayBackend]:
    """Open the backend of a gateway, with registry and keys cached in memory.

    By default the settings of priced runs and of programs are read from the environment. Raises Unavailable,
    LedgerOutdated, DeploymentRefused, UsageError.
    """
    grid = (grid or grid_from_env()).at_gateway()
    with open_index(config) as index, open_dead_letter_index(config) as dead_letter_index:
        async with (
            linked(config, "pyoco-gateway", Patience()) as link,
            _prepared(link, config, grid) as clock,
            open_programs(config, grid, link, clock) as programs,
            contextlib.AsyncExitStack() as more,
        ):
            runs, new_id = runs_in(link, config), _Ids()
            own, aws = priced or priced_from_env()
            registry = JetStreamRegistry(link, config.workers_kv_bucket, config.worker_disconnect_timeout_sec)
            stores = None
            if own.priced_enabled:
                from pyoco_server.wiring.priced import PricedSettings, open_priced

                known = PricedSettings(config=config, priced=own, aws=aws, new_id=new_id, signs=True, makes_file=True)
                stores = await more.enter_async_context(open_priced(known, link, runs))
                stores = replace(stores, living_workers=lambda: _living(registry, clock, config))
            scheduling = await more.enter_async_context(_followed(link, config))
            backend = GatewayBackend(
                config=config,
                runs=runs,
                queue=JetStreamQueue(link, config),
                registry=registry,
                keys=scheduling.keys,
                scheduling=scheduling,
                index=index,
                dead_letters=JetStreamDeadLetters(link, config),
                dead_letter_index=dead_letter_index,
                flow_files=YamlFlowFiles(config.workflow_yaml_max_bytes),
                workflows=JetStreamObjects(link, config.workflow_object_store_bucket),
                outputs=_outputs(link, config),
                receipts=JetStreamReceipts(link, config.receipts_kv_bucket),
                wheels=JetStreamObjects(link, config.wheel_object_store_bucket),
                wheel_files=ArchiveWheelFiles(config.unpacked_wheel_bytes_max),
                wheel_history=JetStreamWheelHistory(link, config.wheel_history_kv_bucket),
                clock=clock,
                new_id=new_id,
                is_up=lambda: link.is_up,
                logs=_logs(link, config),
                resources=JetStreamResources(link),
                priced=stores,
                programs=programs,
                store_state=lambda: link.store_state,
            )
            try:
                await backend.registry.start()
                yield backend
            finally:
                await backend.registry.stop()


@contextlib.contextmanager
def open_index(config: NatsBackendConfig) -> Iterator[SqliteIndex]:
    """Open an index of runs, exclusive to this process. Raises UsageError."""
    with index_slot(Path(config.data_dir) / "index", config.runs_kv_bucket) as path:
        yield SqliteIndex(path)


@contextlib.contextmanager
def open_dead_letter_index(config: NatsBackendConfig) -> Iterator[SqliteDeadLetterIndex]:
    """Open an index of dead letters, exclusive to this process. Raises UsageError."""
    with index_slot(Path(config.data_dir) / "index", f"letters.{config.dlq_stream}") as path:
        yield SqliteDeadLetterIndex(path)


def host_executor(
    config: NatsBackendConfig,
    resolver: str | None,
    slots: int,
    collector: Collector | None = None,
    app: str | None = None,
) -> HostExecutor:
    """`app`: serve this app instead of a resolver. `collector` gets what runs print; None: the output of this process
    does."""
    settings = Settings(
        resolver=None if app else resolver,
        callable_allow=config.callable_allow,
        workflow_bytes_max=config.workflow_yaml_max_bytes,
        records_bytes_max=config.max_run_snapshot_bytes,
        memory_bytes_max=config.host_memory_max_bytes or int(memory_bytes() * 0.8),
        outputs=_output_limits(config),
        app=app,
    )
    return HostExecutor(settings, slots, config.host_runs_max, config.run_timeout_sec, collector)


def thread_executor(
    config: NatsBackendConfig, resolver: Callable[[str], Flow] | None, lines: Collector | None = None
) -> ThreadExecutor:
    return ThreadExecutor(
        _builder_here(config, resolver), _output_limits(config), config.max_run_snapshot_bytes // 2, lines
    )


def paced_executor(
    config: NatsBackendConfig, resolver: Callable[[str], Flow], lines: Collector | None, pace: Pace
) -> PacedExecutor:
    """`pace`: the clock of waits between tries of tasks."""
    return PacedExecutor(
        _builder_here(config, resolver), _output_limits(config), config.max_run_snapshot_bytes // 2, lines, pace
    )


def _builder_here(config: NatsBackendConfig, resolver: Callable[[str], Flow] | None) -> FlowBuilder:
    files = YamlFlowFiles(config.workflow_yaml_max_bytes)
    # Runs in the caller's own process: its environment variables cannot be removed.
    return FlowBuilder(resolver, files, config.callable_allow, secrets=secret_variables())


def _output_limits(config: NatsBackendConfig) -> OutputLimits:
    return OutputLimits(config.result_inline_max_bytes, config.output_max_bytes, config.run_outputs_max_bytes)


@contextlib.asynccontextmanager
async def open_wheel_sync(backend: Backend, executor: Executor, tags: Sequence[str]) -> AsyncIterator[WheelSync | None]:
    """Keep the wheels for these tags up to date with the registry. Yields None if wheel sync is disabled (FLOW-228).

    Raises UsageError if the directory cannot be used.
    """
    config = backend.config
    if not config.wheel_sync_enabled:
        yield None
        return
    with open_shelf(Path(config.wheel_sync_dir)) as shelf:
        sync = WheelSync(
            backend.wheels, shelf, tags, config, backend.clock, executor.renew, lambda: executor.paths_in_use
        )
        try:
            yield sync
        finally:
            await sync.stop()


def versions() -> dict[str, str]:
    """Return the software versions that a worker reports."""
    found = {}
    for name in ("pyoco-server", "pyoco", "nats-py"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
