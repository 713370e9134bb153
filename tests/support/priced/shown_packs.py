"""Rows of the ledger for tests of views, and a read-only ledger of a few rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from pyoco_server.core.priced.projection import project
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.run import Run
from pyoco_server.core.states.priced import Actor, Money, Stage, Status
from pyoco_server.ports.ledger.port import Ledger, LedgerTx

__all__ = ["NOW_US", "FewRows", "a_pack", "a_row", "completed", "disputed", "expired", "failed", "started"]

T = TypeVar("T")

NOW_US = 1_700_000_000_000_000


def a_row(**more: Any) -> PricedRun:
    """Its money is set aside, and it waits."""
    row = PricedRun(
        run_id=str(uuid.uuid4()),
        tenant_id="acme",
        pack_type="decision",
        profile_version="1",
        status=Status.QUEUED,
        money=Money.RESERVED,
        stage=Stage.OPEN,
        idempotency_key="a key of 8 or more",
        payload_hash="0" * 64,
        version=1,
        reserved_usd_micros=1_234_500,
        actual_cost_usd_micros=None,
        minimum_fee_usd_micros=5_000,
        timebox_sec=90,
        min_reliability_e4=9_000,
        inline=0,
        artifacts={},
        result=None,
        tokens_consumed=0,
        retention_until=NOW_US + 10**12,
        lease_token=None,
        lease_expires_at=None,
        finalize_token=None,
        finalize_claimed_at=None,
        finalize_actor=None,
        intent=None,
        enqueued_at=None,
        reason_code=None,
        error_detail=None,
        trace_id="0af7651916cd43dd8448eb211c80319c",
        created_at=NOW_US,
        updated_at=NOW_US,
        api_key_id="key-1",
    )
    return replace(row, **more)


def _later(row: PricedRun, **more: Any) -> PricedRun:
    return replace(row, **{"version": row.version + 1, "updated_at": row.updated_at + 1_000_000} | more)


def started(row: PricedRun) -> PricedRun:
    return _later(row, status=Status.PROCESSING, started_at=row.updated_at + 1_000_000)


def completed(row: PricedRun) -> PricedRun:
    return _later(
        row,
        status=Status.COMPLETED,
        money=Money.SETTLED,
        stage=Stage.COMMITTED,
        finalize_actor=Actor.WORKER,
        actual_cost_usd_micros=700_050,
        tokens_consumed=42,
    )


def failed(row: PricedRun, actor: Actor = Actor.WORKER, **more: Any) -> PricedRun:
    ended = {
        "status": Status.FAILED,
        "money": Money.REFUNDED,
        "stage": Stage.COMMITTED,
        "finalize_actor": actor,
        "actual_cost_usd_micros": 0,
        "reason_code": "QUEUE_ENQUEUE_FAILED",
    }
    return _later(row, **ended | more)


def disputed(row: PricedRun) -> PricedRun:
    return _later(row, money=Money.DISPUTED, stage=Stage.CLAIMED)


def expired(row: PricedRun) -> PricedRun:
    return _later(row, status=Status.EXPIRED, idempotency_key=None, error_detail=None)


def a_pack(row: PricedRun | None = None, **more: Any) -> Run:
    """What is shown of it; `more` are members of the shown run."""
    shown = project(row or a_row())
    assert shown is not None
    return replace(shown, **more)


@dataclass
class FewRows:
    """What the projection asks of a ledger, from memory: it has no other question."""

    rows: dict[str, PricedRun] = field(default_factory=dict)
    now_us: int = NOW_US
    #: How many rows each page had.
    pages: list[int] = field(default_factory=list)

    def put(self, *rows: PricedRun) -> None:
        self.rows |= {row.run_id: row for row in rows}

    async def read(self, question: Callable[[LedgerTx], T]) -> T:
        runs = SimpleNamespace(changed_since=self._changed_since)
        return question(cast(LedgerTx, SimpleNamespace(now_us=lambda: self.now_us, runs=runs)))

    def _changed_since(self, updated_at: int, run_id: str, limit: int) -> list[PricedRun]:
        keyed = sorted(((row.updated_at, row.run_id), row) for row in self.rows.values())
        page = [row for key, row in keyed if key > (updated_at, run_id)][:limit]
        self.pages.append(len(page))
        return page

    @property
    def ledger(self) -> Ledger:
        return cast(Ledger, self)
