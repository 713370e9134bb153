"""Settings in, the stores of priced runs out. Names their adapters, as `wiring/backend.py` names the others.

What belongs to an extra is imported when it is asked for: SQLite and JetStream need nothing besides.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyoco_server.actions.priced.agree_on_ledger import (
    Standing,
    agree_on_ledger,
    compare_ledger,
    refuse_missing_ledger,
)
from pyoco_server.actions.priced.change_mode import agree_on_mode
from pyoco_server.config import AwsSettings, NatsBackendConfig, PricedConfig
from pyoco_server.core.packs import PACKS
from pyoco_server.errors import DependencyUnavailable, LedgerOutdated, OtherLedger, SettingError, UsageError
from pyoco_server.logs import get_logger, redact_url
from pyoco_server.loops.priced.ledger_watch import LedgerWatch
from pyoco_server.loops.priced.projector import Projector
from pyoco_server.ports.deployment.priced import Looks
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.known_ledger.port import KnownLedger
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.port import BudgetMode, Spans
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.ports.memory.named import name_in
from pyoco_server.ports.nats.access import access_of
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.pack_queue.port import PackQueue
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.runs.port import Runs
from pyoco_server.wiring.offer import offered_packs
from pyoco_server.wiring.stores import need, open_budget, open_redis, open_stores

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_sqs import SQSClient

__all__ = [
    "PricedSettings",
    "ledger_status",
    "make_named_ledger",
    "migrate_ledger",
    "open_money",
    "open_money_of_any_mode",
    "open_pack_queue",
    "open_priced",
    "priced_looks",
]

log = get_logger(__name__)

_FIRST_TRY_SECONDS = 10.0
_AGAIN_SECONDS = 2.0
#: So long a worker waits for a gateway's file before it complains.
_QUIET_SECONDS = 30.0
#: Connections to PostgreSQL that write at once, and half as many that read: it has a hundred for all processes.
_GATEWAY_THREADS, _THREADS = 8, 4


@dataclass(frozen=True, kw_only=True)
class PricedSettings:
    """What a process knows before it has opened anything."""

    config: NatsBackendConfig
    priced: PricedConfig
    aws: AwsSettings
    new_id: Callable[[], str]
    #: A gateway signs addresses of results; a worker or keeper does not.
    signs: bool = False
    #: A gateway makes the file when no ledger is named; others wait for it: a worker in another directory would
    #: make one of its own, and know none of the runs.
    makes_file: bool = False
    #: A service makes the tables of an empty database. A command does not: a slip in an address would become a ledger.
    makes_tables: bool = True

    @property
    def ledger_url(self) -> str:
        return self.priced.ledger_address(self.config.data_dir)

    @property
    def decides(self) -> bool:
        """Whether its ledger becomes the one of the deployment where none is remembered. A ledger in memory is gone
        with the process, and a NATS server would remember it for ever."""
        outlives = name_in(self.ledger_url) is not None and name_in(self.config.nats_url) is None
        return self.makes_file and not outlives


def spans_of(priced: PricedConfig) -> Spans:
    return Spans(
        lease_seconds=priced.priced_lease_ttl_sec,
        reservation_seconds=priced.priced_reservation_ttl_sec,
        submit_abandon_seconds=priced.priced_submit_abandon_sec,
        resend_after_seconds=priced.priced_resend_after_sec,
        reconcile_after_seconds=priced.priced_reconcile_after_sec,
        retention_seconds=priced.priced_retention_sec,
    )


def _ledger(settings: PricedSettings, check_allowed: Callable[[], None] = lambda: None) -> SqlLedger:
    url = settings.ledger_url
    if url.startswith("postgresql"):
        need("psycopg", "PYOCO_LEDGER_URL")
    threads = _GATEWAY_THREADS if settings.signs else _THREADS
    return SqlLedger(
        url,
        spans_of(settings.priced),
        make_missing=settings.makes_tables,
        threads=threads,
        check_allowed=check_allowed,
    )


@contextlib.asynccontextmanager
async def open_priced(settings: PricedSettings, link: Link, runs: Runs) -> AsyncIterator[Priced]:
    """What a gateway, worker or keeper reaches. A store that does not answer yet is tried again for as long as it
    takes, beside everything else: flows do not wait for a ledger. `Priced.until_open` tells when all answer.

    Raises UsageError for a missing package, SettingError, LedgerOutdated when the tables are there and of another
    version, and OtherLedger when this is not the deployment's ledger (SAFE-12).
    """
    # A worker looks for itself when it begins to execute, and a keeper needs none.
    packs = await asyncio.to_thread(offered_packs, settings.priced) if settings.signs else PACKS
    standing = Standing()
    ledger = _ledger(settings, standing.check)
    known = JetStreamKnownLedger(link, settings.config)
    watch = LedgerWatch(lambda: _compare(settings, ledger, known), standing)
    projector = Projector(runs)
    async with open_redis(settings.priced) as redis, open_stores(settings, link) as stores:
        budget, idempotency_locks = open_budget(redis, ledger, settings.priced)

        steps: list[Callable[[], Awaitable[None]]] = [lambda: _open_ledger(settings, ledger, known, standing)]
        if redis is not None:
            steps.append(redis.start)
        steps += [stores.queue.start, stores.results.start, stores.inputs.start]
        opening = _Opening(steps, standing)
        try:
            await projector.start()
            await opening.begin()
            await watch.start()
            yield Priced(
                config=settings.priced,
                ledger=ledger,
                budget=budget,
                queue=stores.queue,
                results=stores.results,
                inputs=stores.inputs,
                idempotency_locks=idempotency_locks,
                packs=packs,
                new_id=settings.new_id,
                show=projector.show,
                until_open=opening.is_open.wait,
                owns_ledger=lambda: standing.is_own,
            )
        finally:
            await watch.stop()
            await opening.end()
            await projector.stop()
            await ledger.close()


async def _open_ledger(settings: PricedSettings, ledger: SqlLedger, known: KnownLedger, standing: Standing) -> None:
    """Agree first on which ledger it is and where the budgets are, by a ledger that nobody else has: one that is open
    is used at once, and would spend from the wrong place for as long as the settings are wrong.

    Raises SettingError and OtherLedger beside what a start raises.
    """
    scout = _ledger(settings)
    try:
        await known.start()
        # A worker without a ledger of its own waits for a gateway's file: it executes flows meanwhile.
        if settings.makes_file or settings.priced.ledger_url:
            await _refuse_to_make(settings, known)
        await _start_ledger(settings, scout)
        await _compare(settings, scout, known)
        await agree_on_mode(scout, _mode(settings.priced))
    finally:
        await scout.close()
    standing.accept()
    await ledger.start()


async def _refuse_to_make(settings: PricedSettings, known: KnownLedger) -> None:
    """An empty ledger is never created in the place of one that is remembered. Raises OtherLedger."""
    found = await asyncio.to_thread(migrate.status, settings.ledger_url)
    if found.version is None:
        await refuse_missing_ledger(known)


async def _compare(settings: PricedSettings, ledger: SqlLedger, known: KnownLedger) -> None:
    """Raises OtherLedger, DependencyUnavailable."""
    if settings.decides:
        await agree_on_ledger(ledger, known, settings.new_id)
    else:
        await compare_ledger(ledger, known)


async def _start_ledger(settings: PricedSettings, ledger: SqlLedger) -> None:
    """The file of a process that was told of no ledger is its own: a gateway makes it and keeps it up to date."""
    if not settings.priced.ledger_url:
        if settings.makes_file:
            await asyncio.to_thread(migrate.upgrade, settings.ledger_url)
        elif not await asyncio.to_thread(Path(settings.ledger_url.removeprefix("sqlite:///")).exists):
            raise _NoLedgerYet(
                f"there is no ledger at {settings.ledger_url}, and PYOCO_LEDGER_URL names no other; "
                "`pyoco-server up` makes it"
            )
    await ledger.start()


class _NoLedgerYet(DependencyUnavailable):
    """A gateway makes it. Where all start together, it is there in a moment."""


class _Opening:
    """Takes steps one after another, each again and again until it is done. The first try is waited for, for a while.

    A step that is done is not taken again: a ledger that was started twice would have twice the connections.
    """

    def __init__(self, steps: Sequence[Callable[[], Awaitable[None]]], standing: Standing) -> None:
        self._steps, self._standing = list(steps), standing
        self.is_open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._began = asyncio.get_running_loop().time()

    async def begin(self) -> None:
        """Raises LedgerOutdated, OtherLedger, UsageError, SettingError: nobody heals those by waiting."""
        first = asyncio.create_task(self._try(), name="open the stores of priced runs")
        done, _ = await asyncio.wait({first}, timeout=_FIRST_TRY_SECONDS)
        if done and first.result():
            return
        self._task = asyncio.create_task(self._go_on(first), name="open the stores of priced runs")

    async def _try(self) -> bool:
        try:
            while self._steps:
                await self._steps[0]()
                del self._steps[0]
        except OtherLedger:
            raise
        except DependencyUnavailable as error:
            waited = asyncio.get_running_loop().time() - self._began
            tell = log.info if isinstance(error, _NoLedgerYet) and waited < _QUIET_SECONDS else log.warning
            tell("a store of priced runs does not answer yet; trying again", cause=str(error))
            return False
        self.is_open.set()
        return True

    async def _go_on(self, first: asyncio.Task[bool]) -> None:
        pending: asyncio.Task[bool] | None = first
        while True:
            try:
                if await (pending if pending is not None else self._try()):
                    return
            except OtherLedger as error:
                self._standing.refuse(error)
            except LedgerOutdated as error:
                log.error("priced runs wait for a migration", error=error)
            except SettingError as error:
                log.error("priced runs wait for other settings", error=error)
            except Exception:  # the top of a loop: whatever it is may heal, and flows go on meanwhile
                log.exception("the stores of priced runs cannot be opened; trying again")
            pending = None
            await asyncio.sleep(_AGAIN_SECONDS)

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_money(config: NatsBackendConfig, priced: PricedConfig, aws: AwsSettings) -> AsyncIterator[Priced]:
    """Ledger and budget for a command. Queue and results are there and not connected: no command of money needs them,
    so that it needs no packages for SQS and S3 either. Nothing is made: no tables, no file, no folder.

    Raises DependencyUnavailable, LedgerOutdated, UsageError, SettingError.
    """
    async with open_money_of_any_mode(config, priced, aws) as opened:
        await agree_on_mode(opened.ledger, _mode(priced))
        yield opened


def _mode(priced: PricedConfig) -> BudgetMode:
    return BudgetMode.SPLIT if priced.is_split else BudgetMode.JOINT


@contextlib.asynccontextmanager
async def open_money_of_any_mode(
    config: NatsBackendConfig, priced: PricedConfig, aws: AwsSettings
) -> AsyncIterator[Priced]:
    """The same, whatever mode the ledger is in: for the one command that changes it."""
    priced = replace(priced, pack_queue_url="", results_url="")
    settings = PricedSettings(config=config, priced=priced, aws=aws, new_id=lambda: "", makes_tables=False)
    ledger, link = _ledger(settings), Link(Patience())
    async with open_redis(priced) as redis, open_stores(settings, link) as stores:
        budget, idempotency_locks = open_budget(redis, ledger, priced)
        try:
            if priced.ledger_url:
                await asyncio.to_thread(_refuse_missing, priced.ledger_url)
            if redis is not None:
                await redis.start()
            await _start_ledger(settings, ledger)
            yield Priced(
                config=priced,
                ledger=ledger,
                budget=budget,
                queue=stores.queue,
                results=stores.results,
                inputs=stores.inputs,
                idempotency_locks=idempotency_locks,
                new_id=settings.new_id,
                show=lambda _: None,  # the keeper sees the change
            )
        finally:
            await ledger.close()


def _shown(url: str) -> str:
    """A password may be among the options, too."""
    return redact_url(url.partition("?")[0])


def _refuse_missing(url: str) -> None:
    """Raises LedgerOutdated, DependencyUnavailable."""
    if migrate.status(url).version is None:
        raise LedgerOutdated(f"there is no ledger at {_shown(url)}; `{migrate.MIGRATE}` makes one")


def make_named_ledger(priced: PricedConfig) -> str | None:
    """Make the tables of the ledger that the settings name, where there is nothing: where it is, for people to read.
    None: they are there, or none is named.

    Raises UsageError when the folder of the file does not exist or the ledger is in memory, LedgerOutdated when the
    database is somebody else's, DependencyUnavailable.
    """
    url = priced.ledger_url
    if not url:
        return None
    if name_in(url) is not None:
        raise UsageError("PYOCO_LEDGER_URL is a ledger in memory: it would be lost when this command ends")
    if url.startswith("postgresql"):
        need("psycopg", "PYOCO_LEDGER_URL")
    if migrate.status(url).version is not None:
        return None
    shown = _shown(url)
    if not url.startswith("postgresql") and not Path(url.removeprefix("sqlite:///")).parent.is_dir():
        raise UsageError(f"there is no ledger at {shown}, and no such folder: correct PYOCO_LEDGER_URL, or make it")
    if not migrate.is_empty(url):
        raise LedgerOutdated(f"there is no ledger at {shown}, but tables of somebody else; `{migrate.MIGRATE}` adds it")
    walked = migrate.upgrade(url)
    return None if walked.before == walked.after else shown  # None: somebody else was faster


@contextlib.asynccontextmanager
async def open_pack_queue(
    config: NatsBackendConfig, priced: PricedConfig, aws: AwsSettings
) -> AsyncIterator[PackQueue]:
    """The queue of priced runs for a command. Raises Unavailable, UsageError, SettingError."""
    settings = PricedSettings(config=config, priced=replace(priced, results_url=""), aws=aws, new_id=lambda: "")
    link = await open_link(access_of(config), "pyoco-admin", Patience())
    try:
        async with open_stores(settings, link) as stores:
            await stores.queue.start()
            yield stores.queue
    finally:
        await link.close()


def priced_looks(config: NatsBackendConfig, priced: PricedConfig, aws: AwsSettings) -> Looks:
    """How the doctor opens each store."""
    settings = PricedSettings(config=config, priced=priced, aws=aws, new_id=lambda: "")

    @contextlib.asynccontextmanager
    async def ledger() -> AsyncIterator[SqlLedger]:
        opened = _ledger(settings)
        try:
            await opened.start()
            yield opened
        finally:
            await opened.close()

    @contextlib.asynccontextmanager
    async def sqs() -> AsyncIterator[SQSClient]:
        need("aiobotocore", "PYOCO_PACK_QUEUE_URL")
        from pyoco_server.ports.aws.client import aws_errors, open_sqs  # noqa: PLC0415 - of an extra

        async with aws_errors("ask SQS"), open_sqs(aws) as client:
            yield client

    @contextlib.asynccontextmanager
    async def s3() -> AsyncIterator[S3Client]:
        need("aiobotocore", "PYOCO_RESULTS_URL")
        from pyoco_server.ports.aws.client import aws_errors, open_s3  # noqa: PLC0415 - of an extra

        async with aws_errors("ask S3"), open_s3(aws) as client:
            yield client

    looks = Looks(ledger=ledger, redis=lambda: open_redis(priced))
    if priced.pack_queue_url:
        looks = replace(looks, sqs=sqs)
    return replace(looks, s3=s3) if priced.results_url else looks


def ledger_status(config: NatsBackendConfig, priced: PricedConfig) -> dict[str, Any]:
    """Raises DependencyUnavailable, UsageError."""
    url = priced.ledger_address(config.data_dir)
    if url.startswith("postgresql"):
        need("psycopg", "PYOCO_LEDGER_URL")
    found = migrate.status(url)
    return {"version": found.version, "wanted": found.wanted, "up_to_date": found.is_current}


def migrate_ledger(config: NatsBackendConfig, priced: PricedConfig) -> tuple[str | None, str | None]:
    """The versions before and after. Raises DependencyUnavailable, LedgerOutdated, UsageError."""
    url = priced.ledger_address(config.data_dir)
    if url.startswith("postgresql"):
        need("psycopg", "PYOCO_LEDGER_URL")
    walked = migrate.upgrade(url)
    return walked.before, walked.after
