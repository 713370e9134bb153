"""Inspect NATS over a separate connection. Read-only: it changes nothing in the deployment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import nats.errors

from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.diagnosis.facts import (
    MISSING,
    Account,
    Found,
    Keeper,
    Missing,
    Off,
    Orphans,
    Server,
    StreamFacts,
    Trouble,
    Unknown,
    Unreachable,
    Unreadable,
    Workers,
    WorkQueueFacts,
)
from pyoco_server.core.run import Run
from pyoco_server.core.worker_record import WorkerRecord, read_worker
from pyoco_server.errors import Corrupt, NotStored, PyocoError
from pyoco_server.ports.deployment.answers import (
    CONSUMER_PREFIX,
    AccountInfo,
    ConsumerInfo,
    Consumers,
    Got,
    StreamInfo,
    account_of,
    found_of,
    instant_of,
    tag_queue_of,
)
from pyoco_server.ports.known_ledger.port import KnownLedger
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.grid_resources import grid_resources
from pyoco_server.ports.nats.link import Futile, Link, Patience, Rejected
from pyoco_server.ports.nats.link import Missing as NatsMissing
from pyoco_server.ports.nats.resources import PRICED_BUCKET, Resource, priced_resources, resources_of
from pyoco_server.ports.nats.watch import watch
from pyoco_server.ports.objects.port import Objects
from pyoco_server.ports.runs.port import Removed, Runs, Stored

__all__ = ["PATIENCE", "JetStreamDeployment"]

T = TypeVar("T")

#: The doctor does not wait out an outage: no answer is a finding, too.
PATIENCE = Patience(down_seconds=1.0, unanswered_seconds=2.0, answer_seconds=2.0)

_CONNECT_SECONDS = 3.0
#: Limit of one check, however many requests it takes.
_CHECK_SECONDS = 5.0
#: A keeper requests notices with pulls of two seconds, and pauses between them.
_KEEPER_SECONDS = 4.0
_KEEPER_CONSUMER = "pyoco_keeper"
_PINGS = 3
#: Time to read run records, at about 10,000 per second.
_RECORDS_SECONDS = 3.0
_UNREADABLE_MAX = 100
#: Number of tags whose oldest job is read.
_TAGS_MAX = 50

_NOT_ENABLED = frozenset({10039, 10076})
_CONSUMER_NOT_FOUND = 10014
_NO_MESSAGE_FOUND = 10037


class JetStreamDeployment:
    """Takes a link that is not open yet: `reach` opens it, and reports whether that works."""

    #: Newer chunks are not reported as orphans: their upload may still be running.
    upload_seconds = 3600.0

    def __init__(
        self,
        link: Link,
        config: NatsBackendConfig,
        runs: Runs,
        stores: Mapping[str, Objects],
        priced: PricedConfig | None = None,
        grid: GridConfig | None = None,
        known_ledger: KnownLedger | None = None,
    ) -> None:
        self._known_ledger = known_ledger
        self._link, self._config, self._runs, self._stores = link, config, runs, stores
        of_priced_runs = priced_resources(config, priced) if priced is not None else ()
        of_programs = grid_resources(config, grid) if grid is not None else ()
        #: A deployment that never had a ledger needs no resource of the first part, an old gateway none of the second.
        self._parts = (of_priced_runs, of_programs)
        #: An error from before the connection was established; not reported again.
        self._old_trouble: Exception | None = None

    async def reach(self) -> Server | Unreachable:
        try:
            return await self._reach()
        except Exception as error:  # noqa: BLE001  (any error of the library for this address is the answer)
            return _unreachable(self._link.nc.last_error or error.__cause__ or error)

    async def _reach(self) -> Server:
        await self._link.open(access_of(self._config), "pyoco-doctor", _CONNECT_SECONDS)
        seconds = await self._round_trip()
        self._old_trouble = self._link.nc.last_error
        info: dict[str, Any] = dict(self._link.nc.server_info)
        return Server(
            name=str(info.get("server_name", "")),
            version=str(info.get("version", "")),
            round_trip_seconds=seconds,
            payload_bytes_max=int(info.get("max_payload", 0)),
            listens_on=str(info.get("host", "")),
            wants_login=bool(info.get("auth_required")),
            wants_tls=bool(info.get("tls_required")),
            cluster=str(info.get("cluster") or ""),
        )

    async def _round_trip(self) -> float:
        """Return the best of a few: the first one includes the cost of the connection itself."""
        best = _CHECK_SECONDS
        for _ in range(_PINGS):
            asked = time.monotonic()
            await self._link.nc.flush(2)
            best = min(best, time.monotonic() - asked)
        return best

    async def account(self) -> Account | Off | Unknown:
        return await self._known(self._account())

    async def _account(self) -> Account | Off:
        try:
            return account_of(await self._link.api("INFO", {}, AccountInfo))
        except Futile:
            raise
        except NotStored:  # no responders
            return Off("the server or the account has it turned off")
        except Rejected as error:
            if error.code in _NOT_ENABLED:
                return Off(str(error))
            raise  # such as "temporarily unavailable": JetStream is on, but most of its nodes are missing

    async def streams(self) -> tuple[StreamFacts, ...]:
        ours, *parts = await asyncio.gather(
            *(self._streams(resources) for resources in (resources_of(self._config), *self._parts))
        )
        found = (part for part in parts if any(each.state is not MISSING for each in part))
        return (*ours, *itertools.chain.from_iterable(found))

    async def _streams(self, resources: Sequence[Resource]) -> list[StreamFacts]:
        return await asyncio.gather(*(self._stream(resource) for resource in resources))

    async def _stream(self, resource: Resource) -> StreamFacts:
        state = await self._known(self._find(resource.name))
        return StreamFacts(resource.name, resource.config, state)

    async def _find(self, name: str) -> Found | Missing:
        try:
            info = await self._link.insist(f"STREAM.INFO.{name}", {}, StreamInfo)
        except NatsMissing:
            return MISSING
        return found_of(info)

    async def clock_ahead(self) -> float | Unknown:
        return await self._known(self._clock_ahead())

    async def _clock_ahead(self) -> float | Unknown:
        asked = time.time()
        info = await self._link.api(f"STREAM.INFO.KV_{self._config.runs_kv_bucket}", {}, StreamInfo)
        answered = time.time()
        if info.ts is None:
            return Unknown("NATS does not tell the time")
        server_time = info.ts.timestamp()
        # NATS read its clock at some moment between the two: only a time outside that interval is a difference.
        return max(0.0, asked - server_time) or min(0.0, answered - server_time)

    async def queue(self) -> WorkQueueFacts | Unknown:
        return await self._known(self._queue())

    async def _queue(self) -> WorkQueueFacts:
        stream, prefix = self._config.work_stream, f"{self._config.work_subject_prefix}."
        request = {"subjects_filter": f"{prefix}>"}
        info = await self._link.insist(f"STREAM.INFO.{stream}", request, StreamInfo)
        jobs = {subject.removeprefix(prefix): count for subject, count in (info.state.subjects or {}).items()}
        consumers = await self._consumers(stream)
        oldest = await asyncio.gather(*(self._oldest(stream, prefix, tag) for tag in list(jobs)[:_TAGS_MAX]))
        return WorkQueueFacts(
            tag_queues=tuple(tag_queue_of(each) for each in consumers if each.name.startswith(CONSUMER_PREFIX)),
            jobs=jobs,
            oldest_at={tag: at for tag, at in zip(jobs, oldest, strict=False) if at is not None},
            strangers=tuple(each.name for each in consumers if not each.name.startswith(CONSUMER_PREFIX)),
        )

    async def _consumers(self, stream: str) -> list[ConsumerInfo]:
        found: list[ConsumerInfo] = []
        while True:
            page = await self._link.insist(f"CONSUMER.LIST.{stream}", {"offset": len(found)}, Consumers)
            found += page.consumers or []
            if not page.consumers or len(found) >= page.total:
                return found

    async def _oldest(self, stream: str, prefix: str, tag: str) -> float | None:
        """Return when the oldest job of this tag was stored. None: the job was deleted in the meantime."""
        request = {"seq": 1, "next_by_subj": f"{prefix}{tag}"}
        return await self._stored_at(stream, request)

    async def _stored_at(self, stream: str, request: dict[str, Any]) -> float | None:
        try:
            got = await self._link.insist(f"STREAM.MSG.GET.{stream}", request, Got)
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return None
            raise
        return instant_of(got.message.time)

    async def workers(self) -> Workers | Unknown:
        return await self._known(self._workers())

    async def _workers(self) -> Workers:
        bucket = Bucket(self._link, self._config.workers_kv_bucket)
        await self._link.insist(f"STREAM.INFO.{bucket.stream}", {}, StreamInfo)  # a watch never ends without it
        found: dict[str, WorkerRecord | None] = {}
        async with contextlib.aclosing(watch(self._link, bucket)) as batches:
            async for batch in batches:
                for entry in batch.entries:
                    found.pop(entry.key, None)
                    if entry.value is not None:
                        found[entry.key] = _record(entry.value)
                if batch.caught_up:
                    break
        records = tuple(record for record in found.values() if record is not None)
        return Workers(records, tuple(key for key, record in found.items() if record is None))

    async def keeper(self) -> Keeper | Unknown:
        return await self._known(self._keeper(), _KEEPER_SECONDS + _CHECK_SECONDS)

    async def _keeper(self) -> Keeper:
        """Check repeatedly whether a keeper is waiting for notices: between two pulls it pauses, so one check may miss
        it."""
        stream = self._config.advisory_stream
        info = await self._link.insist(f"STREAM.INFO.{stream}", {}, StreamInfo)
        notices, oldest_at = info.state.messages, instant_of(info.state.first_ts) if info.state.messages else None
        deadline = time.monotonic() + _KEEPER_SECONDS
        was_here = is_listening = False
        while not is_listening and time.monotonic() < deadline:
            try:
                consumer = await self._link.insist(f"CONSUMER.INFO.{stream}.{_KEEPER_CONSUMER}", {}, ConsumerInfo)
            except Rejected as error:
                if error.code != _CONSUMER_NOT_FOUND:
                    raise
                break
            was_here, is_listening = True, consumer.num_waiting > 0
            await asyncio.sleep(0 if is_listening else 0.1)
        return Keeper(was_here=was_here, is_listening=is_listening, notices=notices, oldest_at=oldest_at)

    async def remembered_ledger(self) -> str | Unknown | None:
        return await self._known(self._remembered_ledger())

    async def _remembered_ledger(self) -> str | None:
        if self._known_ledger is None or isinstance(await self._find(f"KV_{PRICED_BUCKET}"), Missing):
            return None
        return (await self._known_ledger.get()).ledger_id

    async def orphans(self) -> tuple[Orphans | Unknown, ...]:
        checks = (self._known(self._orphans(bucket, store)) for bucket, store in self._stores.items())
        return tuple(await asyncio.gather(*checks))

    async def _orphans(self, bucket: str, store: Objects) -> Orphans:
        strays = await store.strays(self.upload_seconds)
        return Orphans(bucket=bucket, count=len(strays), size_bytes=sum(each.size_bytes for each in strays))

    async def unreadable(self) -> Unreadable | Unknown:
        return await self._known(self._unreadable())

    async def _unreadable(self) -> Unreadable:
        await self._link.insist(f"STREAM.INFO.KV_{self._config.runs_kv_bucket}", {}, StreamInfo)  # as above
        found: dict[str, None] = {}
        number, is_all = 0, False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RECORDS_SECONDS), contextlib.aclosing(self._runs.changes()) as changes:
                async for change in changes:
                    number += len(change.items)
                    for item in change.items:
                        if isinstance(item, Removed) and item.is_corrupt:
                            found[item.run_id] = None
                        elif isinstance(item, Stored):
                            found.pop(item.run.run_id, None)
                    is_all = change.caught_up
                    if is_all:
                        break
        return Unreadable(tuple(found)[:_UNREADABLE_MAX], number, is_all)

    async def runs(self, run_ids: Sequence[str]) -> tuple[Run, ...] | Unknown:
        return await self._known(self._find_runs(run_ids))

    async def _find_runs(self, run_ids: Sequence[str]) -> tuple[Run, ...]:
        found = await asyncio.gather(*(self._find_run(run_id) for run_id in run_ids))
        return tuple(run for run in found if run is not None)

    async def _find_run(self, run_id: str) -> Run | None:
        try:
            found = await self._runs.find(run_id)
        except (Corrupt, Rejected):  # Rejected: a foreign record may contain an invalid run id
            return None
        return found.run if isinstance(found, Stored) else None

    async def _known(self, looking: Awaitable[T], seconds: float = _CHECK_SECONDS) -> T | Unknown:
        """Bound a check, and turn every failure into Unknown. Every check except `reach` runs through this."""
        try:
            async with asyncio.timeout(seconds):
                return await looking
        except Exception as error:  # noqa: BLE001  (any error is a finding, defects of ours included)
            return Unknown(self._error_text(error))

    def _error_text(self, error: Exception) -> str:
        """Return the error's text, with NATS's last error if it is new: a request without permission gets no answer at
        all."""
        text = str(error) or f"no answer within {_CHECK_SECONDS:.0f} s"
        if not isinstance(error, PyocoError | Rejected | nats.errors.Error | TimeoutError):
            text = f"{type(error).__name__}: {error}"
        trouble = self._link.nc.last_error
        is_news = trouble is not None and trouble is not self._old_trouble and not isinstance(error, Rejected)
        return f"{text}; NATS said: {trouble}" if is_news else text


def _unreachable(error: BaseException) -> Unreachable:
    why = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        why = f"no answer within {_CONNECT_SECONDS:.0f} s"
    is_refused = isinstance(error, nats.errors.Error) and "asks for tls" in why  # raised by our own client
    failures = (ssl.SSLError, nats.errors.SecureConnRequiredError, nats.errors.SecureConnFailedError)
    if is_refused or isinstance(error, failures):
        return Unreachable(Trouble.TLS_FAILED, why)
    if "authorization" in why.lower() or "authentication" in why.lower():
        return Unreachable(Trouble.LOGIN_REFUSED, why)
    return Unreachable(Trouble.NOBODY_ANSWERS, why)


def _record(data: bytes) -> WorkerRecord | None:
    try:
        return read_worker(data)
    except Corrupt:
        return None
