"""Replicas of streams and of their durable consumers in JetStream."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.replicas import StreamReplica, StreamReplicas
from pyoco_server.errors import DeploymentRefused, Unavailable
from pyoco_server.ports.nats.answers import NOT_YET
from pyoco_server.ports.nats.ensuring import Cluster, Info
from pyoco_server.ports.nats.grid_resources import all_resources
from pyoco_server.ports.nats.link import Link, Missing, NoConnection, Rejected

__all__ = ["JetStreamReplicas"]

#: The stream that a trial creates and removes.
_TRIAL = "PYOCO_REPLICAS_TRIAL"
#: A restarted node needs some seconds, and a lost node is not noticed immediately.
_TRIAL_SECONDS = 20.0
#: How long to wait for a cluster that reports too few nodes: another one may be about to join.
_NODES_SECONDS = 3.0
_PAUSE_SECONDS = 0.1
#: The server itself waits four seconds for its nodes.
_LIST_SECONDS = 8.0


class _Consumer(msgspec.Struct):
    config: dict[str, Any]
    cluster: Cluster = msgspec.field(default_factory=Cluster)

    def is_behind(self, count: int) -> bool:
        """Return whether the loss of a node could lose this consumer.

        Consumers that end with their reader do not count.
        """
        config, peers = self.config, self.cluster.replicas
        if not config.get("durable_name") or config.get("inactive_threshold"):
            return False
        return len(peers) != count - 1 or any(peer.is_away or not peer.current for peer in peers)


class _Consumers(msgspec.Struct):
    total: int = 0
    consumers: list[_Consumer] | None = None
    missing: list[str] | None = None


@contextlib.contextmanager
def _refusals(doing: str) -> Iterator[None]:
    """The only place that translates refusals of JetStream into our errors."""
    try:
        yield
    except (Rejected, Missing) as error:
        raise DeploymentRefused(f"NATS refused to {doing}: {error}") from error


class JetStreamReplicas:
    def __init__(
        self,
        link: Link,
        config: NatsBackendConfig,
        priced: PricedConfig | None = None,
        grid: GridConfig | None = None,
    ) -> None:
        self._link = link
        self._names = tuple(resource.name for resource in all_resources(config, priced, grid))

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    async def look(self, stream: str) -> StreamReplicas | None:
        info = await self._info(stream)
        if info is None:
            return None
        found = StreamReplicas(
            stream=stream,
            wanted=int(info.config.get("num_replicas") or 1),
            leader=info.cluster.leader,
            followers=tuple(
                StreamReplica(peer.name, peer.current and not peer.offline, peer.is_away, peer.lag)
                for peer in info.cluster.replicas
            ),
            is_clustered=self._link.is_clustered,
        )
        if not found.is_clustered or not found.is_complete(found.wanted):
            return found  # its consumers are checked once the stream has all its replicas
        behind = sum([consumer.is_behind(found.wanted) async for consumer in self._consumers(stream)])
        return replace(found, consumers_behind=behind)

    async def change(self, stream: str, count: int) -> None:
        doing = f"keep {count} copies of {stream}"
        with _refusals(doing):
            info = await self._link.insist(f"STREAM.INFO.{stream}", {}, Info)
            if (info.config.get("num_replicas") or 1) != count:
                await self._patiently(f"STREAM.UPDATE.{stream}", info.config | {"num_replicas": count})
            # Ours use the replica count of their stream, but someone may have given a consumer its own.
            async for consumer in self._consumers(stream):
                own = consumer.config.get("num_replicas") or 0
                if own not in (0, count) and consumer.config.get("durable_name"):
                    request = {"stream_name": stream, "config": consumer.config | {"num_replicas": count}}
                    name = consumer.config["durable_name"]
                    await self._patiently(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", request)

    async def try_count(self, count: int) -> None:
        config = {"name": _TRIAL, "subjects": [f"{_TRIAL}.>"], "num_replicas": count, "storage": "file"}
        try:
            await self._remove_trial()  # left over from a process that was killed
            try:
                await self._patiently(f"STREAM.CREATE.{_TRIAL}", config, _NODES_SECONDS)
            except Rejected as error:
                raise _too_few(count, str(error)) from error
            deadline = time.monotonic() + _TRIAL_SECONDS
            while not (found := await self.look(_TRIAL)) or not found.is_complete(count):
                if time.monotonic() > deadline:
                    raise _too_few(count, _why(found))
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            with contextlib.suppress(Unavailable):  # the next trial removes it
                await self._remove_trial()

    async def _remove_trial(self) -> None:
        with _refusals(f"remove {_TRIAL}"):
            try:
                await self._link.insist(f"STREAM.DELETE.{_TRIAL}", {}, dict[str, Any])
            except Missing:
                return

    async def _info(self, stream: str) -> Info | None:
        with _refusals(f"tell of {stream}"):
            try:
                return await self._link.insist(f"STREAM.INFO.{stream}", {}, Info)
            except Missing:
                return None

    async def _consumers(self, stream: str) -> AsyncIterator[_Consumer]:
        """Yield all consumers of a stream, fetched in pages."""
        offset = 0
        while True:
            with _refusals(f"list the consumers of {stream}"):
                page = await self._page(stream, offset)
            found = page.consumers or []
            for name in page.missing or ():
                yield _Consumer({"durable_name": name})  # its node did not answer
            for consumer in found:
                yield consumer
            offset += len(found)
            if not found or offset >= page.total:
                return

    async def _page(self, stream: str, offset: int) -> _Consumers:
        """Fetch one page of consumers.

        Retries: the server answers late while it waits for nodes, and not at all without a leader.
        """
        deadline = time.monotonic() + self._link.patience.unanswered_seconds
        while True:
            try:
                return await self._link.api(
                    f"CONSUMER.LIST.{stream}", {"offset": offset}, _Consumers, seconds=_LIST_SECONDS
                )
            except Unavailable as error:
                if isinstance(error, NoConnection) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _patiently(self, subject: str, request: object, seconds: float | None = None) -> None:
        """Like `insist`, but also retry while the cluster is incomplete: a restarted node is back within seconds."""
        deadline = time.monotonic() + (self._link.patience.unanswered_seconds if seconds is None else seconds)
        while not await self._is_taken(subject, request, is_last=time.monotonic() > deadline):  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _is_taken(self, subject: str, request: object, *, is_last: bool) -> bool:
        try:
            await self._link.insist(subject, request, dict[str, Any])
        except Rejected as error:
            if error.code not in NOT_YET or is_last:
                raise
            return False
        return True


def _too_few(count: int, why: str) -> DeploymentRefused:
    return DeploymentRefused(
        f"{count} copies need {count} JetStream nodes that answer: {why}; start them, and ask again"
    )


def _why(found: StreamReplicas | None) -> str:
    if found is None:
        return "a stream that was made is not there"
    late = [keeper.name for keeper in found.followers if keeper.is_away or not keeper.is_current]
    return f"{', '.join(late)} does not answer" if late else "no leader was chosen"
