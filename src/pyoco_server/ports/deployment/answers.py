"""The parts of NATS's answers that we read, and their meaning."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from pyoco_server.core.diagnosis.facts import Account, Found, NodeFacts, TagQueue

__all__ = [
    "CONSUMER_PREFIX",
    "AccountInfo",
    "ConsumerInfo",
    "Consumers",
    "Got",
    "StreamInfo",
    "account_of",
    "found_of",
    "instant_of",
    "tag_queue_of",
]

CONSUMER_PREFIX = "pyoco_worker_"
_SECOND = 1_000_000_000
_BEFORE_ANYTHING = 1.0


class StreamState(msgspec.Struct):
    messages: int = 0
    bytes: int = 0
    first_ts: datetime | None = None
    last_ts: datetime | None = None
    subjects: dict[str, int] | None = None


class Copy(msgspec.Struct):
    name: str
    current: bool = False
    offline: bool = False
    lag: int = 0
    active: int = 0


class ClusterInfo(msgspec.Struct):
    leader: str = ""
    replicas: list[Copy] | None = None


class StreamInfo(msgspec.Struct):
    config: dict[str, Any]
    state: StreamState
    cluster: ClusterInfo | None = None
    ts: datetime | None = None


class AccountLimits(msgspec.Struct):
    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_bytes_required: bool = False


class AccountInfo(msgspec.Struct):
    memory: int = 0
    storage: int = 0
    streams: int = 0
    consumers: int = 0
    limits: AccountLimits = msgspec.field(default_factory=AccountLimits)
    tiers: dict[str, Any] | None = None


class ConsumerInfo(msgspec.Struct):
    name: str
    config: dict[str, Any]
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0
    num_waiting: int = 0
    paused: bool = False


class Consumers(msgspec.Struct):
    total: int
    consumers: list[ConsumerInfo] | None = None


class MessageInfo(msgspec.Struct):
    time: datetime


class Got(msgspec.Struct):
    message: MessageInfo


def account_of(info: AccountInfo) -> Account:
    # With limits per number of replicas (tiers) there is no single limit to compare with.
    limits = info.limits if not info.tiers else AccountLimits()
    return Account(
        storage_bytes=info.storage,
        storage_bytes_max=limit_of(limits.max_storage),
        memory_bytes=info.memory,
        memory_bytes_max=limit_of(limits.max_memory),
        streams=info.streams,
        streams_max=limit_of(limits.max_streams),
        consumers=info.consumers,
        consumers_max=limit_of(limits.max_consumers),
        wants_stream_limits=limits.max_bytes_required,
    )


def found_of(info: StreamInfo) -> Found:
    cluster = info.cluster or ClusterInfo()
    return Found(
        settings=info.config,
        messages=info.state.messages,
        size_bytes=info.state.bytes,
        first_at=instant_of(info.state.first_ts) if info.state.messages else None,
        last_at=instant_of(info.state.last_ts) if info.state.messages else None,
        leader=cluster.leader,
        peers=tuple(
            NodeFacts(each.name, each.current, each.offline, each.lag, each.active / _SECOND)
            for each in cluster.replicas or ()
        ),
    )


def limit_of(limit: int) -> int | None:
    """Return the limit. None: unlimited, which NATS reports as -1."""
    return limit if limit >= 0 else None


def instant_of(at: datetime | None) -> float | None:
    """Return the instant. None: unset, which NATS reports as a time in the year 1."""
    seconds = 0.0 if at is None else at.timestamp()
    return seconds if seconds > _BEFORE_ANYTHING else None


def tag_queue_of(consumer: ConsumerInfo) -> TagQueue:
    config = consumer.config
    return TagQueue(
        tag=consumer.name.removeprefix(CONSUMER_PREFIX),
        waiting=consumer.num_pending,
        in_hand=consumer.num_ack_pending,
        repeated=consumer.num_redelivered,
        pulls=consumer.num_waiting,
        ack_wait_seconds=int(config.get("ack_wait", 0)) / _SECOND,
        max_deliver=max(0, int(config.get("max_deliver", 0))),
        in_hand_max=max(0, int(config.get("max_ack_pending", 0))),
        is_paused=consumer.paused,
    )
