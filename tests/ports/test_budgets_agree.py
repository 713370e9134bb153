"""The same random operations on budgets in SQLite, PostgreSQL, Redis and memory: every answer and number agrees."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from contracts.budget import AT_US, BY
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS
from pyoco_server.core.priced.money import AmountError
from pyoco_server.ports.budget.memory import MemoryBudget, MemoryBudgets
from pyoco_server.ports.budget.port import Budget, TenantMismatch
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


def every_answer() -> list[Operation]:
    """Operations that get each kind of answer at least once: random ones may miss a rare kind."""
    settled, refunded, open_run, unknown = (str(UUID(int=number, version=4)) for number in range(1, 5))
    return [
        ("credit", ("anna", 123_456_789_012_345, "every-answer")),  # Credited
        ("credit", ("anna", 1, "every-answer")),  # AlreadyApplied
        ("credit", ("anna", 0, "every-answer-2")),  # AmountError
        ("balance", ("anna",)),  # more than 14 digits
        ("reserve", ("anna", settled, 100)),  # Reserved
        ("reserve", ("anna", settled, 100)),  # AlreadyReserved
        ("reserve", ("anna", unknown, MAX_AMOUNT_USD_MICROS)),  # Insufficient
        ("settle", ("bert", settled, 30, BY)),  # TenantMismatch
        ("settle", ("anna", settled, 30, BY)),  # Closed
        ("settle", ("anna", settled, 30, BY)),  # NoReserve
        ("outcome", (settled,)),  # Settled
        ("reserve", ("anna", refunded, 100)),
        ("refund_full", ("anna", refunded, BY)),
        ("outcome", (refunded,)),  # Refunded
        ("reserve", ("anna", open_run, 100)),
        ("outcome", (open_run,)),  # Open
        ("outcome", (unknown,)),  # NotReserved
    ]


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
    link = RedisLink(url)
    answers = await lived_in_budget(RedisBudget(link), life)
    await link.close()
    return answers


async def lived_in_budget(budget: Budget, life: list[Operation]) -> list[str]:
    """One after the other, for their order counts."""
    answers = []
    for name, told in life:
        arguments = (*told, AT_US) if name == "reserve" else told
        answers.append(await answered_later(getattr(budget, name)(*arguments)))
    return answers


@pytest.mark.parametrize("operations", LIVES, ids=["a short life", "a long life"])
@pytest.mark.timeout(300)  # some ten seconds, on a machine that does nothing else
async def test_the_budgets_agree_on_every_answer(
    tmp_path: Path, postgres_server: PostgresServer, redis_url: str, operations: int
) -> None:
    """PRICED-51, PRICED-190"""
    # The suite lives the same life each time, `make thorough` another one.
    is_suite = os.environ.get("PYOCO_TEST_PROFILE", "suite") == "suite"
    seed = 1 if is_suite else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    life = every_answer() + a_life(seed, operations) + [("balance", (tenant,)) for tenant in TENANTS]
    async with sqlite_ledger(tmp_path) as small, postgres_ledger(postgres_server) as large:
        answers, others, redis, memory = await asyncio.gather(
            lived_in_ledger(small, life),
            lived_in_ledger(large, life),
            lived_in_redis(redis_url, life),
            lived_in_budget(MemoryBudget(MemoryBudgets()), life),
        )
        sums = await small.read(lambda tx: {tenant: tx.journal.balances(tenant) for tenant in TENANTS})
        assert await large.read(lambda tx: {tenant: tx.journal.balances(tenant) for tenant in TENANTS}) == sums
    for operation, *given in zip(life, answers, others, redis, memory, strict=True):
        assert len(set(given)) == 1, (operation, given)
    assert [str(sums[tenant].available_usd_micros) for tenant in TENANTS] == answers[-len(TENANTS) :]
    # `every_answer` must stay complete, whatever the seed.
    directed = answers[: len(every_answer())]
    seen = {answer.partition("(")[0] for answer in directed}
    assert seen >= {
        "Reserved", "Insufficient", "AlreadyReserved", "Closed", "NoReserve", "Credited", "AlreadyApplied",
        "NotReserved", "Open", "Settled", "Refunded", "AmountError", "TenantMismatch",
    }  # fmt: skip
    assert max(int(answer) for answer in directed if answer.isdecimal()) > 10**14
