"""The streams and buckets of a deployment, with their initial settings (FLOW-284, FLOW-285)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.core.holds import Holds
from pyoco_server.logs import get_logger

__all__ = [
    "NANO",
    "PRICED_BUCKET",
    "SECRETS_BUCKET",
    "Resource",
    "beyond_door",
    "beyond_keeper",
    "beyond_worker",
    "bucket",
    "inputs_resources",
    "log_stream",
    "log_subjects",
    "object_store",
    "outputs_resource",
    "pack_queue_resources",
    "priced_bucket_resources",
    "priced_resources",
    "resources_of",
    "results_resources",
    "secrets_resources",
    "stream",
]

log = get_logger(__name__)

NANO = 1_000_000_000
_DAY = 24 * 3600


@dataclass(frozen=True)
class Resource:
    """One stream with its initial settings. KV buckets and object stores are streams with a naming rule."""

    name: str
    config: dict[str, Any]
    holds: Holds = Holds.OTHER


def stream(name: str, replicas: int, subjects: list[str], *, holds: Holds = Holds.OTHER, **more: Any) -> Resource:
    config = {"name": name, "subjects": subjects, "storage": "file", "num_replicas": replicas, **more}
    # The server refuses a window that exceeds the maximum age of the messages.
    config["duplicate_window"] = min(120 * NANO, config.get("max_age") or 120 * NANO)
    return Resource(name, config, holds)


def bucket(name: str, replicas: int, *, holds: Holds = Holds.OTHER, **more: Any) -> Resource:
    """Return a bucket, without rollups where possible.

    With a rollup, a client that may write a single key could delete the complete bucket. The server enables them itself
    for streams with delete markers.
    """
    settings: dict[str, Any] = {
        "retention": "limits",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": "subject_delete_marker_ttl" in more,
        "allow_direct": True,
    }
    return stream(f"KV_{name}", replicas, [f"$KV.{name}.>"], holds=holds, **(settings | more))


def _receipt_seconds(config: NatsBackendConfig) -> float:
    """Return the lifetime of receipts.

    A receipt must not outlive its run: a deleted run would look like one that was never created.
    """
    return min(config.idempotency_ttl_sec, config.runs_retention_sec or config.idempotency_ttl_sec)


def _workflow_seconds(config: NatsBackendConfig) -> float:
    """Return twice the retention: a file used after half of that is stored again (`actions/keep_workflow.py`)."""
    return 2 * config.runs_retention_sec


def object_store(name: str, replicas: int, max_age_seconds: float = 0.0, *, holds: Holds = Holds.OTHER) -> Resource:
    return stream(
        f"OBJ_{name}",
        replicas,
        [f"$O.{name}.C.>", f"$O.{name}.M.>"],
        holds=holds,
        retention="limits",
        discard="new",
        allow_rollup_hdrs=True,
        allow_direct=True,
        max_age=int(max_age_seconds * NANO),
    )


def outputs_resource(config: NatsBackendConfig) -> Resource:
    """The store of results and outputs.

    A keeper removes them with their runs (`loops/output_sweeper.py`); the age limit is for deployments without one. The
    retention of a run begins when its outputs are already stored, so these must stay for somewhat longer.
    """
    seconds = config.runs_retention_sec
    age = seconds + max(_DAY, seconds / 10) if seconds else 0.0
    return object_store(config.outputs_bucket, config.jetstream_replicas, age, holds=Holds.OUTPUTS)


_SHARED_INBOX = "_INBOX"


def beyond_door(config: NatsBackendConfig) -> frozenset[str]:
    """Return the resources that a door does not need, only gateways.

    Empty if all roles share one NATS user: there the first process creates all resources (FLOW-284). If each role has
    its own user, and so its own inbox, a door may not even be permitted to read their info.
    """
    if config.nats_inbox_prefix == _SHARED_INBOX:
        return frozenset()
    own = (config.receipts_kv_bucket, config.wheel_history_kv_bucket, config.schedules_kv_bucket)
    return frozenset(f"KV_{name}" for name in own)


def beyond_worker(config: NatsBackendConfig) -> frozenset[str]:
    """Return the same for a worker, which does not need API keys either."""
    beyond = beyond_door(config)
    return beyond | {f"KV_{config.auth_kv_bucket}"} if beyond else beyond


def beyond_keeper(config: NatsBackendConfig) -> frozenset[str]:
    """Return the same for a keeper, which handles the ticks of schedules and checks the keys of their writers."""
    return beyond_door(config) - {f"KV_{config.schedules_kv_bucket}"}


def resources_of(config: NatsBackendConfig, without: Collection[str] = ()) -> tuple[Resource, ...]:
    """Return the resources of section 15.1 of the contract, except those that the process does not use."""
    return tuple(each for each in _resources_of(config) if each.name not in without)


def _resources_of(config: NatsBackendConfig) -> tuple[Resource, ...]:
    logs = (log_stream(config),) if config.logs_enabled else ()
    return (*_queues(config), *_records(config), *_files(config), *_signals(config), *logs)


def _queues(config: NatsBackendConfig) -> Iterator[Resource]:
    replicas = config.jetstream_replicas
    subjects = [f"{config.work_subject_prefix}.>"]
    yield stream(config.work_stream, replicas, subjects, holds=Holds.JOBS, retention="workqueue")
    yield stream(
        config.dlq_stream,
        replicas,
        [f"{config.dlq_subject_prefix}.>"],
        holds=Holds.DEAD_LETTERS,
        retention="limits",
        discard="old",
        max_age=int(config.dlq_max_age_sec * NANO),
        max_msgs=config.dlq_max_msgs,
        max_bytes=config.dlq_max_bytes,
    )


def _records(config: NatsBackendConfig) -> Iterator[Resource]:
    replicas = config.jetstream_replicas
    # Terminal runs expire by a per-message TTL; an index that was down for a day still sees the marker.
    marker = {"allow_msg_ttl": True, "subject_delete_marker_ttl": _DAY * NANO}
    yield bucket(config.runs_kv_bucket, replicas, holds=Holds.RUNS, **marker)
    # With a TTL for the tombstones of removed workers.
    yield bucket(config.workers_kv_bucket, replicas, holds=Holds.WORKERS, allow_msg_ttl=True)
    yield bucket(config.auth_kv_bucket, replicas, holds=Holds.KEYS)
    history_ns = int(config.wheel_history_ttl_sec * NANO)
    yield bucket(config.wheel_history_kv_bucket, replicas, holds=Holds.WHEEL_HISTORY, max_age=history_ns)
    receipts_ns = int(_receipt_seconds(config) * NANO)
    yield bucket(config.receipts_kv_bucket, replicas, holds=Holds.RECEIPTS, max_age=receipts_ns)
    # With a TTL for the tombstones of deleted schedules and of their history.
    yield bucket(config.schedules_kv_bucket, replicas, holds=Holds.SCHEDULES, allow_msg_ttl=True)


def _files(config: NatsBackendConfig) -> Iterator[Resource]:
    replicas = config.jetstream_replicas
    yield object_store(config.wheel_object_store_bucket, replicas, holds=Holds.WHEELS)
    yield object_store(config.workflow_object_store_bucket, replicas, _workflow_seconds(config), holds=Holds.WORKFLOWS)
    yield outputs_resource(config)


def _signals(config: NatsBackendConfig) -> Iterator[Resource]:
    replicas = config.jetstream_replicas
    # The server publishes an advisory only once when it stops delivering a job: this stream stores it.
    yield stream(
        config.advisory_stream,
        replicas,
        [f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{config.work_stream}.>"],
        holds=Holds.ADVISORIES,
        retention="workqueue",
        max_age=7 * _DAY * NANO,
    )
    # Below `at.`, scheduled messages; the server publishes each below `due.` at its time, where keepers take it.
    yield stream(
        config.clock_stream,
        replicas,
        [f"{config.clock_stream}.at.>", f"{config.clock_stream}.due.>"],
        holds=Holds.ALARMS,
        retention="workqueue",
        discard="old",
        max_msgs_per_subject=1,
        allow_msg_schedules=True,
    )


def log_subjects(stream: str) -> str:
    """Return the prefix of the subjects of log lines, including the dot: one subject for each attempt.

    It contains the stream's name, so that several deployments may share one NATS account.
    """
    return f"pyoco.logs.{stream}."


def log_stream(config: NatsBackendConfig) -> Resource:
    """Return the stream of log lines. They do not outlive the record of their run by much."""
    ages = [age for age in (config.logs_max_age_sec, config.runs_retention_sec) if age]
    return stream(
        config.logs_stream,
        config.jetstream_replicas,
        [f"{log_subjects(config.logs_stream)}>"],
        holds=Holds.RUN_LOGS,
        retention="limits",
        discard="old",
        max_age=int(min(ages) * NANO),
        max_bytes=config.logs_max_bytes,
    )


#: The secrets that sign and encrypt for the complete deployment, each under its own key.
SECRETS_BUCKET = "pyoco_secrets"
#: The identity of the ledger, and the key that readiness checks write to. Read by every process of priced runs.
PRICED_BUCKET = "pyoco_priced"


def priced_resources(config: NatsBackendConfig, priced: PricedConfig) -> tuple[Resource, ...]:
    """Return the resources of priced runs, without those for a queue or results that are stored outside of NATS."""
    replicas = config.jetstream_replicas
    queue = () if priced.pack_queue_url else pack_queue_resources(priced, replicas)
    results = () if priced.results_url else results_resources(priced, replicas)
    inputs = () if priced.results_url else inputs_resources(priced, replicas)
    secrets = () if priced.results_url or priced.results_secret else secrets_resources(replicas)
    return (*queue, *results, *inputs, *secrets, *priced_bucket_resources(replicas))


def pack_queue_resources(priced: PricedConfig, replicas: int) -> tuple[Resource, ...]:
    """Return the resources of section 12.2 of the contract of priced runs."""
    return (
        stream(priced.pack_stream, replicas, [priced.pack_subject], holds=Holds.PACK_JOBS, retention="workqueue"),
        stream(
            f"{priced.pack_stream}_DLQ",
            replicas,
            [f"{priced.pack_subject}.dlq"],
            holds=Holds.PACK_DEAD_LETTERS,
            retention="limits",
            discard="old",
            # By then the run is long refunded (PRICED-109); the dead letter is only for the operator.
            max_age=30 * _DAY * NANO,
            max_msgs=100_000,
        ),
    )


def results_resources(priced: PricedConfig, replicas: int) -> tuple[Resource, ...]:
    """Return the store of results (PRICED-214).

    A run's retention counts from its submission and its objects are stored later, so they cannot expire first
    (PRICED-167).
    """
    return (object_store(priced.results_bucket, replicas, priced.priced_retention_sec, holds=Holds.RESULTS),)


def inputs_resources(priced: PricedConfig, replicas: int) -> tuple[Resource, ...]:
    """Return the store of inputs. An upload's lifetime begins before its bytes are stored: they cannot expire first."""
    return (object_store(priced.pack_input_bucket, replicas, priced.priced_retention_sec, holds=Holds.INPUTS),)


def priced_bucket_resources(replicas: int) -> tuple[Resource, ...]:
    return (bucket(PRICED_BUCKET, replicas),)


def secrets_resources(replicas: int) -> tuple[Resource, ...]:
    return (bucket(SECRETS_BUCKET, replicas, holds=Holds.SECRETS),)
