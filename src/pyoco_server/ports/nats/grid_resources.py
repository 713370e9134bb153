"""The streams and buckets of programs (section 2.1 of their contract), and the checks before a process starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.holds import Holds
from pyoco_server.errors import DeploymentRefused, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.answers import NOT_YET
from pyoco_server.ports.nats.ensuring import ensure, find, make_fitting
from pyoco_server.ports.nats.expected import Expected
from pyoco_server.ports.nats.link import Futile, Link, Rejected
from pyoco_server.ports.nats.resources import Resource, bucket, object_store, priced_resources, resources_of, stream

__all__ = [
    "ACL_BUCKET",
    "CLIENTS_BUCKET",
    "DOORS_BUCKET",
    "LANES_BUCKET",
    "ROUTES_BUCKET",
    "SLOTS_BUCKET",
    "all_resources",
    "ensure_grid",
    "ensure_product",
    "grid_replicas",
    "grid_resources",
    "stream_problem",
]

log = get_logger(__name__)

_NANO = 1_000_000_000
_DAY = 86_400
_MIB, _GIB = 1024**2, 1024**3

LANES_BUCKET = "pyoco_exec_lanes"
CLIENTS_BUCKET = "pyoco_exec_clients"
SLOTS_BUCKET = "pyoco_exec_slots"
DOORS_BUCKET = "pyoco_exec_doors"
ACL_BUCKET = "pyoco_exec_acl"
ROUTES_BUCKET = "pyoco_exec_routes"

#: Each lane is a consumer, and the server's default limit is a thousand per stream.
_CONSUMERS_MAX = 100_000
#: "Replicas > 1 not supported in non-clustered mode".
_NOT_CLUSTERED = 10074
#: The settings that guarantee one message per run (GRID-8).
_NEEDED = {"retention": "workqueue", "discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1}
_COMPARED = (
    "subjects",
    "retention",
    "discard",
    "discard_new_per_subject",
    "max_msgs_per_subject",
    "max_msg_size",
    "max_msgs",
    "max_bytes",
    "max_age",
    "num_replicas",
)


def grid_replicas(config: NatsBackendConfig, grid: GridConfig) -> int:
    return grid.exec_replicas or config.jetstream_replicas


def grid_resources(config: NatsBackendConfig, grid: GridConfig) -> tuple[Resource, ...]:
    """Return the resources of programs only."""
    replicas = grid_replicas(config, grid)
    return (
        stream(
            grid.exec_stream,
            replicas,
            ["pyoco.exec.*.*.*.*"],
            holds=Holds.PROGRAM_JOBS,
            **_NEEDED,
            max_msg_size=_MIB,
            max_msgs=grid.exec_queue_max_jobs,
            max_bytes=grid.exec_queue_max_bytes,
            max_consumers=_CONSUMERS_MAX,
        ),
        _bucket(LANES_BUCKET, replicas, Holds.LANES),
        _bucket(CLIENTS_BUCKET, replicas, Holds.CAPS),
        _bucket(SLOTS_BUCKET, replicas, Holds.SLOTS),
        _bucket(DOORS_BUCKET, replicas, Holds.DOORS, max_age=15 * _NANO),
        _bucket(ACL_BUCKET, replicas, Holds.ACL, max_msgs_per_subject=5),
        _bucket(ROUTES_BUCKET, replicas, Holds.ROUTES, max_age=7 * _DAY * _NANO),
        object_store(grid.exec_artifacts_bucket, replicas, grid.exec_artifact_ttl_sec, holds=Holds.ARTIFACTS),
        stream(
            grid.exec_events_stream,
            replicas,
            ["pyoco.execev.*.*"],
            holds=Holds.PROGRAM_EVENTS,
            retention="limits",
            discard="old",
            max_age=7 * _DAY * _NANO,
            max_bytes=_GIB,
        ),
    )


def _bucket(name: str, replicas: int, holds: Holds, **more: Any) -> Resource:
    """Return a bucket without direct reads, so that every client reads from the leader."""
    return bucket(name, replicas, holds=holds, allow_direct=False, **more)


def all_resources(
    config: NatsBackendConfig, priced: PricedConfig | None, grid: GridConfig | None
) -> tuple[Resource, ...]:
    """Return all NATS resources of a deployment with these settings."""
    of_priced_runs = priced_resources(config, priced) if priced is not None else ()
    of_programs = grid_resources(config, grid) if grid is not None else ()
    return (*resources_of(config), *of_priced_runs, *of_programs)


async def ensure_product(
    link: Link, config: NatsBackendConfig, grid: GridConfig | None, without: Collection[str] = ()
) -> None:
    """Create the resources that every process needs, except those in `without`.

    Call it before `ensure_grid`, whose queue takes the remaining storage. If the grid has several replicas, these
    resources get them too: missing ones are created with them, and existing ones with fewer are raised. Raises
    DeploymentRefused, Unavailable.
    """
    if grid is None or grid.exec_replicas <= 1:
        await ensure(link, resources_of(config, without))
        return
    own = replace(config, jetstream_replicas=max(config.jetstream_replicas, grid.exec_replicas))
    await asyncio.gather(*(_patiently(link, grid, resource) for resource in resources_of(own, without)))


async def ensure_grid(link: Link, config: NatsBackendConfig, grid: GridConfig) -> None:
    """Create missing resources, after `ensure_product` (GRID-6).

    An existing resource keeps its settings, and each difference is logged. If three replicas are configured, a resource
    with fewer gets three; one with three is used even while a node is unavailable. Raises DeploymentRefused if the
    queue has unsuitable settings, or if there are fewer than three nodes for three replicas; Unavailable.
    """
    resources = grid_resources(config, grid)
    bounded = [resource for resource in resources if resource.config.get("max_bytes", 0) > 0]
    others = [resource for resource in resources if resource not in bounded]
    await asyncio.gather(*(_patiently(link, grid, resource) for resource in others))
    # One after another: the server compares each new reservation with its free storage, but grants two concurrent
    # requests the same space.
    for resource in bounded:
        await _patiently(link, grid, resource)


async def _patiently(link: Link, grid: GridConfig, resource: Resource) -> None:
    """Retry while the cluster elects a leader or waits for its third node. Raises Unavailable, DeploymentRefused."""
    deadline = time.monotonic() + link.patience.unanswered_seconds
    while True:
        try:
            return await _ensure(link, grid, resource)
        except Rejected as error:
            if error.code not in NOT_YET or time.monotonic() > deadline:
                if grid.exec_replicas > 1 and error.code in {_NOT_CLUSTERED, *NOT_YET}:
                    raise _too_few(resource, grid, str(error)) from error
                raise Unavailable(f"cannot make {resource.name}: {error}") from error
        except Unavailable as error:
            if isinstance(error, Futile) or time.monotonic() > deadline:
                raise Unavailable(f"cannot make {resource.name}: {error}") from error
        await asyncio.sleep(0.25)


def _too_few(resource: Resource, grid: GridConfig, why: str) -> DeploymentRefused:
    replicas = grid.exec_replicas
    return DeploymentRefused(
        f"EXEC_REPLICAS={replicas} needs {replicas} JetStream nodes that answer, for {resource.name}: {why}; "
        "start them, or set EXEC_REPLICAS=1"
    )


async def _ensure(link: Link, grid: GridConfig, resource: Resource) -> None:
    found = await find(link, resource)
    if found is None and await make_fitting(link, resource):
        return
    found = found or await find(link, resource)
    if found is None:
        raise Unavailable(f"{resource.name} was made and deleted a moment ago")
    if resource.name == grid.exec_stream:
        problem = stream_problem(found.config)
        if problem is not None:
            raise DeploymentRefused(f"{resource.name} exists and {problem}; delete it, or give this one another name")
    have = found.config
    if grid.exec_replicas > 1:
        if have.get("num_replicas", 1) < grid.exec_replicas:
            await _raise_replicas(link, grid, resource, have)
            have = have | {"num_replicas": grid.exec_replicas}
            link.expected[resource.name] = Expected(have, resource.holds)
        elif found.answering < grid.exec_replicas:
            # An existing resource is usable without its third node: processes must start while a node is down.
            log.warning("a replica is unavailable", resource=resource.name, answering=found.answering)
    _warn_of_differences(resource.name, resource.config, have)


async def _raise_replicas(link: Link, grid: GridConfig, resource: Resource, found: dict[str, Any]) -> None:
    """Raise the number of replicas. Raises DeploymentRefused; Rejected while the cluster is still adding a new node."""
    replicas = grid.exec_replicas
    try:
        await link.insist(f"STREAM.UPDATE.{resource.name}", found | {"num_replicas": replicas}, dict[str, Any])
    except Rejected as error:
        if error.code in NOT_YET:
            raise
        raise DeploymentRefused(f"{resource.name} cannot be given {replicas} replicas: {error}") from error
    log.warning("increased the replicas of a resource", resource=resource.name, replicas=replicas)


def stream_problem(found: dict[str, Any]) -> str | None:
    """Return why a stream is unsuitable as the queue of programs (GRID-6). None: it is suitable."""
    if found.get("retention") != "workqueue":
        return f"its retention is {found.get('retention')!r}, and must be 'workqueue'"
    if not found.get("discard_new_per_subject") or found.get("max_msgs_per_subject") != 1:
        return "it does not keep exactly one message per subject (discard_new_per_subject, max_msgs_per_subject = 1)"
    return None


def _warn_of_differences(name: str, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    for setting in _differences(wanted, found):
        log.warning(
            "existing JetStream resource has other settings; not changed",
            resource=name,
            setting=setting,
            wanted=wanted.get(setting, 0),
            found=found.get(setting, 0),
        )


def _differences(wanted: dict[str, Any], found: dict[str, Any]) -> Iterable[str]:
    for setting in _COMPARED:
        if (setting in wanted or setting == "max_age") and wanted.get(setting, 0) != found.get(setting, 0):
            yield setting
