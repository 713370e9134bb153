"""A gateway over a real ledger, in this process; the tenants that use it, and a worker that ends their runs at once."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from pyoco_server.actions.priced.credit import credit
from pyoco_server.actions.priced.finalize import Finished, claim_end, finish
from pyoco_server.actions.priced.intents import failure, success
from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.priced import PricedConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.core.priced.envelope import ENVELOPE_CONTENT_TYPE, Artifact, Cover, PackResult, seal
from pyoco_server.core.priced.instants import iso
from pyoco_server.core.priced.money import parse_usd
from pyoco_server.core.priced.reasons import HTTP_STATUS, Reason, problem_type, title_of
from pyoco_server.core.priced.result_key import envelope_key, result_prefix
from pyoco_server.core.priced.run import PricedRun, ResultPointer
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.doors.http.app import build_app
from pyoco_server.doors.http.slowdown import Slowdown
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.budget.sql import SqlBudget
from pyoco_server.ports.inputs.jetstream import JetStreamInputs
from pyoco_server.ports.ledger.port import Spans
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.ports.nats.link import Link, Missing
from pyoco_server.ports.nats.resources import priced_resources
from pyoco_server.ports.objects.jetstream import JetStreamObjects
from pyoco_server.ports.pack_queue.jetstream import JetStreamPackQueue
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.results.jetstream import JetStreamResults
from pyoco_server.wiring import backend as wiring
from support.gateways import Gateway
from support.servers import config_for, forget, unique

__all__ = [
    "BODY",
    "Payer",
    "PricedDoor",
    "a_body",
    "check_problem",
    "costs_of",
    "fresh_priced_gateway",
    "open_priced_gateway",
]

BODY: dict[str, Any] = {
    "pack_type": "decision",
    "inputs": {"question": "Ship on Friday?"},
    "reservation": {"max_cost_usd": "0.2500"},
}
#: PRICED-67
MEMBERS = {"type", "title", "status", "detail", "instance", "reason_code", "trace_id"}

_numbers = itertools.count()


def a_body(**changes: Any) -> dict[str, Any]:
    return BODY | changes


@dataclass
class Skew:
    """How far the ledger's clock is ahead."""

    seconds: int = 0

    def __call__(self) -> int:
        return self.seconds * 1_000_000


@dataclass(frozen=True)
class Payer:
    """A tenant of its own for one test, and a key of it."""

    tenant_id: str
    headers: dict[str, str]


@dataclass(frozen=True)
class PricedDoor:
    gateway: Gateway
    skew: Skew

    @property
    def priced(self) -> Priced:
        priced = self.gateway.backend.priced
        assert priced is not None
        return priced

    @property
    def client(self) -> httpx.AsyncClient:
        return self.gateway.client

    async def payer(self, usd: str | None = "10.0000", tenant_id: str | None = None) -> Payer:
        """None: the ledger never learns of it."""
        tenant_id = tenant_id or f"team-{next(_numbers)}"
        if usd is not None:
            await credit(self.priced, tenant_id, parse_usd(usd), ref=str(uuid.uuid4()))
        return Payer(tenant_id, await self.key(tenant_id))

    async def key(self, tenant_id: str) -> dict[str, str]:
        pepper = self.gateway.config.auth_pepper
        plain, record = make_key(tenant_id, pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await self.gateway.backend.keys.add(record)
        return {"Authorization": f"Bearer {plain}"}

    async def post(
        self, payer: Payer, body: Any = None, key: str | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Bytes are sent as they are."""
        content = body if isinstance(body, bytes) else json.dumps(BODY if body is None else body).encode()
        key = key or f"key-{uuid.uuid4()}"
        sent = {**payer.headers, "Idempotency-Key": key, "Content-Type": "application/json", **(headers or {})}
        return await self.client.post("/v1/runs", content=content, headers=sent)

    async def get(self, payer: Payer, run_id: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.client.get(f"/v1/runs/{run_id}", headers={**payer.headers, **(headers or {})})

    async def submitted(self, payer: Payer, **changes: Any) -> str:
        answer = await self.post(payer, a_body(**changes))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    async def row(self, run_id: str) -> PricedRun:
        row = await self.priced.ledger.read(lambda tx: tx.runs.get(run_id))
        assert row is not None
        return row

    async def balance(self, payer: Payer) -> int:
        return await self.priced.budget.balance(payer.tenant_id)

    async def runs_of(self, payer: Payer) -> int:
        """How many reservations were ever made for it."""
        lines = await self.priced.ledger.read(lambda tx: tx.journal.lines(payer.tenant_id, None, 1000))
        return sum(line.kind == "RESERVE" for line in lines)

    async def completed(
        self, run_id: str, data: dict[str, Any], artifacts: Sequence[Artifact] = (), tokens: int = 0
    ) -> PricedRun:
        """As its worker would end it, with the result stored."""
        run, lease = await self._started(run_id)
        prefix = result_prefix(run.tenant_id, run.created_at, run_id)
        sealed = seal(_cover(run, prefix), PackResult(data=data, actual_cost_usd_micros=50_000, artifacts=artifacts))
        results, about = self.priced.results, {"run_id": run_id}
        for each in sealed.objects:
            await results.put(each.key, each.data, each.content_type, each.sha256, about)
        key = envelope_key(prefix)
        await results.put(key, sealed.envelope, ENVELOPE_CONTENT_TYPE, sealed.sha256, about)
        pointer = ResultPointer(
            bucket=results.bucket,
            key=key,
            sha256=sealed.sha256,
            size_bytes=len(sealed.envelope),
            artifacts=sealed.manifest,
        )
        return await self._ended(run, lease, success(run, 50_000, pointer, tokens))

    async def failed(self, run_id: str, reason: Reason, detail: str | None = None) -> PricedRun:
        run, lease = await self._started(run_id)
        return await self._ended(run, lease, failure(run, reason, detail))

    async def _started(self, run_id: str) -> tuple[PricedRun, str]:
        row, lease = await self.row(run_id), str(uuid.uuid4())
        run = await self.priced.ledger.transact(lambda tx: tx.leases.start(run_id, row.version, lease))
        assert isinstance(run, PricedRun)
        return run, lease

    async def _ended(self, run: PricedRun, lease: str, intent: Any) -> PricedRun:
        claimed = await claim_end(self.priced, run, Basis.LEASE, Actor.WORKER, intent, lease)
        assert isinstance(claimed, PricedRun)
        ending = await finish(self.priced, claimed, Actor.WORKER)
        assert isinstance(ending, Finished)
        return ending.run

    @contextlib.contextmanager
    def later(self, seconds: int) -> Iterator[None]:
        """The ledger's clock is that much ahead."""
        self.skew.seconds += seconds
        try:
            yield
        finally:
            self.skew.seconds -= seconds

    @contextlib.contextmanager
    def with_priced(self, priced: Priced | None) -> Iterator[None]:
        """The same gateway over other stores."""
        with self._with_backend(replace(self.gateway.backend, priced=priced)):
            yield

    @contextlib.contextmanager
    def with_settings(self, **settings: Any) -> Iterator[None]:
        backend = self.gateway.backend
        with self._with_backend(replace(backend, config=replace(backend.config, **settings))):
            yield

    @contextlib.contextmanager
    def _with_backend(self, other: GatewayBackend) -> Iterator[None]:
        state = self.gateway.app.state.gateway
        backend, state.backend = state.backend, other
        try:
            yield
        finally:
            state.backend = backend


def _cover(run: PricedRun, prefix: str) -> Cover:
    return Cover(
        run_id=run.run_id,
        pack_type=run.pack_type,
        trace_id=run.trace_id,
        profile_version=run.profile_version,
        prefix=prefix,
        generated_at=iso(run.created_at),
        reserved_usd_micros=run.reserved_usd_micros,
        charge_usd_micros=min(50_000, run.reserved_usd_micros),
        minimum_fee_usd_micros=run.minimum_fee_usd_micros,
        min_reliability_e4=run.min_reliability_e4,
    )


async def _at_once(_: float) -> None:
    """Instead of the sleep that a bad key costs."""


@contextlib.asynccontextmanager
async def open_priced_gateway(backend: GatewayBackend, skew: Skew) -> AsyncIterator[PricedDoor]:
    """The complete application on a backend that its caller has opened."""

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[GatewayBackend]:
        yield backend

    app = build_app(opened, backend.config.http_api_key_header)
    async with app.router.lifespan_context(app):
        app.state.gateway.slowdown = Slowdown(sleep=_at_once)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield PricedDoor(Gateway(app, client, backend.config), skew)


@contextlib.asynccontextmanager
async def _open_priced(link: Link, config: NatsBackendConfig, skew: Skew) -> AsyncIterator[Priced]:
    """SQLite, JetStream, JetStream, under unique names. No rate limits, unless a test sets them."""
    name = unique("dpp")
    settings = PricedConfig(
        pack_stream=name.upper(),
        pack_subject=f"{name}.runs",
        results_bucket=f"{name}-results",
        pack_input_bucket=f"{name}-inputs",
        results_secret="a secret of the tests",
        priced_rate_limit_per_min=1_000_000,
    )
    spans = Spans(
        lease_seconds=settings.priced_lease_ttl_sec,
        reservation_seconds=settings.priced_reservation_ttl_sec,
        submit_abandon_seconds=settings.priced_submit_abandon_sec,
        resend_after_seconds=settings.priced_resend_after_sec,
        reconcile_after_seconds=settings.priced_reconcile_after_sec,
        retention_seconds=settings.priced_retention_sec,
    )
    ledger = SqlLedger(settings.ledger_address(config.data_dir), spans, skew_us=skew, make_missing=True)
    queue = JetStreamPackQueue(link, settings, 1)
    objects = JetStreamObjects(link, settings.results_bucket)
    results = JetStreamResults(link, objects, settings, 1, settings.results_secret.encode())
    inputs = JetStreamInputs(link, JetStreamObjects(link, settings.pack_input_bucket), settings, 1)
    try:
        for each in (ledger, queue, results, inputs):
            await each.start()
        yield Priced(
            config=settings,
            ledger=ledger,
            budget=SqlBudget(ledger),
            queue=queue,
            results=results,
            inputs=inputs,
            idempotency_locks=None,
            new_id=lambda: str(uuid.uuid4()),
            show=lambda _: None,
        )
    finally:
        await queue.close()
        await ledger.close()
        for resource in priced_resources(config, settings):
            with contextlib.suppress(Missing):  # never made
                await link.api(f"STREAM.DELETE.{resource.name}", {}, dict[str, Any])


@contextlib.asynccontextmanager
async def fresh_priced_gateway(link: Link, url: str, folder: Path, **settings: Any) -> AsyncIterator[PricedDoor]:
    """Deleted afterwards, but for the ledger's file."""
    config = config_for(url, data_dir=str(folder), **{"auth_pepper": "pepper", **settings})
    skew = Skew()
    try:
        async with (
            _open_priced(link, config, skew) as priced,
            wiring.open_gateway_backend(config) as backend,
            open_priced_gateway(replace(backend, priced=priced), skew) as door,
        ):
            yield door
    finally:
        await forget(link, config)


def check_problem(answer: httpx.Response, reason: Reason, status: int | None = None) -> dict[str, Any]:
    """PRICED-63, PRICED-64, PRICED-66, PRICED-67: exactly the members it should have. Returns the document."""
    wanted = status or HTTP_STATUS[reason]
    assert answer.status_code == wanted, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    body: dict[str, Any] = answer.json()
    more = body.keys() - MEMBERS
    assert body.keys() >= MEMBERS
    assert more <= {"run_id", "errors", "err_id", "price_usd"}
    assert (more >= {"err_id", "price_usd"}) == (reason is Reason.RESERVATION_BELOW_PRICE)
    assert ("errors" in more) == (wanted == 422)
    assert (body["type"], body["title"]) == (problem_type(reason), title_of(reason))
    assert (body["status"], body["reason_code"]) == (wanted, reason.value)
    assert body["instance"] == answer.request.url.path
    assert body["trace_id"] == answer.headers["x-trace-id"]
    assert body["detail"]
    for error in body.get("errors", ()):
        assert error.keys() == {"pointer", "message"}
        assert error["pointer"] == "" or error["pointer"].startswith("/")
        assert error["message"]
    return body


def costs_of(answer: httpx.Response) -> tuple[str, str, str, str]:
    """Reserved, used, remaining, tokens (PRICED-82)."""
    names = ("Cost-Reserved", "Cost-Used", "Budget-Remaining", "Tokens-Consumed")
    reserved, used, remaining, tokens = (answer.headers[f"X-DPP-{name}"] for name in names)
    return reserved, used, remaining, tokens
