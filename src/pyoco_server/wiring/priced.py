"""Build the stores of priced runs from settings. Names their adapters, as `wiring/backend.py` names the others.

Modules of an optional extra are imported on demand: SQLite and JetStream need no extra.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyoco_server.actions.priced.agree_on_ledger import (
    LedgerAgreement,
    agree_on_ledger,
    compare_ledger,
    refuse_missing_ledger,
)
from pyoco_server.actions.priced.change_mode import agree_on_mode
from pyoco_server.config import AwsSettings, NatsBackendConfig, PricedConfig
from pyoco_server.core.packs import PACKS, PackSpec
from pyoco_server.errors import DependencyUnavailable, LedgerOutdated, OtherLedger, SettingError, UsageError
from pyoco_server.logs import get_logger, redact_url
from pyoco_server.loops.priced.ledger_watch import LedgerWatch
from pyoco_server.loops.priced.projector import Projector
from pyoco_server.ports.deployment.priced import StoreOpeners
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
from pyoco_server.wiring.offer import known_packs, offered_packs
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
    "priced_openers",
]

log = get_logger(__name__)

_FIRST_TRY_SECONDS = 10.0
_AGAIN_SECONDS = 2.0
#: How long a worker waits for a gateway's ledger file before it logs a warning.
_QUIET_SECONDS = 30.0
#: Concurrent PostgreSQL connections for writes, and half as many for reads: the server allows 100 for all processes.
_GATEWAY_THREADS, _THREADS = 8, 4


@dataclass(frozen=True, kw_only=True)
class PricedSettings:
    """The settings of a process, before anything is opened."""

    config: NatsBackendConfig
    priced: PricedConfig
    aws: AwsSettings
    new_id: Callable[[], str]
    #: A gateway signs the URLs of results; workers and keepers do not.
    signs: bool = False
    #: A keeper submits the ticks of schedules, so it checks inputs and prices.
    keeps: bool = False
    #: If no ledger is configured, a gateway creates the file and other processes wait for it: a worker in another
    #: directory would create a separate file that contains none of the runs.
    makes_file: bool = False
    #: Services create the tables of an empty database. Commands do not: a typo in an address would create a new ledger.
    makes_tables: bool = True

    @property
    def ledger_url(self) -> str:
        return self.priced.ledger_address(self.config.data_dir)

    @property
    def decides(self) -> bool:
        """Whether this ledger becomes the deployment's ledger if none is recorded.

        Not for a ledger in memory with a NATS server that outlives it: the ledger is lost with the process, but NATS
        would record it permanently.
        """
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
        migrate_older=settings.makes_tables and not settings.priced.ledger_url,
        threads=threads,
        check_allowed=check_allowed,
    )


@contextlib.asynccontextmanager
async def open_priced(settings: PricedSettings, link: Link, runs: Runs) -> AsyncIterator[Priced]:
    """Open the stores of a gateway, worker or keeper.

    A store that does not answer yet is retried in the background without limit, because flows must not wait for a
    ledger. `Priced.until_open` waits until all have answered. Raises UsageError for a missing package, SettingError,
    LedgerOutdated if the tables exist in another version, and OtherLedger if this is not the deployment's ledger
    (SAFE-12).
    """
    packs: Mapping[str, PackSpec] = PACKS  # a worker loads its packs when it starts to execute
    if settings.signs or settings.keeps:
        packs = await asyncio.to_thread(offered_packs if settings.signs else known_packs, settings.priced)
    standing = LedgerAgreement()
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


async def _open_ledger(
    settings: PricedSettings, ledger: SqlLedger, known: KnownLedger, standing: LedgerAgreement
) -> None:
    """Verify the ledger's identity and the location of budgets with a separate connection, then open the ledger.

    The ledger is used as soon as it is open, so with wrong settings it would spend from the wrong budgets. Raises
    SettingError and OtherLedger in addition to the errors of a start.
    """
    scout = _ledger(settings)
    try:
        await known.start()
        # A worker without a configured ledger waits for a gateway's file, and executes flows meanwhile.
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
    """Never create an empty ledger in place of a recorded one. Raises OtherLedger."""
    found = await asyncio.to_thread(migrate.status, settings.ledger_url)
    if found.version is None:
        await refuse_missing_ledger(known)


async def _compare(settings: PricedSettings, ledger: SqlLedger, known: KnownLedger) -> None:
    """Compare the ledger with the recorded id. Raises OtherLedger, DependencyUnavailable."""
    if settings.decides:
        await agree_on_ledger(ledger, known, settings.new_id)
    else:
        await compare_ledger(ledger, known)


async def _start_ledger(settings: PricedSettings, ledger: SqlLedger) -> None:
    """Start the ledger. If none is configured, the default file is used: a gateway creates and migrates it."""
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
    """A gateway creates the file. If all processes start together, it exists shortly."""


class _Opening:
    """Runs steps in order, and retries each until it succeeds. Waits for the first try, with a time limit.

    A completed step is not repeated: a ledger that was started twice would hold twice the connections.
    """

    def __init__(self, steps: Sequence[Callable[[], Awaitable[None]]], standing: LedgerAgreement) -> None:
        self._steps, self._standing = list(steps), standing
        self.is_open = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._began = asyncio.get_running_loop().time()

    async def begin(self) -> None:
        """Raises LedgerOutdated, OtherLedger, UsageError, SettingError: waiting cannot fix those."""
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
            write_log = log.info if isinstance(error, _NoLedgerYet) and waited < _QUIET_SECONDS else log.warning
            write_log("a store of priced runs does not answer yet; trying again", cause=str(error))
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
            except Exception:  # top of a loop: the error may be temporary, and flows must continue
                log.exception("cannot open the stores of priced runs; retrying")
            pending = None
            await asyncio.sleep(_AGAIN_SECONDS)

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_money(config: NatsBackendConfig, priced: PricedConfig, aws: AwsSettings) -> AsyncIterator[Priced]:
    """Open ledger and budget for a command.

    Queue and results are created but not connected: no budget command needs them, so the packages for SQS and S3 are
    not required. Creates no tables, files or folders. Raises DependencyUnavailable, LedgerOutdated, UsageError,
    SettingError.
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
    """The same in any budget mode: for the one command that changes the mode."""
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
                show=lambda _: None,  # the keeper detects the change
            )
        finally:
            await ledger.close()


def _shown(url: str) -> str:
    """Query options may contain a password, too."""
    return redact_url(url.partition("?")[0])


def _refuse_missing(url: str) -> None:
    """Raise LedgerOutdated if the ledger does not exist; DependencyUnavailable."""
    if migrate.status(url).version is None:
        raise LedgerOutdated(f"there is no ledger at {_shown(url)}; `{migrate.MIGRATE}` makes one")


def make_named_ledger(priced: PricedConfig) -> str | None:
    """Create the tables of the configured ledger if they do not exist.

    Returns its address for display, or None if the tables exist or no ledger is configured. Raises UsageError if the
    folder of the file does not exist or the ledger is in memory, LedgerOutdated if the database contains other tables,
    DependencyUnavailable.
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
        raise UsageError(f"there is no ledger at {shown}, and no such folder: correct PYOCO_LEDGER_URL, or create it")
    if not migrate.is_empty(url):
        raise LedgerOutdated(
            f"there is no ledger at {shown}, but other tables exist there; `{migrate.MIGRATE}` adds it"
        )
    walked = migrate.upgrade(url)
    return None if walked.before == walked.after else shown  # None: another process created them first


@contextlib.asynccontextmanager
async def open_pack_queue(
    config: NatsBackendConfig, priced: PricedConfig, aws: AwsSettings
) -> AsyncIterator[PackQueue]:
    """Open the queue of priced runs for a command. Raises Unavailable, UsageError, SettingError."""
    settings = PricedSettings(config=config, priced=replace(priced, results_url=""), aws=aws, new_id=lambda: "")
    link = await open_link(access_of(config), "pyoco-admin", Patience())
    try:
        async with open_stores(settings, link) as stores:
            await stores.queue.start()
            yield stores.queue
    finally:
        await link.close()


def priced_openers(config: NatsBackendConfig, priced: PricedConfig, aws: AwsSettings) -> StoreOpeners:
    """Return how the doctor opens each store."""
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
        from pyoco_server.ports.aws.client import aws_errors, open_sqs  # of an extra

        async with aws_errors("ask SQS"), open_sqs(aws) as client:
            yield client

    @contextlib.asynccontextmanager
    async def s3() -> AsyncIterator[S3Client]:
        need("aiobotocore", "PYOCO_RESULTS_URL")
        from pyoco_server.ports.aws.client import aws_errors, open_s3  # of an extra

        async with aws_errors("ask S3"), open_s3(aws) as client:
            yield client

    openers = StoreOpeners(ledger=ledger, redis=lambda: open_redis(priced))
    if priced.pack_queue_url:
        openers = replace(openers, sqs=sqs)
    return replace(openers, s3=s3) if priced.results_url else openers


def ledger_status(config: NatsBackendConfig, priced: PricedConfig) -> dict[str, Any]:
    """Return the ledger's schema versions. Raises DependencyUnavailable, UsageError."""
    url = priced.ledger_address(config.data_dir)
    if url.startswith("postgresql"):
        need("psycopg", "PYOCO_LEDGER_URL")
    found = migrate.status(url)
    return {"version": found.version, "wanted": found.wanted, "up_to_date": found.is_current}


def migrate_ledger(config: NatsBackendConfig, priced: PricedConfig) -> tuple[str | None, str | None]:
    """Migrate the ledger and return both versions. Raises DependencyUnavailable, LedgerOutdated, UsageError."""
    url = priced.ledger_address(config.data_dir)
    if url.startswith("postgresql"):
        need("psycopg", "PYOCO_LEDGER_URL")
    walked = migrate.upgrade(url)
    return walked.before, walked.after
