"""Budgets in Redis (split mode): each operation is one script, and the keys are those of the contract's section 8."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.resources import files
from typing import Any, NoReturn

from pyoco_server.core.priced.constants import (
    MAX_AMOUNT_USD_MICROS,
    OUTCOME_TTL_SECONDS,
    RESERVE_KEY_TTL_SECONDS,
)
from pyoco_server.core.priced.journal import Closing
from pyoco_server.core.priced.money import AmountError, check_amount
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    Closed,
    Credited,
    Insufficient,
    NoReserve,
    NotReserved,
    Open,
    OpenReservation,
    Outcome,
    Refunded,
    Reserved,
    Settled,
    TenantMismatch,
)
from pyoco_server.ports.redis.link import RedisLink, Script, ScriptRefused

__all__ = ["RedisBudget"]

log = get_logger(__name__)

#: Keys that one step of a scan looks at, about.
_SCAN_KEYS = 500

_RESERVE_PREFIX = "reserve:"


def _script(name: str) -> Script:
    return Script(files(__package__).joinpath("scripts", name).read_text(encoding="utf-8"))


_RESERVE = _script("reserve.lua")
_CLOSE = _script("close.lua")
_CREDIT = _script("credit.lua")
_OUTCOME = _script("outcome.lua")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _balance_key(tenant_id: str) -> str:
    return f"budget:{tenant_id}:balance_usd_micros"


def _reserve_key(run_id: str) -> str:
    return f"{_RESERVE_PREFIX}{run_id}"


def _outcome_key(run_id: str) -> str:
    return f"outcome:{run_id}"


class RedisBudget:
    """`ports/budget` in one Redis primary. A balance that is not there counts as nothing, so that lost data never
    grants any (PRICED-42). Beyond the port: what rebuilding needs (`ports/budget/repair`), at the end.
    """

    joins_ledger = False

    def __init__(self, link: RedisLink, now_ms: Callable[[], int] = _wall_ms) -> None:
        self._link = link
        self._now_ms = now_ms

    async def reserve(
        self, tenant_id: str, run_id: str, amount_usd_micros: int, at_us: int
    ) -> Reserved | Insufficient | AlreadyReserved:
        amount = check_amount(amount_usd_micros, at_least=1)
        code, *numbers = await self._run(
            _RESERVE,
            self._keys(tenant_id, run_id),
            (tenant_id, amount, at_us // 1000, RESERVE_KEY_TTL_SECONDS, MAX_AMOUNT_USD_MICROS),
        )
        if code == "OK":
            return Reserved(int(numbers[0]))
        return Insufficient(int(numbers[0])) if code == "ERR_INSUFFICIENT" else AlreadyReserved()

    async def settle(self, tenant_id: str, run_id: str, charge_usd_micros: int, by: Closing) -> Closed | NoReserve:
        return await self._close(tenant_id, run_id, "SETTLED", check_amount(charge_usd_micros, at_least=0))

    async def refund_full(self, tenant_id: str, run_id: str, by: Closing) -> Closed | NoReserve:
        return await self._close(tenant_id, run_id, "REFUNDED", 0)

    async def outcome(self, run_id: str) -> Outcome:
        kind, *numbers = await self._run(_OUTCOME, (_reserve_key(run_id), _outcome_key(run_id)), ())
        match kind:
            case "OPEN":
                return Open(int(numbers[0]))
            case "SETTLED":
                return Settled(int(numbers[0]), int(numbers[1]))
            case "REFUNDED":
                return Refunded(int(numbers[1]))
            case _:
                return NotReserved()

    async def balance(self, tenant_id: str) -> int:
        async with self._link.asking("tell a balance") as client:
            stored = await client.get(_balance_key(tenant_id))
        try:
            return 0 if stored is None else int(stored)
        except ValueError:
            _refuse("DPP_DAMAGED")

    async def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied:
        """Under the journal's own name for it, so that both can be repeated together (PRICED-58)."""
        amount = check_amount(amount_usd_micros, at_least=1)
        keys = (_balance_key(tenant_id), f"credit:topup:{ref}")
        code, *numbers = await self._run(_CREDIT, keys, (amount, MAX_AMOUNT_USD_MICROS))
        return Credited(int(numbers[0])) if code == "OK" else AlreadyApplied()

    async def open_reservations(self, older_than_us: int) -> AsyncGenerator[OpenReservation, None]:
        async for each in self._scan():
            if each.created_at_ms * 1000 < older_than_us:
                yield each

    async def ping(self) -> None:
        await self._link.ping()

    async def reservations_of(self, tenant_id: str) -> list[OpenReservation]:
        found = {each.run_id: each async for each in self._scan() if each.tenant_id == tenant_id}
        return list(found.values())  # a scan may show a key twice

    async def set_balance(self, tenant_id: str, balance_usd_micros: int) -> None:
        async with self._link.asking("set a balance") as client:
            await client.set(_balance_key(tenant_id), check_amount(balance_usd_micros, at_least=0))

    async def put_reservation(self, reservation: OpenReservation) -> None:
        fields: dict[Any, Any] = {
            "reserved_usd_micros": check_amount(reservation.reserved_usd_micros, at_least=1),
            "tenant_id": reservation.tenant_id,
            "created_at_ms": reservation.created_at_ms,
        }
        key = _reserve_key(reservation.run_id)
        async with self._link.asking("put a reservation back") as client:
            steps = client.pipeline(transaction=True)
            steps.delete(key)
            steps.hset(key, mapping=fields)
            steps.expire(key, RESERVE_KEY_TTL_SECONDS)
            await steps.execute()

    async def drop_reservation(self, run_id: str) -> None:
        async with self._link.asking("drop a reservation") as client:
            await client.delete(_reserve_key(run_id))

    async def _scan(self) -> AsyncGenerator[OpenReservation, None]:
        """O(keys of this Redis), in steps of some hundred keys; holds one step in memory."""
        cursor = 0
        while True:
            async with self._link.asking("list reservations") as client:
                cursor, keys = await client.scan(cursor, match=f"{_RESERVE_PREFIX}*", count=_SCAN_KEYS)
                looks = client.pipeline(transaction=False)
                for key in keys:
                    looks.hgetall(key)
                hashes = await looks.execute() if keys else []
            for key, fields in zip(keys, hashes, strict=True):
                if (found := _reservation(str(key), fields)) is not None:
                    yield found
            if int(cursor) == 0:
                return

    async def _close(self, tenant_id: str, run_id: str, kind: str, charge: int) -> Closed | NoReserve:
        code, *numbers = await self._run(
            _CLOSE,
            self._keys(tenant_id, run_id),
            (tenant_id, kind, charge, self._now_ms(), OUTCOME_TTL_SECONDS, MAX_AMOUNT_USD_MICROS),
        )
        return Closed(*map(int, numbers)) if code == "OK" else NoReserve()

    def _keys(self, tenant_id: str, run_id: str) -> tuple[str, str, str]:
        return _balance_key(tenant_id), _reserve_key(run_id), _outcome_key(run_id)

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | int]) -> list[str]:
        try:
            return await self._link.run(script, keys, arguments)
        except ScriptRefused as refused:
            _refuse(refused.code)


def _refuse(code: str) -> NoReturn:
    """The scripts' words in ours. Nothing was changed."""
    if code == "DPP_AMOUNT":
        raise AmountError("Redis refuses this amount")
    if code == "DPP_TENANT":
        raise TenantMismatch("the reservation belongs to another tenant")
    log.error("a budget in Redis is damaged: what is stored is no whole number", code=code)
    raise DependencyUnavailable("a budget in Redis is damaged")


def _reservation(key: str, fields: dict[str, str]) -> OpenReservation | None:
    """None: closed between the two looks, or not ours."""
    try:
        return OpenReservation(
            run_id=key.removeprefix(_RESERVE_PREFIX),
            tenant_id=fields["tenant_id"],
            reserved_usd_micros=int(fields["reserved_usd_micros"]),
            created_at_ms=int(fields["created_at_ms"]),
        )
    except (KeyError, ValueError):
        if fields:
            log.error("a reservation in Redis is damaged", reserve_key=key)
        return None
