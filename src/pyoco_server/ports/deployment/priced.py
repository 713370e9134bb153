"""Inspect the stores of priced runs. Read-only; each check is bounded, and one that fails results in Unknown."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import stat
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.core.diagnosis.facts import Unknown
from pyoco_server.core.diagnosis.priced_facts import Absent, BucketFacts, LedgerFacts, PricedFacts, Redis, Sqs
from pyoco_server.errors import PyocoError, SettingError
from pyoco_server.logs import redact_url
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.connect import address, file_of
from pyoco_server.ports.ledger.port import Ledger as LedgerPort
from pyoco_server.ports.ledger.port import LedgerTx, Scan

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_sqs import SQSClient

__all__ = ["StoreOpeners", "look_at_priced"]

T = TypeVar("T")

#: Limit of one check, however many requests it takes.
_CHECK_SECONDS = 8.0
#: Number of rows that are named.
_ROWS_MAX = 20
#: A keeper handles due runs at least every minute; a run overdue for longer than this was missed.
_LATE_SECONDS = 300
_MICRO = 1_000_000


class _RedisLink(Protocol):
    async def start(self) -> None: ...

    def warnings(self) -> tuple[str, ...]: ...


def _none() -> contextlib.AbstractAsyncContextManager[None]:
    """Placeholder for a store that is not used."""
    return contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True)
class StoreOpeners:
    """How to open each store for inspection. Opening creates nothing."""

    ledger: Callable[[], contextlib.AbstractAsyncContextManager[LedgerPort]]
    redis: Callable[[], contextlib.AbstractAsyncContextManager[_RedisLink | None]] = _none
    sqs: Callable[[], contextlib.AbstractAsyncContextManager[SQSClient | None]] = _none
    s3: Callable[[], contextlib.AbstractAsyncContextManager[S3Client | None]] = _none


async def look_at_priced(config: NatsBackendConfig, priced: PricedConfig, openers: StoreOpeners) -> PricedFacts:
    """Never raises. O(1), whatever the number of runs."""
    ledger, redis, sqs, bucket, inputs_bucket = await asyncio.gather(
        _known(_ledger(config, priced, openers)),
        _known(_redis(openers)),
        _known(_sqs(priced, openers)),
        _known(_bucket(urlsplit(priced.results_url).netloc, openers)),
        _known(_bucket(priced.pack_input_bucket, openers)),
    )
    return PricedFacts(
        ledger=ledger,
        redis=redis,
        sqs=sqs,
        bucket=bucket,
        inputs_bucket=inputs_bucket,
        dead_letters_stream="" if priced.pack_queue_url else f"{priced.pack_stream}_DLQ",
        secret_length=len(priced.results_secret) if priced.results_secret and not priced.results_url else None,
    )


async def _known(looking: Awaitable[T]) -> T | Unknown:
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            return await looking
    except TimeoutError:
        return Unknown(f"no answer within {_CHECK_SECONDS:.0f} s")
    except PyocoError as error:
        return Unknown(str(error))
    except Exception as error:  # noqa: BLE001  (any error is a finding, defects of ours included)
        return Unknown(type(error).__name__)


async def _ledger(config: NatsBackendConfig, priced: PricedConfig, openers: StoreOpeners) -> LedgerFacts | Absent:
    url = priced.ledger_address(config.data_dir)
    where = address(url)
    path = file_of(where)
    if path is not None and not await asyncio.to_thread(path.exists):
        return Absent(str(path))
    shown = str(path) if path is not None else redact_url(url)
    schema = await asyncio.to_thread(migrate.status, url)
    ledger_id = await asyncio.to_thread(migrate.stored_id_at, url)
    found = LedgerFacts(
        where=shown,
        version=schema.version,
        wanted=schema.wanted,
        is_known=schema.is_known,
        ledger_id=ledger_id,
    )
    if path is not None:
        mode, journal = await asyncio.to_thread(_file, path)
        found = replace(found, mode=mode, journal=journal)
    if not found.is_current:
        return found
    async with openers.ledger() as ledger:
        disputed, overdue = await ledger.read(lambda tx: (_ids(tx, Scan.DISPUTED), _overdue(tx, priced)))
    return replace(found, disputed=disputed, overdue=overdue)


def _file(path: Path) -> tuple[int, str]:
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as opened:
        (journal,) = opened.execute("PRAGMA journal_mode").fetchone()
    return stat.S_IMODE(path.stat().st_mode), str(journal)


def _ids(tx: LedgerTx, kind: Scan) -> tuple[str, ...]:
    return tuple(run.run_id for run in tx.runs.scan(kind, _ROWS_MAX))


def _overdue(tx: LedgerTx, priced: PricedConfig) -> tuple[str, ...]:
    """Return overdue runs. Scans return the oldest first, so reading a few of them is enough."""
    now = tx.now_us()
    late = now - _LATE_SECONDS * _MICRO
    found = [
        *_ids(tx, Scan.LONG_EXPIRED_LEASES),
        *_made_before(tx, Scan.AGED, late - priced.priced_reservation_ttl_sec * _MICRO),
        *_made_before(tx, Scan.ABANDONED, late - priced.priced_submit_abandon_sec * _MICRO),
    ]
    return tuple(found)


def _made_before(tx: LedgerTx, kind: Scan, at_us: int) -> list[str]:
    return [run.run_id for run in tx.runs.scan(kind, _ROWS_MAX) if run.created_at < at_us]


async def _redis(openers: StoreOpeners) -> Redis | None:
    async with openers.redis() as link:
        if link is None:
            return None
        try:
            await link.start()
        except SettingError as error:
            return Redis(unfit=str(error))
        return Redis(dangers=link.warnings())


async def _sqs(priced: PricedConfig, openers: StoreOpeners) -> Sqs | Absent | None:
    async with openers.sqs() as client:
        if client is None:
            return None
        name = urlsplit(priced.pack_queue_url).netloc
        counts = []
        for each in (name, f"{name}-dlq"):
            try:
                url = (await client.get_queue_url(QueueName=each))["QueueUrl"]
            except client.exceptions.QueueDoesNotExist:
                return Absent(each)
            answer = await client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
            counts.append(int(answer["Attributes"]["ApproximateNumberOfMessages"]))
        return Sqs(name, *counts)


async def _bucket(name: str, openers: StoreOpeners) -> BucketFacts | None:
    async with openers.s3() as client:
        if client is None:
            return None
        await client.head_bucket(Bucket=name)
        return BucketFacts(name)
