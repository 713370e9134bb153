"""Token buckets in the ledger, on both databases, with a clock that is moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.ports.ledger.port import Ledger, LedgerTx, Rate
from support.priced.ledgers import Skew, postgres_ledger, sqlite_ledger
from support.priced.servers import PostgresServer


@pytest.fixture
def skew() -> Skew:
    return Skew()


@pytest.fixture(params=["sqlite", "postgres"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path, skew: Skew) -> AsyncIterator[Ledger]:
    if request.param == "sqlite":
        async with sqlite_ledger(tmp_path, skew) as ledger:
            yield ledger
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        async with postgres_ledger(server, skew) as ledger:
            yield ledger


async def taken(ledger: Ledger, tenant: str = "anna", bucket: str = "get", per_minute: int = 60) -> Rate:
    return await ledger.transact_softly(lambda tx: tx.rates.take(tenant, bucket, per_minute))


async def emptied(ledger: Ledger, tenant: str = "anna", bucket: str = "get", per_minute: int = 60) -> int:
    """How many were let in before the first refusal."""

    def until_refused(tx: LedgerTx) -> int:
        count = 0
        while tx.rates.take(tenant, bucket, per_minute).allowed:
            count += 1
        return count

    return await ledger.transact_softly(until_refused)


async def test_a_bucket_holds_a_minute_and_fills_again(ledger: Ledger, skew: Skew) -> None:
    """PRICED-172, PRICED-173"""
    now = await ledger.read(lambda tx: tx.now_us())
    first = await taken(ledger)
    assert (first.allowed, first.limit, first.remaining) == (True, 60, 59)
    assert 1 <= first.reset_at - now // 1_000_000 <= 5
    assert 59 <= await emptied(ledger) <= 62  # a slow machine gains some meanwhile
    refused = await taken(ledger)
    assert (refused.allowed, refused.remaining) == (False, 0)
    assert 58 <= refused.reset_at - now // 1_000_000 <= 65
    skew.move(10)
    assert 10 <= await emptied(ledger) <= 13
    skew.move(10_000)
    assert 60 <= await emptied(ledger) <= 63


async def test_reads_submits_and_tenants_have_buckets_of_their_own(ledger: Ledger) -> None:
    """PRICED-172: polling cannot block submits"""
    assert await emptied(ledger, per_minute=3) == 3
    assert (await taken(ledger, bucket="post", per_minute=3)).remaining == 2
    assert (await taken(ledger, tenant="bert", per_minute=3)).remaining == 2
    assert not (await taken(ledger, per_minute=3)).allowed


async def test_a_tenant_without_a_row_in_the_ledger_has_a_bucket_too(ledger: Ledger) -> None:
    assert (await taken(ledger, tenant="never-seen")).allowed
    assert await ledger.read(lambda tx: tx.tenants.get("never-seen")) is None


async def test_asking_in_vain_does_not_put_off_the_next_token(ledger: Ledger, skew: Skew) -> None:
    """One token a minute, asked for every second: what is gained is never cut away"""
    assert (await taken(ledger, per_minute=1)).allowed
    for _ in range(55):
        skew.move(1)
        assert not (await taken(ledger, per_minute=1)).allowed
    skew.move(5)
    assert (await taken(ledger, per_minute=1)).allowed


async def test_another_limit_counts_at_once(ledger: Ledger) -> None:
    """PRICED-172: limits are configurable per tenant"""
    assert (await taken(ledger, per_minute=1000)).remaining == 999
    assert (await taken(ledger, per_minute=2)).remaining == 1
    assert (await taken(ledger, per_minute=1000)).remaining < 100  # it fills, and is not full


async def test_a_clock_that_is_set_back_neither_gives_nor_blocks(ledger: Ledger, skew: Skew) -> None:
    assert (await taken(ledger, per_minute=2)).remaining == 1
    skew.move(-7200)
    assert (await taken(ledger, per_minute=2)).remaining == 0
    assert not (await taken(ledger, per_minute=2)).allowed
    skew.move(30)
    assert (await taken(ledger, per_minute=2)).allowed


async def test_the_largest_limit_and_the_longest_pause_fit(ledger: Ledger, skew: Skew) -> None:
    assert (await taken(ledger, per_minute=10**9)).remaining == 10**9 - 1
    skew.move(10**9)
    assert (await taken(ledger, per_minute=10**9)).remaining == 10**9 - 1


async def test_requests_at_once_share_one_bucket(ledger: Ledger) -> None:
    """PRICED-175"""
    answers = await asyncio.gather(*(taken(ledger, per_minute=5) for _ in range(20)))
    assert sum(answer.allowed for answer in answers) == 5
    assert sorted(answer.remaining for answer in answers if answer.allowed) == [0, 1, 2, 3, 4]
