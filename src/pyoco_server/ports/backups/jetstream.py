"""Copy streams out and in with JetStream's own snapshots, and read what those leave out.

A snapshot reads a stream from its first message to the last one at the time of the request, and copies what exists when
it gets there. If a bucket is written meanwhile, the snapshot may contain neither the new value of a key, which lies
behind its end, nor the old one, if that was replaced before the snapshot reached it. Measured with 2.15.1: a third of
3,000 keys was missing after every other key had been written again. That is why `changes` exists.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec
import nats.errors

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.backup import StreamCopy, with_replicas
from pyoco_server.core.backup_change import LateChange
from pyoco_server.core.backup_mark import BackupMark, dated, marked, unmarked
from pyoco_server.errors import BackupFailed, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backups.incoming import SILENCE_SECONDS, Incoming, listening
from pyoco_server.ports.backups.port import Copying, FoundStream
from pyoco_server.ports.backups.reader import read_behind
from pyoco_server.ports.nats.answers import NOT_YET
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.grid_resources import grid_resources
from pyoco_server.ports.nats.link import Futile, Link, Missing, Rejected
from pyoco_server.ports.nats.resources import priced_resources, resources_of

__all__ = ["JetStreamStreams"]

log = get_logger(__name__)

_NO_MESSAGE_FOUND = 10037
#: Below any sensible `max_payload`. The server sends about 8 MB before it waits for our acks; a copy takes no more
#: memory than that.
_CHUNK_BYTES = 128 * 1024
#: The server unpacks a restored stream after the last byte has arrived: minutes for tens of gigabytes.
_UNPACK_SECONDS = 1800.0
#: The stream that a trial restore creates and removes.
_TRIAL = "PYOCO_RESTORE_TRIAL"
#: The server's headers that keep their meaning when a message is stored again.
_KEPT_HEADERS = frozenset({"Nats-TTL", "Nats-Rollup", "Nats-Marker-Reason", "Nats-Msg-Id"})


class _Snapshot(msgspec.Struct):
    config: dict[str, Any]
    state: dict[str, Any]


class _Restoring(msgspec.Struct):
    deliver_subject: str


class _Info(msgspec.Struct):
    config: dict[str, Any]
    state: dict[str, Any]


class _Consumer(msgspec.Struct):
    config: dict[str, Any]
    num_waiting: int = 0
    push_bound: bool = False


class _Consumers(msgspec.Struct):
    total: int = 0
    consumers: list[_Consumer] | None = None


@contextlib.contextmanager
def _refusals(doing: str) -> Iterator[None]:
    """The only place that translates refusals of JetStream into our errors."""
    try:
        yield
    except (Rejected, Missing) as error:
        printable = "".join(character if character.isprintable() else "?" for character in str(error))
        refused = BackupFailed(f"NATS refused to {doing}: {printable}")
        if "replicas" in str(error):
            refused.add_note("--replicas says how many copies of each message this server is to keep")
        raise refused from error
    except nats.errors.Error as error:
        raise Unavailable(f"cannot {doing}: {error}") from error


class JetStreamStreams:
    def __init__(
        self,
        link: Link,
        config: NatsBackendConfig,
        priced: PricedConfig | None = None,
        grid: GridConfig | None = None,
    ) -> None:
        self._link, self._config = link, config
        of_priced_runs = priced_resources(config, priced) if priced is not None else ()
        of_programs = grid_resources(config, grid) if grid is not None else ()
        # Alarms hold nothing of their own: keepers set those that are missing from the records of the runs.
        self._resources = (*resources_of(config, {config.clock_stream}), *of_priced_runs, *of_programs)
        parts = (frozenset(each.name for each in part) for part in (of_priced_runs, of_programs))
        self.parts = tuple(part for part in parts if part)
        #: Streams that record the time of their restore: messages sent to them before are sent again.
        self._dated = {priced.pack_stream} if priced is not None else set()
        queues = {config.work_stream} | ({priced.pack_stream} if priced is not None else set())
        queues |= {grid.exec_stream} if grid is not None else set()
        self._subjects = {each.name: each.config["subjects"] for each in self._resources if each.name in queues}

    @property
    def nats_version(self) -> str:
        return str(self._link.nc.server_info.get("version", "unknown"))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(resource.name for resource in self._resources)

    @property
    def queues(self) -> tuple[str, ...]:
        return tuple(self._subjects)

    async def found(self) -> tuple[FoundStream, ...]:
        seen = [await self.find(name) for name in self.names]
        return tuple(each for each in seen if each is not None)

    async def find(self, name: str) -> FoundStream | None:
        try:
            with _refusals(f"tell of {name}"):
                info = await self._info(name)
                consumers = await self._consumers(name)
        except BackupFailed as error:
            if isinstance(error.__cause__, Missing):
                return None
            raise
        return FoundStream(
            name=name,
            config=info.config,
            messages=info.state["messages"],
            last_sequence=info.state["last_seq"],
            size_bytes=info.state["bytes"],
            is_queue=info.config.get("retention") == "workqueue",
            consumers=tuple(_as_made(each.config) for each in consumers if each.config.get("durable_name")),
            listeners=sum(each.num_waiting > 0 or each.push_bound for each in consumers),
        )

    async def _consumers(self, name: str) -> list[_Consumer]:
        all_of_them: list[_Consumer] = []
        while True:
            page = await self._link.insist(f"CONSUMER.LIST.{name}", {"offset": len(all_of_them)}, _Consumers)
            all_of_them += page.consumers or []
            if not page.consumers or len(all_of_them) >= page.total:
                return all_of_them

    @contextlib.asynccontextmanager
    async def copy(self, name: str, *, with_consumers: bool) -> AsyncIterator[Copying]:
        async with listening(self._link) as incoming:
            request = {
                "deliver_subject": incoming.subject,
                "no_consumers": not with_consumers,
                "chunk_size": _CHUNK_BYTES,
            }
            with _refusals(f"copy {name}"):
                begun = await self._link.api(f"STREAM.SNAPSHOT.{name}", request, _Snapshot, seconds=SILENCE_SECONDS)
            yield Copying(begun.config, begun.state, self._chunks(name, incoming))

    async def _chunks(self, name: str, incoming: Incoming) -> AsyncIterator[bytes]:
        while True:
            message = await incoming.next()
            if not message.data:
                if message.status in {None, "204"}:
                    return
                raise BackupFailed(f"NATS broke off the copy of {name}: {message.status} {message.description}")
            yield message.data
            if message.reply:  # only now: the speed of the writer limits the server
                with _refusals(f"copy {name}"):
                    await self._link.nc.publish(message.reply, b"")

    async def changes(self, name: str, after: int) -> AsyncGenerator[LateChange, None]:
        with _refusals(f"read {name}"):
            async with contextlib.aclosing(read_behind(self._link, name, after)) as changes:
                async for change in changes:
                    yield change

    @contextlib.asynccontextmanager
    async def new_jobs(self, queue: str) -> AsyncIterator[_NewJobs]:
        heard: asyncio.Queue[Raw | None] = asyncio.Queue()
        (subject,) = self._subjects[queue]
        subscription = await self._link.nc.listen(subject, heard.put_nowait)
        try:
            await self._settle()  # no job is missed from here on
            self._link.check_heard(subject)
            yield _NewJobs(self._link, heard, self._settle)
        finally:
            self._link.nc.forget(subscription)
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _settle(self) -> None:
        """Wait for one round trip: every message sent to us earlier has then arrived."""
        with _refusals("listen for new jobs"):
            await self._link.insist("INFO", {}, dict[str, Any])

    async def remove(self, name: str) -> None:
        try:
            with _refusals(f"remove {name}"):
                await self._link.insist(f"STREAM.DELETE.{name}", {}, dict[str, Any])
        except BackupFailed as error:
            if not isinstance(error.__cause__, Missing):
                raise

    async def restore(
        self,
        stream: StreamCopy,
        backup_id: str,
        replicas: int | None,
        chunks: AsyncIterable[bytes],
        changes: AsyncIterable[LateChange],
    ) -> None:
        config = with_replicas(stream.config, replicas)
        if stream.name in self._dated:
            config = dated(config, int(time.time() * 1_000_000))
        with _refusals(f"restore {stream.name}"):
            await self._upload(marked(config, BackupMark(backup_id)), stream.state, chunks)
            for consumer in stream.consumers:
                where = f"CONSUMER.DURABLE.CREATE.{stream.name}.{consumer['durable_name']}"
                request = {"stream_name": stream.name, "config": consumer}
                await self._link.insist(where, request, dict[str, Any])
            await self._put(stream, changes)
            state = (await self._info(stream.name)).state
            complete = BackupMark(backup_id, (state["last_seq"], state["messages"]))
            await self._link.insist(f"STREAM.UPDATE.{stream.name}", marked(config, complete), dict[str, Any])

    async def unmark(self, name: str) -> None:
        with _refusals(f"finish {name}"):
            config = unmarked((await self._info(name)).config)
            await self._link.insist(f"STREAM.UPDATE.{name}", config, dict[str, Any])

    async def _info(self, name: str) -> _Info:
        return await self._link.insist(f"STREAM.INFO.{name}", {}, _Info)

    async def try_restore(self, stream: StreamCopy, replicas: int | None, chunks: AsyncIterable[bytes]) -> None:
        trial = {**with_replicas(stream.config, replicas), "name": _TRIAL, "subjects": [f"{_TRIAL}.>"]}
        await self.remove(_TRIAL)  # left over from an interrupted trial
        with _refusals(f"restore {stream.name}"):
            await self._upload(trial, stream.state, chunks)
        await self.remove(_TRIAL)

    async def _upload(self, config: Mapping[str, Any], state: Mapping[str, Any], chunks: AsyncIterable[bytes]) -> None:
        begun = await self._begin_restore(str(config["name"]), {"config": config, "state": state})
        async for chunk in chunks:
            _check(await self._link.ask(begun.deliver_subject, chunk, seconds=SILENCE_SECONDS))
        _check(await self._link.ask(begun.deliver_subject, b"", seconds=_UNPACK_SECONDS))

    async def _begin_restore(self, name: str, request: object) -> _Restoring:
        """Begin a restore. Retries while a cluster that has just started has not found all its nodes."""
        deadline = time.monotonic() + self._link.patience.unanswered_seconds
        while True:
            try:
                return await self._link.api(f"STREAM.RESTORE.{name}", request, _Restoring, seconds=SILENCE_SECONDS)
            except Rejected as error:
                if error.code not in NOT_YET or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.25)

    async def _put(self, stream: StreamCopy, changes: AsyncIterable[LateChange]) -> None:
        """Store each message of a bucket at its original sequence.

        A job refers to its run's record by sequence, and must not find another record there. A sequence whose message
        was superseded is filled by storing the next message repeatedly; the bucket keeps only the last one.
        """
        have = (await self._info(stream.name)).state["last_seq"]
        async for change in changes:
            if stream.is_keyed and change.sequence <= have and await self._has(stream.name, change):
                continue  # the snapshot contains more than it reported, as those of older servers may
            headers = _headers(change, stream)
            while True:
                have = await self._store(stream.name, change, headers)
                if not stream.is_keyed or have >= change.sequence:
                    break

    async def _has(self, name: str, change: LateChange) -> bool:
        """Return whether the stream holds this message, or a later one of its subject."""
        try:
            request = {"last_by_subj": change.subject}
            found = await self._link.insist(f"STREAM.MSG.GET.{name}", request, dict[str, Any])
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return False
            raise
        return int(found["message"]["seq"]) >= change.sequence

    async def _store(self, stream: str, change: LateChange, headers: Mapping[str, str]) -> int:
        """Store a message. Retries while a new stream is still electing its leader."""
        deadline = time.monotonic() + self._link.patience.unanswered_seconds
        while True:
            try:
                return await self._link.store(change.subject, change.data, headers, stream=stream)
            except Unavailable as error:
                if isinstance(error, Futile) or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.1)


class _NewJobs:
    def __init__(self, link: Link, heard: asyncio.Queue[Raw | None], settle: Callable[[], Awaitable[None]]) -> None:
        self._link, self._heard, self._settle = link, heard, settle
        self._connection = link.connection

    async def arrivals(self) -> AsyncGenerator[LateChange, None]:
        while (message := await self._heard.get()) is not None:
            yield LateChange(0, message.subject, message.data, message.headers)
        if self._connection != self._link.connection:
            raise Unavailable("the connection to NATS was lost, and jobs may have been missed; begin the backup anew")

    async def end(self) -> None:
        await self._settle()
        self._heard.put_nowait(None)


def _as_made(config: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the metadata that the server itself added."""
    noted = {name: value for name, value in (config.get("metadata") or {}).items() if not name.startswith("_nats.")}
    return {**{name: value for name, value in config.items() if name != "metadata"}, "metadata": noted}


def _headers(change: LateChange, stream: StreamCopy) -> dict[str, str]:
    """Return the headers to store a message with again. Conditions of the original write no longer apply.

    Without the message id for a bucket: a repeat that fills a sequence must be stored, not deduplicated.
    """
    kept = _KEPT_HEADERS - {"Nats-Msg-Id"} if stream.is_keyed else _KEPT_HEADERS  # repeats must be stored
    if stream.name.startswith("KV_"):  # most buckets refuse it, and it would remove messages restored before
        kept -= {"Nats-Rollup"}
    return {name: value for name, value in change.headers.items() if name in kept or not name.startswith("Nats-")}


def _check(answer: Raw) -> None:
    """Check the server's reply to a chunk of a restored stream: empty, or an error. Raises Rejected."""
    if answer.data:
        fault = msgspec.json.decode(answer.data, type=dict[str, Any]).get("error")
        if fault is not None:
            raise Rejected(int(fault.get("err_code", 0)), str(fault.get("description", "")))
