"""Durable consumers that several processes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Link, Rejected

__all__ = ["PARKED_PULLS_MAX", "BoundConsumer", "bind", "durable", "find_consumer", "find_or_make"]

T = TypeVar("T")

#: Each worker, or each receive, parks a pull; the server's default limit of 512 would turn further ones away.
PARKED_PULLS_MAX = 8192
_SECOND = 1_000_000_000
_NOT_FOUND = 10014
#: Another process has just created it (10105), with other settings (10148).
_EXISTS = frozenset({10148, 10105})


class _Info(msgspec.Struct):
    config: dict[str, Any]


@dataclass(frozen=True)
class BoundConsumer:
    """A durable consumer, with its settings on the server, and the tag of its jobs."""

    tag: str
    consumer: str
    ack_wait_seconds: float
    max_deliver: int


def durable(name: str, ack_wait_seconds: float, *, max_deliver: int = -1, **settings: Any) -> dict[str, Any]:
    """Return the settings of a consumer whose messages are acknowledged one by one."""
    return {
        "durable_name": name,
        "name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(ack_wait_seconds * _SECOND),
        "max_deliver": max_deliver,
        **settings,
    }


async def find_or_make(link: Link, stream: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the consumer's settings on the server: an existing consumer keeps its own (FLOW-292).

    Raises Unavailable.
    """
    name = wanted["durable_name"]
    found = await find_consumer(link, stream, name, _Info)
    if found is not None:
        return found.config
    subject = wanted.get("filter_subject")
    path = f"CONSUMER.CREATE.{stream}.{name}.{subject}" if subject else f"CONSUMER.CREATE.{stream}.{name}"
    request = {"stream_name": stream, "config": wanted, "action": "create"}
    try:
        return (await link.insist(path, request, _Info)).config
    except Rejected as error:
        found = await find_consumer(link, stream, name, _Info) if error.code in _EXISTS else None
        if found is None:
            raise Unavailable(f"cannot create consumer {name} of {stream}: {error}") from error
        return found.config


async def bind(link: Link, stream: str, wanted: dict[str, Any], tag: str = "") -> BoundConsumer:
    """Find or create the consumer. Raises Unavailable."""
    found = await find_or_make(link, stream, wanted)
    return BoundConsumer(tag, wanted["name"], found["ack_wait"] / _SECOND, max(0, found.get("max_deliver", 0)))


async def find_consumer(link: Link, stream: str, name: str, shape: type[T]) -> T | None:
    """Return what the server knows about a consumer. None: it does not exist. Raises Unavailable."""
    try:
        return await link.insist(f"CONSUMER.INFO.{stream}.{name}", {}, shape)
    except Rejected as error:
        if error.code == _NOT_FOUND:
            return None
        raise Unavailable(f"cannot look at consumer {name} of {stream}: {error}") from error
