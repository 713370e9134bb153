"""Everything priced runs need, over the combinations of stores that the contract names (PRICED-215).

A stack has a clock that tests move, points at which they kill or pause, and a small worker that executes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyoco_server.actions.priced import intents
from pyoco_server.actions.priced.audit import audit
from pyoco_server.actions.priced.credit import credit
from pyoco_server.actions.priced.finalize import Ending, Unfinished, claim_end, finish
from pyoco_server.actions.priced.patience import NO_PATIENCE, RetryLimit
from pyoco_server.actions.priced.place_joint import place_joint
from pyoco_server.actions.priced.place_split import place_split
from pyoco_server.actions.priced.send import send
from pyoco_server.actions.priced.start import PutBack, Skip, Started, start_run
from pyoco_server.actions.priced.submit import submit
from pyoco_server.config.priced import AwsSettings, PricedConfig
from pyoco_server.core.priced.constants import PROFILE_VERSION
from pyoco_server.core.priced.message import PackMessage, decode
from pyoco_server.core.priced.money import minimum_fee
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.result_key import envelope_key, result_prefix
from pyoco_server.core.priced.run import NewRun, PricedRun, ResultPointer
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.loops.priced.reaper import Reaper
from pyoco_server.loops.priced.reconciler import Reconciler
from pyoco_server.loops.priced.retainer import Retainer
from pyoco_server.loops.priced.sweeper import Sweeper
from pyoco_server.ports.aws.client import open_s3, open_sqs
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.idempotency_locks.redis import RedisIdempotencyLocks
from pyoco_server.ports.inputs.jetstream import JetStreamInputs
from pyoco_server.ports.inputs.s3 import S3Inputs
from pyoco_server.ports.ledger.port import Balances, Ledger, Lost, Spans
from pyoco_server.ports.nats.link import Link, Missing, open_link
from pyoco_server.ports.nats.memory.server import drop_server
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.pack_queue.jetstream import JetStreamPackQueue
from pyoco_server.ports.pack_queue.port import Delivery
from pyoco_server.ports.pack_queue.sqs import SqsPackQueue
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.redis.link import RedisLink
from pyoco_server.ports.results.jetstream import JetStreamResults
from pyoco_server.ports.results.s3 import S3Results
from support.memory_nats import new_memory_url
from support.priced.ledgers import Skew, postgres_ledger, sqlite_ledger
from support.priced.points import Killed, Points, watched
from support.servers import unique

__all__ = [
    "ACME",
    "ALL_STACKS",
    "BOTH_MODES",
    "EACH_STACK",
    "POSTGRES",
    "QUICK_SPLIT",
    "SPLIT",
    "SQLITE",
    "Killed",
    "Points",
    "Stack",
    "an_ask",
    "open_stack",
]

#: SQLite, budget in it, JetStream for queue and results: the default of a deployment.
SQLITE = "sqlite"
#: PostgreSQL, budget in it, JetStream queue, S3 results.
POSTGRES = "postgres"
#: PostgreSQL, Redis, SQS, S3.
SPLIT = "split"
#: The three that whole deployments are tested on (PRICED-215).
ALL_STACKS = (SQLITE, POSTGRES, SPLIT)
#: SQLite and Redis, JetStream for queue and results: the other mode, without the seconds that emulators take.
QUICK_SPLIT = "quick_split"
#: Both modes, for what each action does by itself.
BOTH_MODES = (SQLITE, QUICK_SPLIT)
#: For races and crashes: both modes in each run of the suite, the other stores of PRICED-215 in the thorough one.
EACH_STACK = (*BOTH_MODES, POSTGRES, SPLIT)

ACME = "acme"
_TRIES = 10


@dataclass(frozen=True)
class Stack:
    kind: str
    #: With the points.
    priced: Priced
    #: The same without points: the adapters themselves.
    bare: Priced
    skew: Skew
    points: Points
    shown: list[PricedRun]
    #: Deliveries of workers that died with them.
    in_hand: list[Delivery] = field(default_factory=list)

    @property
    def is_split(self) -> bool:
        return self.priced.idempotency_locks is not None

    async def credit(self, usd_micros: int, tenant_id: str = ACME) -> None:
        await credit(self.priced, tenant_id, usd_micros, str(uuid.uuid4()))

    async def tenant(self, usd_micros: int = 1_000_000) -> str:
        """A new one, with so much to spend."""
        tenant_id = unique("t")
        await self.credit(usd_micros, tenant_id)
        return tenant_id

    async def submitted(self, ask: NewRun | None = None) -> PricedRun:
        return (await submit(self.priced, ask or an_ask())).run

    async def stored_without_floor(self, ask: NewRun) -> PricedRun:
        """As a version without SAFE-1 accepted it: its reservation may be below the price."""
        placing = place_split if self.is_split else place_joint
        async with placing(self.priced, ask) as placed:
            await send(self.priced, placed.run, placed.run.updated_at)
            return placed.run

    async def row(self, run_id: str) -> PricedRun:
        row = await self.priced.ledger.read(lambda tx: tx.runs.get(run_id))
        assert row is not None
        return row

    async def rows(self) -> list[PricedRun]:
        return await self.priced.ledger.read(lambda tx: tx.runs.changed_since(0, "", 100_000))

    async def balances(self, tenant_id: str = ACME) -> Balances:
        return await self.priced.ledger.read(lambda tx: tx.journal.balances(tenant_id))

    async def balance(self, tenant_id: str = ACME) -> int:
        return await self.priced.budget.balance(tenant_id)

    async def deliveries(self, at_most: int = 1) -> Sequence[Delivery]:
        return await self.priced.queue.receive(at_most, 5)

    async def started(self, run: PricedRun) -> PricedRun:
        """As by a worker that has its message."""
        got = await start_run(self.priced, message_of(run), Delivery(b"", 1, None))
        assert isinstance(got, Started), got
        return got.run

    async def work(self, *, fails: bool = False, patience: RetryLimit = NO_PATIENCE) -> Ending | Skip | PutBack | None:
        """Take one message and see it through as a worker does. None: there was no message."""
        priced = self.priced
        for delivery in await self._message():
            self.in_hand.append(delivery)
            got = await start_run(priced, decode(delivery.body), delivery)
            if isinstance(got, PutBack):
                await self.give_back()
                return got
            if isinstance(got, Started):
                ended = await self.end(got.run, fails=fails, patience=patience)
                if isinstance(ended, Unfinished):
                    return ended
            await priced.queue.ack(delivery)
            self.in_hand.remove(delivery)
            return got if isinstance(got, Skip) else ended
        return None

    async def _message(self) -> Sequence[Delivery]:
        """One, if there is one: on a busy machine it may take a while to come."""
        for _ in range(_TRIES):
            if (found := await self.priced.queue.receive(1, 1)) or await self._none_waits():
                return found
        return ()

    async def _none_waits(self) -> bool:
        return (await self.priced.queue.depth())[0] <= len(self.in_hand)

    async def give_back(self) -> None:
        """What dead workers hold becomes visible, as it would after a while."""
        while self.in_hand:
            await self.priced.queue.nack(self.in_hand.pop(), 0)

    async def drain(self) -> None:
        """Work until the queue is empty."""
        async with asyncio.timeout(200):
            while (await self.priced.queue.depth())[0]:
                await self.work()

    async def end(self, run: PricedRun, *, fails: bool = False, patience: RetryLimit = NO_PATIENCE) -> Ending:
        """Upload, claim and finish as the worker that holds the lease."""
        if fails:
            intent = intents.failure(run, Reason.PACK_FAILED)
            await self.points("worker.after_upload")
        else:
            intent = intents.success(run, 50_000, await self.upload(run))
        claimed = await claim_end(
            self.priced, run, Basis.LEASE, Actor.WORKER, intent, lease_token=run.lease_token, patience=patience
        )
        return claimed if isinstance(claimed, Lost) else await finish(self.priced, claimed, Actor.WORKER, patience)

    async def upload(self, run: PricedRun, data: object = "yes") -> ResultPointer:
        key = envelope_key(result_prefix(run.tenant_id, run.created_at, run.run_id))
        body = json.dumps({"data": data}).encode()
        sha256 = hashlib.sha256(body).hexdigest()
        await self.priced.results.put(key, body, "application/json; charset=utf-8", sha256, {"run-id": run.run_id})
        return ResultPointer(bucket=self.priced.results.bucket, key=key, sha256=sha256, size_bytes=len(body))

    async def keep(self) -> None:
        """One turn of every keeper's duty."""
        for duty in (Reaper, Sweeper, Reconciler, Retainer):
            await duty(self.priced).turn()

    async def check_money(self, tenant_id: str = ACME) -> None:
        """Nothing is lost or made: PRICED-16, and the audit."""
        sums = await self.balances(tenant_id)
        assert sums.credited_usd_micros + sums.corrected_usd_micros == (
            sums.available_usd_micros + sums.held_usd_micros + sums.charged_usd_micros
        )
        report = await audit(self.priced)
        assert report.differences == ()


def an_ask(key: str | None = None, usd_micros: int = 250_000, tenant_id: str = ACME, **more: Any) -> NewRun:
    facts: dict[str, Any] = {
        "run_id": str(uuid.uuid4()),
        "tenant_id": tenant_id,
        "pack_type": "decision",
        "profile_version": PROFILE_VERSION,
        "idempotency_key": key or str(uuid.uuid4()),
        "payload_hash": hashlib.sha256(str(usd_micros).encode()).hexdigest(),
        "reserved_usd_micros": usd_micros,
        "minimum_fee_usd_micros": minimum_fee(usd_micros),
        "timebox_sec": 90,
        "min_reliability_e4": 8000,
        "inline": 0,
        "artifacts": {},
        "inputs": {"question": "Ship on Friday?"},
        "trace_id": "t_1",
    }
    return NewRun(**{**facts, **more})


def message_of(run: PricedRun) -> PackMessage:
    return PackMessage(
        run_id=run.run_id, tenant_id=run.tenant_id, pack_type=run.pack_type, enqueued_at="2026-02-13T00:00:00Z"
    )


@contextlib.asynccontextmanager
async def open_stack(
    kind: str, request: pytest.FixtureRequest, nats_url: str | None = None, **settings: Any
) -> AsyncIterator[Stack]:
    """A stack of its own: nothing in it is shared but the servers, which start when the first stack needs them. Without
    `nats_url` its JetStream is in memory.

    For a test, or for all tests of a module: emulators take seconds to be made ready. One at a time per process, since
    it empties Redis and the emulators.
    """
    config = PricedConfig(
        pack_stream=unique("DPP"),
        pack_subject=unique("dpp"),
        results_bucket=unique("results"),
        pack_input_bucket=unique("inputs") if kind in BOTH_MODES else "dpp-inputs",
        **settings,
    )
    skew, points, shown = Skew(), Points(), list[PricedRun]()
    async with contextlib.AsyncExitStack() as opened:
        if kind in BOTH_MODES:
            folder = request.getfixturevalue("tmp_path_factory").mktemp("ledger")
            ledger = await opened.enter_async_context(sqlite_ledger(folder, skew, spans_of(config)))
        else:
            server = request.getfixturevalue("postgres_server")
            ledger = await opened.enter_async_context(postgres_ledger(server, skew, spans_of(config)))
        if nats_url is None:
            nats_url = new_memory_url()
            opened.callback(drop_server, nats_url)
        link = await opened.enter_async_context(_link(nats_url))
        opened.push_async_callback(_delete, link, config)
        ports = _Ports(config, ledger, link)
        if kind not in BOTH_MODES:
            await ports.use_aws(opened, request, with_queue=kind == SPLIT)
        if kind in {SPLIT, QUICK_SPLIT}:
            await ports.use_redis(opened, request)
        await ports.start(opened)
        bare = ports.bundle(shown.append)
        yield Stack(kind, watched(bare, points), bare, skew, points, shown)


def spans_of(config: PricedConfig) -> Spans:
    return Spans(
        lease_seconds=config.priced_lease_ttl_sec,
        reservation_seconds=config.priced_reservation_ttl_sec,
        submit_abandon_seconds=config.priced_submit_abandon_sec,
        resend_after_seconds=config.priced_resend_after_sec,
        reconcile_after_seconds=config.priced_reconcile_after_sec,
        retention_seconds=config.priced_retention_sec,
    )


class _Ports:
    """Begins with what needs nothing but NATS."""

    def __init__(self, config: PricedConfig, ledger: Ledger, link: Link) -> None:
        self._config, self._ledger = config, ledger
        self._budget: SqlBudget | RedisBudget = SqlBudget(ledger)
        self._idempotency_locks: RedisIdempotencyLocks | None = None
        self._queue: JetStreamPackQueue | SqsPackQueue = JetStreamPackQueue(link, config, 1)
        objects = JetStreamObjects(link, config.results_bucket)
        self._results: JetStreamResults | S3Results = JetStreamResults(link, objects, config, 1, b"secret")
        files = JetStreamObjects(link, config.pack_input_bucket)
        self._inputs: JetStreamInputs | S3Inputs = JetStreamInputs(link, files, config, 1)

    async def use_aws(
        self, opened: contextlib.AsyncExitStack, request: pytest.FixtureRequest, *, with_queue: bool
    ) -> None:
        aws = request.getfixturevalue("moto_server").empty()
        patch = opened.enter_context(pytest.MonkeyPatch.context())
        for name, value in aws.environment.items():
            patch.setenv(name, value)
        settings = AwsSettings(endpoint_url=aws.endpoint_url)
        s3 = await opened.enter_async_context(open_s3(settings))
        self._results = S3Results(s3, "s3://dpp-results", settings.region, self._config.priced_retention_sec)
        self._inputs = S3Inputs(s3, self._config, settings.region)
        if with_queue:
            sqs = await opened.enter_async_context(open_sqs(settings))
            self._queue = SqsPackQueue(sqs, "sqs://dpp-runs", self._config.priced_lease_ttl_sec)

    async def use_redis(self, opened: contextlib.AsyncExitStack, request: pytest.FixtureRequest) -> None:
        server = request.getfixturevalue("redis_server")
        server.empty()
        redis = RedisLink(server.url)
        opened.push_async_callback(redis.close)
        await redis.start()
        self._budget, self._idempotency_locks = RedisBudget(redis), RedisIdempotencyLocks(redis)

    async def start(self, opened: contextlib.AsyncExitStack) -> None:
        for port in (self._queue, self._results, self._inputs):
            await port.start()
            opened.push_async_callback(port.close)

    def bundle(self, show: Callable[[PricedRun], None]) -> Priced:
        return Priced(
            config=self._config,
            ledger=self._ledger,
            budget=self._budget,
            queue=self._queue,
            results=self._results,
            inputs=self._inputs,
            idempotency_locks=self._idempotency_locks,
            new_id=lambda: str(uuid.uuid4()),
            show=show,
        )


@contextlib.asynccontextmanager
async def _link(url: str) -> AsyncIterator[Link]:
    link = await open_link(url, "tests")
    try:
        yield link
    finally:
        await link.close()


async def _delete(link: Link, config: PricedConfig) -> None:
    stores = (f"OBJ_{config.results_bucket}", f"OBJ_{config.pack_input_bucket}")
    for stream in (config.pack_stream, f"{config.pack_stream}_DLQ", *stores):
        with contextlib.suppress(Missing):  # never made
            await link.api(f"STREAM.DELETE.{stream}", {}, dict[str, Any])


async def at_once(*doings: Any) -> list[Any]:
    """All of them, whatever each comes to."""
    return list(await asyncio.gather(*doings, return_exceptions=True))
