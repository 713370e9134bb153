"""The streams and buckets we live in: made when missing, left as they are when present (FLOW-284, FLOW-285)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.link import NOT_YET, Link, NoConnection, Rejected

__all__ = [
    "SECRETS_BUCKET",
    "Resource",
    "ensure",
    "inputs_resources",
    "keep_as_long",
    "pack_queue_resources",
    "priced_resources",
    "resources_of",
    "results_resources",
    "secrets_resources",
]

log = get_logger(__name__)

_STREAM_NOT_FOUND = 10059
_NAME_IN_USE = 10058
_NANO = 1_000_000_000
_DAY = 24 * 3600


class _Info(msgspec.Struct):
    config: dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """One stream, as it is created. KV buckets and object stores are streams with a naming rule."""

    name: str
    config: dict[str, Any]


def _stream(name: str, replicas: int, subjects: list[str], **more: Any) -> Resource:
    config = {"name": name, "subjects": subjects, "storage": "file", "num_replicas": replicas, **more}
    # The server refuses a window longer than its messages live.
    config["duplicate_window"] = min(120 * _NANO, config.get("max_age") or 120 * _NANO)
    return Resource(name, config)


def _bucket(name: str, replicas: int, **more: Any) -> Resource:
    return _stream(
        f"KV_{name}",
        replicas,
        [f"$KV.{name}.>"],
        retention="limits",
        max_msgs_per_subject=1,
        discard="new",
        deny_delete=True,
        allow_rollup_hdrs=True,
        allow_direct=True,
        **more,
    )


def _receipt_seconds(config: NatsBackendConfig) -> float:
    """A receipt must not outlive its run: a run that is gone would look like one that was never made."""
    return min(config.idempotency_ttl_sec, config.runs_retention_sec or config.idempotency_ttl_sec)


def _workflow_seconds(config: NatsBackendConfig) -> float:
    """Twice the retention: a file is stored again when it is used after half of that (`actions/keep_workflow.py`)."""
    return 2 * config.runs_retention_sec


def _object_store(name: str, replicas: int, max_age_seconds: float = 0.0) -> Resource:
    return _stream(
        f"OBJ_{name}",
        replicas,
        [f"$O.{name}.C.>", f"$O.{name}.M.>"],
        retention="limits",
        discard="new",
        allow_rollup_hdrs=True,
        allow_direct=True,
        max_age=int(max_age_seconds * _NANO),
    )


def resources_of(config: NatsBackendConfig) -> tuple[Resource, ...]:
    """Section 15.1 of the contract."""
    replicas = config.jetstream_replicas
    return (
        _stream(
            config.work_stream,
            replicas,
            [f"{config.work_subject_prefix}.>"],
            retention="workqueue",
        ),
        _stream(
            config.dlq_stream,
            replicas,
            [f"{config.dlq_subject_prefix}.>"],
            retention="limits",
            discard="old",
            max_age=int(config.dlq_max_age_sec * _NANO),
            max_msgs=config.dlq_max_msgs,
            max_bytes=config.dlq_max_bytes,
        ),
        # Terminal runs leave by a per-message TTL; the marker lets an index that was away for a day see it.
        _bucket(config.runs_kv_bucket, replicas, allow_msg_ttl=True, subject_delete_marker_ttl=_DAY * _NANO),
        _bucket(config.workers_kv_bucket, replicas, allow_msg_ttl=True),  # for the marks of those that were removed
        _bucket(config.auth_kv_bucket, replicas),
        _bucket(config.wheel_history_kv_bucket, replicas, max_age=int(config.wheel_history_ttl_sec * _NANO)),
        _bucket(config.receipts_kv_bucket, replicas, max_age=int(_receipt_seconds(config) * _NANO)),
        _object_store(config.wheel_object_store_bucket, replicas),
        _object_store(config.workflow_object_store_bucket, replicas, _workflow_seconds(config)),
        # The server tells once, to whoever listens, that it gives a job up: this stream listens.
        _stream(
            config.advisory_stream,
            replicas,
            [f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{config.work_stream}.>"],
            retention="workqueue",
            max_age=7 * _DAY * _NANO,
        ),
    )


#: Whatever is signed or sealed for the whole deployment, each thing under a key of its own.
SECRETS_BUCKET = "pyoco_secrets"


def priced_resources(config: NatsBackendConfig, priced: PricedConfig) -> tuple[Resource, ...]:
    """What priced runs need here: less when their queue or their results lie elsewhere."""
    replicas = config.jetstream_replicas
    queue = () if priced.pack_queue_url else pack_queue_resources(priced, replicas)
    results = () if priced.results_url else results_resources(priced, replicas)
    inputs = () if priced.results_url else inputs_resources(priced, replicas)
    secrets = () if priced.results_url or priced.results_secret else secrets_resources(replicas)
    return (*queue, *results, *inputs, *secrets)


def pack_queue_resources(priced: PricedConfig, replicas: int) -> tuple[Resource, ...]:
    """Section 12.2 of the contract of priced runs."""
    return (
        _stream(priced.pack_stream, replicas, [priced.pack_subject], retention="workqueue"),
        _stream(
            f"{priced.pack_stream}_DLQ",
            replicas,
            [f"{priced.pack_subject}.dlq"],
            retention="limits",
            discard="old",
            # A run is long refunded by then (PRICED-109); what is left of it is for the operator.
            max_age=30 * _DAY * _NANO,
            max_msgs=100_000,
        ),
    )


def results_resources(priced: PricedConfig, replicas: int) -> tuple[Resource, ...]:
    """PRICED-214. A run's retention counts from when it was made, and its objects are stored later (PRICED-167)."""
    return (_object_store(priced.results_bucket, replicas, priced.priced_retention_sec),)


def inputs_resources(priced: PricedConfig, replicas: int) -> tuple[Resource, ...]:
    """An upload's time counts from before its bytes are stored, so that they are never gone first."""
    return (_object_store(priced.pack_input_bucket, replicas, priced.priced_retention_sec),)


def secrets_resources(replicas: int) -> tuple[Resource, ...]:
    return (_bucket(SECRETS_BUCKET, replicas),)


async def ensure(link: Link, resources: Iterable[Resource]) -> None:
    """Make what is missing. An existing resource keeps its settings; each difference is logged once.

    A cluster that is still choosing its leader is waited for. Raises Unavailable, with the name, when a resource can
    neither be found nor made.
    """
    await asyncio.gather(*(_ensure_patiently(link, resource) for resource in resources))


async def keep_as_long(link: Link, resources: Iterable[Resource]) -> None:
    """For stores whose retention has grown since they were made: what is in them must not be gone before it is due
    (PRICED-167). One that has shrunk is left alone: to shorten it would delete what is promised.

    Raises Unavailable.
    """
    for resource in resources:
        try:
            found = (await link.insist(f"STREAM.INFO.{resource.name}", {}, _Info)).config
        except Rejected:
            continue  # it is not there yet
        wanted, have = resource.config["max_age"], found.get("max_age", 0)
        if 0 < have < wanted:
            await link.insist(f"STREAM.UPDATE.{resource.name}", found | {"max_age": wanted}, _Info)
            log.warning("a store keeps its objects for longer", resource=resource.name, seconds=wanted // _NANO)


async def _ensure_patiently(link: Link, resource: Resource) -> None:
    deadline = time.monotonic() + link.patience.unanswered_seconds
    while True:
        try:
            return await _ensure_one(link, resource)
        except Rejected as error:
            if error.code not in NOT_YET or time.monotonic() > deadline:
                raise Unavailable(f"cannot make {resource.name}: {error}") from error
        except Unavailable as error:
            if isinstance(error, NoConnection) or time.monotonic() > deadline:
                raise Unavailable(f"cannot make {resource.name}: {error}") from error
        await asyncio.sleep(0.25)


async def _ensure_one(link: Link, resource: Resource) -> None:
    found = await _find(link, resource)
    if found is not None:
        _warn_of_differences(resource, found.config)
        return
    try:
        await link.api(f"STREAM.CREATE.{resource.name}", resource.config, _Info)
        log.info("made a JetStream resource", resource=resource.name)
    except Rejected as error:
        if error.code != _NAME_IN_USE:  # otherwise made by somebody else a moment ago, with other settings: theirs win
            raise


async def _find(link: Link, resource: Resource) -> _Info | None:
    try:
        return await link.api(f"STREAM.INFO.{resource.name}", {}, _Info)
    except Rejected as error:
        if error.code == _STREAM_NOT_FOUND:
            return None
        raise


#: Differences that change what we promise. A longer history or another size limit is the operator's choice.
_COMPARED = ("subjects", "retention", "num_replicas", "max_age", "max_msgs_per_subject")


def _warn_of_differences(resource: Resource, found: dict[str, Any]) -> None:
    for name in _COMPARED:
        if name not in resource.config and name != "max_age":
            continue
        wanted, have = resource.config.get(name, 0), found.get(name, 0)
        if wanted != have:
            log.warning(
                "an existing JetStream resource has other settings; it is left as it is",
                resource=resource.name,
                setting=name,
                wanted=wanted,
                found=have,
            )
