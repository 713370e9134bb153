"""Creates missing streams and buckets, and changes the few settings of existing ones that have to follow (FLOW-284)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.holds import Holds
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.answers import NOT_YET
from pyoco_server.ports.nats.expected import Expected
from pyoco_server.ports.nats.link import Futile, Link, Missing, NotPermitted, Rejected
from pyoco_server.ports.nats.resources import NANO, Resource

__all__ = ["Cluster", "Info", "ensure", "find", "keep_as_long", "make_fitting", "refuse_rollups"]

log = get_logger(__name__)


_NAME_IN_USE = 10058

#: The server reserves the maximum size of a stream, and it or enough nodes of the cluster lack that much storage.
_NO_ROOM = frozenset({10047, 10005})

_ROOM_MIN_BYTES = 16 * 1024

_AWAY_SECONDS = 10

_PREPARE = "`pyoco-server-admin prepare`, as the operator, makes what is missing"


class _Peer(msgspec.Struct):
    name: str = ""
    #: The number of messages that it lacks.
    lag: int = 0
    current: bool = True
    offline: bool = False
    #: Nanoseconds since its last message; nodes send one every second.
    active: int = 0

    @property
    def is_away(self) -> bool:
        """Whether the node is unavailable.

        The server reports a node as offline only after a minute; a restarting node returns within `_AWAY_SECONDS`.
        """
        return self.offline or (not self.current and self.active > _AWAY_SECONDS * NANO)


class _AccountLimits(msgspec.Struct):
    #: -1: no limit.
    max_storage: int = -1


class _Account(msgspec.Struct):
    limits: _AccountLimits = msgspec.field(default_factory=_AccountLimits)


class Cluster(msgspec.Struct):
    """The nodes that replicate a stream or a consumer."""

    #: Empty during an election.
    leader: str = ""
    #: The other nodes.
    replicas: list[_Peer] = []


class Info(msgspec.Struct):
    """A stream as the server reports it."""

    config: dict[str, Any]
    cluster: Cluster = msgspec.field(default_factory=Cluster)

    @property
    def answering(self) -> int:
        """The number of available replicas. Replicas that are still being created are not listed by the server."""
        return int(self.config.get("num_replicas", 1)) - sum(peer.is_away for peer in self.cluster.replicas)


async def ensure(link: Link, resources: Iterable[Resource]) -> None:
    """Create missing resources. An existing resource keeps its settings; each difference is logged once.

    Waits for a cluster that is electing a leader. Raises Unavailable, with the name, if a resource can neither be found
    nor created.
    """
    found = tuple(resources)
    bounded = [resource for resource in found if resource.config.get("max_bytes", 0) > 0]
    others = [resource for resource in found if resource not in bounded]
    await asyncio.gather(*(_ensure_patiently(link, resource) for resource in others))
    # One after another: the server compares each new reservation with its free storage, but grants two concurrent
    # requests the same space.
    for resource in bounded:
        await _ensure_patiently(link, resource)


async def keep_as_long(link: Link, resources: Iterable[Resource]) -> None:
    """Extend the maximum age of existing stores if the retention was raised since their creation (PRICED-167).

    A lowered retention is not applied: it would delete objects before their promised time. Raises Unavailable.
    """
    for resource in resources:
        try:
            found = (await link.insist(f"STREAM.INFO.{resource.name}", {}, Info)).config
        except (Missing, Rejected):
            continue  # it does not exist yet
        wanted, have = resource.config["max_age"], found.get("max_age", 0)
        if 0 < have < wanted:
            await link.insist(f"STREAM.UPDATE.{resource.name}", found | {"max_age": wanted}, Info)
            log.warning("extended the retention of a store", resource=resource.name, seconds=wanted // NANO)


async def refuse_rollups(link: Link, resources: Iterable[Resource]) -> None:
    """Disable rollups on buckets that earlier versions created with them. Raises Unavailable."""
    for resource in resources:
        if resource.config.get("allow_rollup_hdrs") is not False:
            continue
        try:
            found = (await link.insist(f"STREAM.INFO.{resource.name}", {}, Info)).config
            if not found.get("allow_rollup_hdrs") or found.get("subject_delete_marker_ttl"):
                continue
            await link.insist(f"STREAM.UPDATE.{resource.name}", found | {"allow_rollup_hdrs": False}, Info)
        except Rejected as error:
            raise Unavailable(f"cannot change {resource.name}: {error}") from error
        log.info("disabled rollups of a bucket", resource=resource.name)


async def _ensure_patiently(link: Link, resource: Resource) -> None:
    deadline = time.monotonic() + link.patience.unanswered_seconds
    while True:
        try:
            return await _ensure_one(link, resource)
        except Rejected as error:
            if error.code not in NOT_YET or time.monotonic() > deadline:
                raise Unavailable(f"cannot make {resource.name}: {error}") from error
        except NotPermitted as error:
            raise Unavailable(
                f"{resource.name} is missing, or the user may not read it: {error}; {_PREPARE}"
            ) from error
        except Unavailable as error:
            if isinstance(error, Futile) or time.monotonic() > deadline:
                raise Unavailable(f"cannot make {resource.name}: {error}") from error
        await asyncio.sleep(0.25)


async def _ensure_one(link: Link, resource: Resource) -> None:
    found = await find(link, resource)
    if found is not None:
        _warn_of_differences(resource, found.config)
    else:
        await make_fitting(link, await _clipped(link, resource))


async def _clipped(link: Link, resource: Resource) -> Resource:
    """LOG-25: limit the default size of the logs to a tenth of what the account may store."""
    if resource.holds is not Holds.RUN_LOGS or resource.config["max_bytes"] != NatsBackendConfig.logs_max_bytes:
        return resource
    try:
        limit = (await link.api("INFO", {}, _Account)).limits.max_storage
    except (Unavailable, Rejected):  # not permitted for this role, or just now
        return resource
    if limit <= 0 or limit // 10 >= resource.config["max_bytes"]:
        return resource
    log.info("limiting the logs to a tenth of the storage", resource=resource.name, bytes=limit // 10)
    return replace(resource, config=resource.config | {"max_bytes": limit // 10})


async def make_fitting(link: Link, resource: Resource) -> bool:
    """Create a resource, halving its maximum size while the server lacks the storage.

    A deployment with a shorter queue, or fewer logs, is better than a gateway that does not start. Returns and raises
    as `make`.
    """
    config = resource.config
    while True:
        try:
            return await make(link, replace(resource, config=config))
        except Rejected as error:
            # A server that cannot set aside the size of the logs has less: its tenth is below a tenth of that size.
            is_first = config is resource.config and resource.holds is Holds.RUN_LOGS
            room = config.get("max_bytes", 0) // (10 if is_first else 2)
            if error.code not in _NO_ROOM or "stor" not in str(error) or room < _ROOM_MIN_BYTES:
                raise
            log.warning("NATS lacks storage for this stream; reducing its limit", resource=resource.name, bytes=room)
            config = config | {"max_bytes": room}


async def make(link: Link, resource: Resource) -> bool:
    """Create a resource. False: another process has just created it with other settings, which are kept.

    Raises Rejected, Unavailable.
    """
    try:
        await link.api(f"STREAM.CREATE.{resource.name}", resource.config, Info)
    except Rejected as error:
        if error.code != _NAME_IN_USE:
            raise
        return False
    link.expected[resource.name] = Expected(resource.config, resource.holds)
    log.info("created a JetStream resource", resource=resource.name)
    return True


async def find(link: Link, resource: Resource) -> Info | None:
    """Return the info of a resource. None: it does not exist. Raises Rejected, Unavailable."""
    try:
        found = await link.api(f"STREAM.INFO.{resource.name}", {}, Info)
    except Missing:
        return None
    link.expected[resource.name] = Expected(found.config, resource.holds)
    return found


#: Settings whose differences affect our guarantees. A longer history or another size limit is the operator's choice.
_COMPARED = ("subjects", "retention", "num_replicas", "max_age", "max_msgs_per_subject")


def _warn_of_differences(resource: Resource, found: dict[str, Any]) -> None:
    for name in _COMPARED:
        if name not in resource.config and name != "max_age":
            continue
        wanted, have = resource.config.get(name, 0), found.get(name, 0)
        if wanted != have:
            log.warning(
                "existing JetStream resource has other settings; not changed",
                resource=resource.name,
                setting=name,
                wanted=wanted,
                found=have,
            )
