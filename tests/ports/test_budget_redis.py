"""Budgets in Redis: the contract, the keys other programs may read, and what the server may do to us."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio as redis

from contracts.budget import AT_US, BY, BudgetContract, a_run
from pyoco_server.core.priced.constants import MAX_AMOUNT_USD_MICROS, OUTCOME_TTL_SECONDS, RESERVE_KEY_TTL_SECONDS
from pyoco_server.core.priced.money import AmountError
from pyoco_server.errors import DependencyUnavailable, SettingError
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Budget,
    BudgetDamaged,
    Closed,
    Credited,
    NoReserve,
    Open,
    OpenReservation,
    Reserved,
)
from pyoco_server.ports.budget.redis import _CLOSE, _CREDIT, _RESERVE, RedisBudget
from pyoco_server.ports.budget.repair import RepairableBudget
from pyoco_server.ports.ledger.port import CreditNote
from pyoco_server.ports.redis import link as redis_link
from pyoco_server.ports.redis.link import RedisLink, ScriptRefused, _judge
from support.priced.servers import ValkeyServer
from support.waiting import eventually

BALANCE = "budget:t:balance_usd_micros"
NOW_MS = 1_900_000_000_500


@pytest.fixture
async def link(redis_url: str) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis_url)
    yield link
    await link.close()


@pytest.fixture
async def keys(redis_url: str) -> AsyncIterator[redis.Redis]:
    """Redis as another program sees it."""
    client: redis.Redis = redis.Redis.from_url(redis_url, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
def budget(link: RedisLink) -> RedisBudget:
    return RedisBudget(link, now_ms=lambda: NOW_MS)


class TestRedisBudget(BudgetContract):
    @pytest.fixture
    async def other(self, redis_url: str) -> AsyncIterator[Budget]:
        link = RedisLink(redis_url)
        yield RedisBudget(link)
        await link.close()


async def test_it_is_no_part_of_the_ledger(budget: RedisBudget) -> None:
    whole: Budget = budget
    assert not whole.joins_ledger
    _: RepairableBudget = budget  # the type checker's business


async def everything(keys: redis.Redis) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async for key in keys.scan_iter():
        found[key] = await (keys.get(key) if await keys.type(key) == "string" else keys.hgetall(key))
    return found


async def test_the_keys_are_those_of_the_contract(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-41, PRICED-47, PRICED-50, PRICED-196: read back after each operation"""
    settled, refunded = a_run(), a_run()
    await budget.credit("t", 123_456_789_012_345, "r")
    credited = {"credit:topup:r": "123456789012345"}
    assert await everything(keys) == {BALANCE: "123456789012345", **credited}
    assert [await keys.ttl(key) for key in (BALANCE, "credit:topup:r")] == [-1, -1]

    await budget.reserve("t", settled, 100, AT_US + 999)
    await budget.reserve("t", refunded, 123_456_789_012_245, AT_US + 999)
    times = {"tenant_id": "t", "created_at_ms": "1900000000000"}
    assert await everything(keys) == {
        BALANCE: "0",
        **credited,
        f"reserve:{settled}": {"reserved_usd_micros": "100", **times},
        f"reserve:{refunded}": {"reserved_usd_micros": "123456789012245", **times},
    }
    assert RESERVE_KEY_TTL_SECONDS - 5 < await keys.ttl(f"reserve:{settled}") <= RESERVE_KEY_TTL_SECONDS == 2_592_000

    await budget.settle("t", settled, 30, BY)
    await budget.refund_full("t", refunded, BY)
    closed = {"closed_at_ms": str(NOW_MS)}
    assert await everything(keys) == {
        BALANCE: "123456789012315",
        **credited,
        f"outcome:{settled}": {"kind": "SETTLED", "charge_usd_micros": "30", "refund_usd_micros": "70", **closed},
        f"outcome:{refunded}": {
            "kind": "REFUNDED",
            "charge_usd_micros": "0",
            "refund_usd_micros": "123456789012245",
            **closed,
        },
    }
    for run in (settled, refunded):
        assert OUTCOME_TTL_SECONDS - 5 < await keys.ttl(f"outcome:{run}") <= OUTCOME_TTL_SECONDS == 2_592_000


@pytest.mark.parametrize(
    "amount",
    ["0", "-1", "", "1.5", "1e5", " 5", "5 ", "0x10", "05", "１", str(MAX_AMOUNT_USD_MICROS + 1), "9" * 400, "nan"],
)
async def test_the_scripts_themselves_refuse_what_is_no_amount(
    link: RedisLink, budget: RedisBudget, keys: redis.Redis, amount: str
) -> None:
    """PRICED-45"""
    run = a_run()
    await budget.credit("t", 1000, "r")
    await budget.reserve("t", run, 100, AT_US)
    before = await everything(keys)
    most = MAX_AMOUNT_USD_MICROS
    with pytest.raises(ScriptRefused, match="DPP_AMOUNT"):
        await link.run(_RESERVE, (BALANCE, "reserve:x", "outcome:x"), ("t", amount, 1, 60, most))
    with pytest.raises(ScriptRefused, match="DPP_AMOUNT"):
        await link.run(_CREDIT, (BALANCE, "credit:x"), (amount, most))
    if amount not in ("0", "05"):  # nothing is a charge, however it is written
        with pytest.raises(ScriptRefused, match="DPP_AMOUNT"):
            await link.run(_CLOSE, (BALANCE, f"reserve:{run}", f"outcome:{run}"), ("t", "SETTLED", amount, 1, 60, most))
    assert await everything(keys) == before


async def test_a_balance_has_room_for_64_bits_and_no_more(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-198: an overflow is refused, and does not become a rounded number"""
    given = 2**63 - 2
    await keys.set(BALANCE, given)
    with pytest.raises(AmountError):
        await budget.credit("t", 2, "r")
    assert await budget.balance("t") == given
    assert await budget.credit("t", 1, "r") == Credited(given + 1)


async def test_a_lost_balance_grants_nothing(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-42"""
    run = a_run()
    await budget.credit("t", 1000, "r")
    await budget.reserve("t", run, 100, AT_US)
    await keys.delete(BALANCE)
    assert await budget.balance("t") == 0
    assert await budget.settle("t", run, 40, BY) == Closed(40, 60, 60)


@pytest.mark.parametrize("damage", ["12.5", "1.2345678901234e+14", "x", ""])
async def test_a_damaged_balance_stops_everything_before_a_write(
    budget: RedisBudget, keys: redis.Redis, damage: str
) -> None:
    run = a_run()
    await budget.credit("t", 1000, "r")
    await budget.reserve("t", run, 100, AT_US)
    await keys.set(BALANCE, damage)
    before = await everything(keys)
    with pytest.raises(DependencyUnavailable):
        await budget.reserve("t", a_run(), 1, AT_US)
    with pytest.raises(DependencyUnavailable):
        await budget.settle("t", run, 1, BY)
    with pytest.raises(DependencyUnavailable):
        await budget.refund_full("t", run, BY)
    with pytest.raises(DependencyUnavailable):
        await budget.credit("t", 1, "r2")
    with pytest.raises(DependencyUnavailable):
        await budget.balance("t")
    assert await everything(keys) == before


async def test_a_server_that_has_lost_its_scripts_gets_them_again(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-43"""
    await budget.credit("t", 1000, "r")
    runs = [a_run() for _ in range(3)]
    await budget.reserve("t", runs[0], 100, AT_US)
    await keys.script_flush()
    assert await budget.reserve("t", runs[1], 100, AT_US) == Reserved(800)
    assert await budget.settle("t", runs[0], 1, BY) == Closed(1, 99, 899)
    await keys.config_resetstat()
    assert await budget.reserve("t", runs[2], 100, AT_US) == Reserved(799)
    stats = await keys.info("commandstats")
    assert stats["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_eval" not in stats


async def test_without_memory_nothing_is_reserved_and_money_still_goes_back(
    own_redis_server: ValkeyServer,
) -> None:
    """PRICED-42: noeviction means that a write is refused, and half a script must not be"""
    link = RedisLink(own_redis_server.url)
    budget = RedisBudget(link)
    keys: redis.Redis = redis.Redis.from_url(own_redis_server.url, decode_responses=True)
    settled, refunded = a_run(), a_run()
    await budget.credit("t", 1000, "r")
    for run in (settled, refunded):
        await budget.reserve("t", run, 100, AT_US)
    before = await everything(keys)
    await keys.config_set("maxmemory", "1")
    with pytest.raises(DependencyUnavailable, match="OutOfMemory"):
        await budget.reserve("t", a_run(), 100, AT_US)
    with pytest.raises(DependencyUnavailable, match="OutOfMemory"):
        await budget.credit("t", 100, "r2")
    assert await everything(keys) == before
    assert await budget.settle("t", settled, 30, BY) == Closed(30, 70, 870)
    assert await budget.refund_full("t", refunded, BY) == Closed(0, 100, 970)
    await keys.aclose()
    await link.close()


async def test_a_server_that_stands_still_is_an_outage_in_time(
    own_redis_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRICED-48: the caller alone repeats itself, and so knows what "already reserved" means"""
    link = RedisLink(own_redis_server.url)
    budget = RedisBudget(link)
    keys: redis.Redis = redis.Redis.from_url(own_redis_server.url, decode_responses=True)
    await budget.credit("t", 1000, "r")
    await budget.reserve("t", a_run(), 100, AT_US)  # the server has seen the script from here on
    run = a_run()
    with own_redis_server.frozen(), monkeypatch.context() as patch:
        patch.setattr(redis_link, "_PATIENCE_SECONDS", 2)
        began = time.monotonic()
        with pytest.raises(DependencyUnavailable):
            await budget.reserve("t", run, 100, AT_US)
        assert time.monotonic() - began < 50

    async def calls() -> int:
        return int((await keys.info("commandstats"))["cmdstat_evalsha"]["calls"])

    await eventually(lambda: _is(calls, 3))  # credit, and each reserve: what was sent is still done, once
    assert await budget.reserve("t", run, 100, AT_US) == AlreadyReserved()
    assert await budget.outcome(run) == Open(100)
    assert await budget.balance("t") == 800
    await keys.aclose()
    await link.close()


async def test_an_answer_that_was_lost_is_not_asked_for_again(redis_url: str, keys: redis.Redis) -> None:
    """PRICED-48, PRICED-193: the connection breaks when the script has been run"""

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", int(redis_url.rpartition(":")[2].partition("/")[0]))
        with contextlib.closing(back), contextlib.closing(writer):  # the test may end as soon as `writer` is closed
            while asked := await reader.read(65_536):
                back.write(asked)
                answer = await there.read(65_536)
                if b"EVALSHA" in asked:
                    break
                writer.write(answer)

    direct, run = RedisLink(redis_url), a_run()
    await RedisBudget(direct).credit("t", 1000, "r")
    await RedisBudget(direct).reserve("t", a_run(), 100, AT_US)  # the server has seen the script from here on
    await keys.config_resetstat()
    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        link = RedisLink(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0")
        with pytest.raises(DependencyUnavailable):
            await RedisBudget(link).reserve("t", run, 100, AT_US)
        await link.close()
    assert (await keys.info("commandstats"))["cmdstat_evalsha"]["calls"] == 1
    assert await RedisBudget(direct).reserve("t", run, 100, AT_US) == AlreadyReserved()
    assert await RedisBudget(direct).balance("t") == 800
    await direct.close()


async def _is(question: Callable[[], Awaitable[int]], number: int) -> bool:
    return await question() == number


async def test_a_server_that_was_restarted_is_found_again(own_redis_server: ValkeyServer) -> None:
    link = RedisLink(own_redis_server.url)
    budget = RedisBudget(link)
    await asyncio.gather(*(budget.balance("t") for _ in range(8)))
    own_redis_server.kill()
    with pytest.raises(DependencyUnavailable):
        await budget.ping()
    await asyncio.to_thread(own_redis_server.start)
    assert await asyncio.gather(*(budget.refund_full("t", a_run(), BY) for _ in range(8))) == [NoReserve()] * 8
    await link.close()


async def test_many_callers_share_few_connections(budget: RedisBudget, keys: redis.Redis) -> None:
    await budget.credit("t", 1_000_000, "r")
    answers = await asyncio.gather(*(budget.reserve("t", a_run(), 1, AT_US) for _ in range(150)))
    assert all(isinstance(answer, Reserved) for answer in answers)
    assert len(await keys.client_list()) < 100


async def test_many_reservations_are_told_in_steps(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-163: more than one step of a scan, with other keys between, and damaged ones left out"""
    runs = {a_run() for _ in range(1200)}
    many = keys.pipeline()
    for run in runs:
        many.hset(
            f"reserve:{run}", mapping={"reserved_usd_micros": 1, "tenant_id": "t", "created_at_ms": AT_US // 1000}
        )
    await many.execute()
    await keys.hset("reserve:x", mapping={"tenant_id": "t"})
    found = [each.run_id async for each in budget.open_reservations(AT_US + 1_000_000)]
    assert set(found) == runs
    assert [each async for each in budget.open_reservations(AT_US)] == []


async def test_what_a_rebuild_needs(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-61: no call of these moves money"""
    await budget.credit("t", 1000, "r")
    stray, kept, elsewhere = a_run(), a_run(), a_run()
    await budget.credit("u", 1000, "r2")
    for tenant, run in (("t", stray), ("u", elsewhere)):
        await budget.reserve(tenant, run, 100, AT_US)
    held = OpenReservation(run_id=kept, tenant_id="t", reserved_usd_micros=250, created_at_ms=5)
    seen = await budget.look("t", [stray, kept])
    assert (seen.balance_usd_micros, seen.balance, dict(seen.reservations)[kept]) == (900, "=900", "")
    assert await budget.restore(seen, 750, [held], [stray])
    assert not await budget.restore(seen, 1, [], []), "it is not as it was seen"
    assert await budget.reservations_of("t") == [held]
    assert await budget.balance("t") == 750
    assert await keys.ttl(f"reserve:{kept}") > RESERVE_KEY_TTL_SECONDS - 5
    assert await budget.settle("t", kept, 50, BY) == Closed(50, 200, 950)
    assert [each.run_id for each in await budget.reservations_of("u")] == [elsewhere]


@pytest.mark.parametrize("change", ["balance", "kept", "put", "dropped"])
async def test_whatever_has_changed_refuses_the_whole(budget: RedisBudget, keys: redis.Redis, change: str) -> None:
    """PRICED-61"""
    await budget.credit("t", 1000, "r")
    runs = {name: a_run() for name in ("kept", "put", "dropped")}
    for run in runs.values():
        await budget.reserve("t", run, 100, AT_US)
    seen = await budget.look("t", list(runs.values()))
    if change == "balance":
        await keys.incrby(BALANCE, 1)
    elif change == "put":
        await keys.delete(f"reserve:{runs['put']}")
        await keys.set(f"reserve:{runs['put']}", "of another kind")
    else:
        await keys.hset(f"reserve:{runs[change]}", "reserved_usd_micros", "101")
    before = await everything(keys)
    put = OpenReservation(run_id=runs["put"], tenant_id="t", reserved_usd_micros=7, created_at_ms=5)
    assert not await budget.restore(seen, 5, [put], [runs["dropped"]])
    assert await everything(keys) == before


async def test_credits_are_noted_without_money(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-58"""
    await budget.credit("t", 1000, "r0")
    notes = [CreditNote(f"topup:r{number}", 5) for number in range(1200)]
    assert await budget.note_credits(notes) == [each.op_key for each in notes[1:]]
    assert await budget.balance("t") == 1000
    assert await budget.credit("t", 5, "r1199") == AlreadyApplied()
    await budget.forget_credits([each.op_key for each in notes[1:]])
    assert await budget.credit("t", 5, "r1199") == Credited(1005)
    assert await keys.get("credit:topup:r0") == "1000"


async def test_what_is_damaged_is_no_outage(budget: RedisBudget, keys: redis.Redis) -> None:
    """Who ends a run must not wait for it."""
    run = a_run()
    await budget.credit("t", 1000, "r")
    await budget.reserve("t", run, 100, AT_US)
    await keys.hset(f"reserve:{run}", "reserved_usd_micros", "2.5e5")
    questions: tuple[Awaitable[object], ...] = (budget.outcome(run), budget.settle("t", run, 1, BY))
    for asked in questions:
        with pytest.raises(BudgetDamaged):
            await asked
    for odd in ("list", "zeroes"):
        await keys.delete(BALANCE)
        await (keys.lpush(BALANCE, "x") if odd == "list" else keys.set(BALANCE, "007"))
        await keys.hset(f"reserve:{run}", "reserved_usd_micros", "100")
        questions = (
            budget.balance("t"),
            budget.settle("t", run, 1, BY),
            budget.reserve("t", a_run(), 1, AT_US),
            budget.credit("t", 1, "r2"),
        )
        for asked in questions:
            with pytest.raises(BudgetDamaged):
                await asked


async def test_money_that_would_not_fit_does_not_come_back(budget: RedisBudget, keys: redis.Redis) -> None:
    """PRICED-198: refused, and not an outage"""
    run = a_run()
    await budget.credit("t", 1000, "r")
    await budget.reserve("t", run, 100, AT_US)
    await keys.set(BALANCE, 2**63 - 50)
    with pytest.raises(AmountError):
        await budget.settle("t", run, 1, BY)
    assert await budget.settle("t", run, 60, BY) == Closed(60, 40, 2**63 - 10)


async def test_it_warns_of_a_server_that_forgets(link: RedisLink, keys: redis.Redis) -> None:
    """PRICED-42"""
    await link.start()
    [forgets] = link.warnings()
    assert "appendonly" in forgets
    await keys.config_set("maxmemory-policy", "allkeys-lru")
    try:
        await link.start()
    finally:
        await keys.config_set("maxmemory-policy", "noeviction")
    assert any("allkeys-lru" in warning for warning in link.warnings())


def test_an_old_server_and_a_cluster_are_refused() -> None:
    """PRICED-42"""
    good = {"redis_version": "7.0.0", "cluster_enabled": 0, "maxmemory_policy": "noeviction", "aof_enabled": 1}
    assert _judge(good) == ()
    for bad in ({"redis_version": "6.2.14"}, {"redis_version": ""}, {"cluster_enabled": 1}):
        with pytest.raises(SettingError, match="PYOCO_BUDGET_URL"):
            _judge(good | bad)


async def test_a_password_is_never_told(own_redis_server: ValkeyServer) -> None:
    """PRICED-171"""
    own_redis_server.kill()
    password = "-".join(("not", "for", "you"))  # so that no line of this test holds it
    link = RedisLink(f"redis://me:{password}@127.0.0.1:{own_redis_server.port}/0")
    with pytest.raises(DependencyUnavailable) as refused:
        await link.ping()
    assert password not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(SettingError) as wrong:
        RedisLink(f"redis://:{password}/1@127.0.0.1:1/0")
    assert password not in "".join(traceback.format_exception(wrong.value))
