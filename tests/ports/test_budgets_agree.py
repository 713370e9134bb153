"""One long random life of budgets, lived in SQLite, PostgreSQL and Redis: every answer and every number is the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from contracts.budget import AT_US, BY
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.money import AmountError
from pyoco_server.ports.budget.port import TenantMismatch
from pyoco_server.ports.budget.redis import RedisBudget
from pyoco_server.ports.ledger.port import Ledger, LedgerTx
from pyoco_server.ports.redis.link import RedisLink
from support.priced.ledgers import postgres_ledger, sqlite_ledger
from support.priced.servers import PostgresServer

#: The contract asks for as many as the longest of them has.
LIVES = [2_000, 10_000]
#: Operations in one transaction of a ledger.
TOGETHER = 100
TENANTS = ["anna", "bert", "carl", "no-credit"]

#: The name of an operation, and what it is called with.
Operation = tuple[str, tuple[Any, ...]]


def a_life(seed: int, operations: int) -> list[Operation]:
    """Few runs and references, so that most of them are met again: reserved, closed, foreign or never seen."""
    dice = random.Random(seed)
    runs = [str(UUID(int=dice.getrandbits(128), version=4)) for _ in range(operations * 3 // 20)]

    def an_amount() -> Any:
        return dice.choice(
            [
                dice.randrange(1, 1_000_000),
                dice.randrange(10**14, 10**15),
                dice.randrange(1, MAX_AMOUNT_USD_MICROS + 1),
                123_456_789_012_345,
                dice.choice([0, -1, MAX_AMOUNT_USD_MICROS, MAX_AMOUNT_USD_MICROS + 1, True]),
            ]
        )

    def an_operation() -> Operation:
        tenant, run = dice.choice(TENANTS), dice.choice(runs)
        kind = dice.choices(
            ["reserve", "settle", "refund_full", "outcome", "balance", "credit"], [40, 20, 10, 10, 10, 10]
        )[0]
        match kind:
            case "reserve":
                return kind, (tenant, run, an_amount())
            case "settle":
                return kind, (tenant, run, an_amount(), BY)
            case "refund_full":
                return kind, (tenant, run, BY)
            case "outcome":
                return kind, (run,)
            case "balance":
                return kind, (tenant,)
            case _:
                return kind, (dice.choice(TENANTS[:3]), an_amount(), f"r{dice.randrange(operations // 5)}")

    return [an_operation() for _ in range(operations)]


def answered(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except (AmountError, TenantMismatch) as refused:
        return type(refused).__name__


async def answered_later(call: Awaitable[Any]) -> str:
    try:
        return str(await call)
    except (AmountError, TenantMismatch) as refused:
        return type(refused).__name__


async def lived_in_ledger(ledger: Ledger, life: list[Operation]) -> list[str]:
    def part(operations: list[Operation], tx: LedgerTx) -> list[str]:
        return [answered(lambda: getattr(tx.money, name)(*told)) for name, told in operations]  # noqa: B023  (at once)

    answers: list[str] = []
    for start in range(0, len(life), TOGETHER):
        answers += await ledger.transact(lambda tx: part(life[start : start + TOGETHER], tx))  # noqa: B023  (awaited)
    return answers


async def lived_in_redis(url: str, life: list[Operation]) -> list[str]:
    """One after the other, for their order counts."""
    link = RedisLink(url)
    budget = RedisBudget(link)
    answers = []
    for name, told in life:
        arguments = (*told, AT_US) if name == "reserve" else told
        answers.append(await answered_later(getattr(budget, name)(*arguments)))
    await link.close()
    return answers


@pytest.mark.parametrize("operations", LIVES, ids=["a short life", "a long life"])
@pytest.mark.timeout(300)  # some ten seconds, on a machine that does nothing else
async def test_the_budgets_agree_on_every_answer(
    tmp_path: Path, postgres_server: PostgresServer, redis_url: str, operations: int
) -> None:
    """PRICED-51, PRICED-190"""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    life = a_life(seed, operations) + [("balance", (tenant,)) for tenant in TENANTS]
    async with sqlite_ledger(tmp_path) as small, postgres_ledger(postgres_server) as large:
        answers, others, redis = await asyncio.gather(
            lived_in_ledger(small, life), lived_in_ledger(large, life), lived_in_redis(redis_url, life)
        )
        sums = await small.read(lambda tx: {tenant: tx.journal.balances(tenant) for tenant in TENANTS})
        assert await large.read(lambda tx: {tenant: tx.journal.balances(tenant) for tenant in TENANTS}) == sums
    for operation, one, two, three in zip(life, answers, others, redis, strict=True):
        assert one == two == three, operation
    assert [str(sums[tenant].available_usd_micros) for tenant in TENANTS] == answers[-len(TENANTS) :]
    # A life in which something never happens proves nothing of it.
    seen = {answer.partition("(")[0] for answer in answers}
    assert seen >= {
        "Reserved", "Insufficient", "AlreadyReserved", "Closed", "NoReserve", "Credited", "AlreadyApplied",
        "NotReserved", "Open", "Settled", "Refunded", "AmountError", "TenantMismatch",
    }  # fmt: skip
    assert max(int(answer) for answer in answers if answer.isdecimal()) > 10**14
