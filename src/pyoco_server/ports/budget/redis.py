"""Budgets in Redis (split mode): each operation is one script; the keys are those of the contract's section 8."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from importlib.resources import files
from typing import NoReturn

from pyoco_server.core.priced.constants import (
    MAX_AMOUNT_USD_MICROS,
    OUTCOME_TTL_SECONDS,
    RESERVE_KEY_TTL_SECONDS,
)
from pyoco_server.core.priced.journal import Closing, topup_key
from pyoco_server.core.priced.money import AmountError, check_amount
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.budget.port import (
    AlreadyApplied,
    AlreadyReserved,
    BudgetDamaged,
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
from pyoco_server.ports.budget.repair import BudgetStock
from pyoco_server.ports.ledger.port import CreditNote
from pyoco_server.ports.redis.link import RedisLink, Script, ScriptRefused

__all__ = ["RedisBudget"]

log = get_logger(__name__)

#: Approximate number of keys per scan step.
_SCAN_KEYS = 500

_RESERVE_PREFIX = "reserve:"
_CREDIT_PREFIX = "credit:"
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")


#: The error of Redis when a key holds a value of an unexpected type.
_OF_ANOTHER_KIND = "WRONGTYPE"
_BALANCE_MAX = 2**63 - 1
_NOTES_AT_ONCE = 500


def _text(name: str) -> str:
    return files(__package__).joinpath("scripts", name).read_text(encoding="utf-8")


def _script(name: str) -> Script:
    return Script(_text(name))


_RESERVE = _script("reserve.lua")
_CLOSE = _script("close.lua")
_CREDIT = _script("credit.lua")
_OUTCOME = _script("outcome.lua")
_LOOK = Script("#!lua flags=no-writes\n" + _text("seen.lua") + _text("look.lua"))
_RESTORE = Script("#!lua\n" + _text("seen.lua") + _text("restore.lua"))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _balance_key(tenant_id: str) -> str:
    return f"budget:{tenant_id}:balance_usd_micros"


def _reserve_key(run_id: str) -> str:
    return f"{_RESERVE_PREFIX}{run_id}"


def _outcome_key(run_id: str) -> str:
    return f"outcome:{run_id}"


class RedisBudget:
    """`ports/budget` in one Redis primary.

    A missing balance counts as zero, so that lost data never grants money (PRICED-42). At the end, beyond the port:
    what rebuilding needs (`ports/budget/repair`).
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
        try:
            match kind:
                case "OPEN":
                    return Open(int(numbers[0]))
                case "SETTLED":
                    return Settled(int(numbers[0]), int(numbers[1]))
                case "REFUNDED":
                    return Refunded(int(numbers[1]))
                case _:
                    return NotReserved()
        except (TypeError, ValueError):
            _refuse("DPP_DAMAGED")

    async def balance(self, tenant_id: str) -> int:
        with _wrong_type_is_damage():
            async with self._link.asking("tell a balance") as client:
                stored = await client.get(_balance_key(tenant_id))
        if stored is None:
            return 0
        balance = _read_integer(str(stored))
        if balance is None:
            _refuse("DPP_DAMAGED")
        return balance

    async def credit(self, tenant_id: str, amount_usd_micros: int, ref: str) -> Credited | AlreadyApplied:
        """Apply a credit under the journal's key for it, so that both can be repeated together (PRICED-58)."""
        amount = check_amount(amount_usd_micros, at_least=1)
        keys = (_balance_key(tenant_id), f"{_CREDIT_PREFIX}{topup_key(ref)}")
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
        return list(found.values())  # a scan may return a key twice

    async def look(self, tenant_id: str, run_ids: Sequence[str]) -> BudgetStock:
        balance, *reservations = await self._run(_LOOK, (_balance_key(tenant_id), *map(_reserve_key, run_ids)), ())
        return BudgetStock(
            tenant_id=tenant_id,
            balance=balance,
            reservations=tuple(zip(run_ids, reservations, strict=True)),
            balance_usd_micros=_read_integer(balance.removeprefix("=")) if balance else 0,
        )

    async def restore(
        self, seen: BudgetStock, balance_usd_micros: int, put: Sequence[OpenReservation], drop: Sequence[str]
    ) -> bool:
        if not 0 <= balance_usd_micros <= _BALANCE_MAX:
            raise AmountError("no budget holds so much")
        wanted = dict.fromkeys(drop, ("DROP", 0)) | {
            each.run_id: (str(check_amount(each.reserved_usd_micros, at_least=1)), each.created_at_ms) for each in put
        }
        assert wanted.keys() <= {run_id for run_id, _ in seen.reservations}, "what was not seen cannot be compared"
        arguments: list[str | int] = [seen.balance, balance_usd_micros, seen.tenant_id, RESERVE_KEY_TTL_SECONDS]
        for run_id, text in seen.reservations:
            arguments += (text, *wanted.get(run_id, ("KEEP", 0)))
        keys = (_balance_key(seen.tenant_id), *(_reserve_key(run_id) for run_id, _ in seen.reservations))
        return await self._run(_RESTORE, keys, arguments) == ["OK"]

    async def note_credits(self, notes: Sequence[CreditNote]) -> list[str]:
        new: list[str] = []
        for start in range(0, len(notes), _NOTES_AT_ONCE):
            some = notes[start : start + _NOTES_AT_ONCE]
            async with self._link.asking("note credits") as client:
                steps = client.pipeline(transaction=False)
                for each in some:
                    steps.set(f"{_CREDIT_PREFIX}{each.op_key}", each.amount_usd_micros, nx=True)
                answers = await steps.execute()
            new += [each.op_key for each, is_new in zip(some, answers, strict=True) if is_new]
        return new

    async def forget_credits(self, op_keys: Sequence[str]) -> None:
        for start in range(0, len(op_keys), _NOTES_AT_ONCE):
            async with self._link.asking("forget credits") as client:
                await client.delete(*(f"{_CREDIT_PREFIX}{each}" for each in op_keys[start : start + _NOTES_AT_ONCE]))

    async def _scan(self) -> AsyncGenerator[OpenReservation, None]:
        """Scan all reservations. O(keys of this Redis), in steps of a few hundred keys; holds one step in memory."""
        cursor = 0
        while True:
            async with self._link.asking("list reservations") as client:
                cursor, keys = await client.scan(cursor, match=f"{_RESERVE_PREFIX}*", count=_SCAN_KEYS)
                reads = client.pipeline(transaction=False)
                for key in keys:
                    reads.hgetall(key)
                # A key of another type must not hide the others.
                hashes = await reads.execute(raise_on_error=False) if keys else []
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
            with _wrong_type_is_damage():
                return await self._link.run(script, keys, arguments)
        except ScriptRefused as refused:
            _refuse(refused.code)


@contextlib.contextmanager
def _wrong_type_is_damage() -> Iterator[None]:
    """Raise BudgetDamaged if our key holds a value of another type: waiting does not repair that."""
    try:
        yield
    except DependencyUnavailable as error:
        if str(error.__cause__).startswith(_OF_ANOTHER_KIND):
            _refuse("DPP_DAMAGED")
        raise


def _read_integer(stored: str) -> int | None:
    """Parse an integer as Redis does: no spaces, no plus sign, no leading zero. None: not an integer."""
    return int(stored) if _INTEGER.fullmatch(stored) else None


def _refuse(code: str) -> NoReturn:
    """Raise our exception for an error code of the scripts. The script changed nothing."""
    if code == "DPP_AMOUNT":
        raise AmountError("Redis refuses this amount")
    if code == "DPP_TENANT":
        raise TenantMismatch("the reservation belongs to another tenant")
    log.error("damaged budget in Redis: stored value is not an integer", code=code)
    raise BudgetDamaged("a budget in Redis is damaged")


def _reservation(key: str, fields: dict[str, str] | Exception) -> OpenReservation | None:
    """Parse a reservation. None: it was closed between the scan and the read, or it is malformed."""
    if isinstance(fields, Exception):
        log.error("malformed reservation in Redis: wrong type", reserve_key=key)
        return None
    try:
        return OpenReservation(
            run_id=key.removeprefix(_RESERVE_PREFIX),
            tenant_id=fields["tenant_id"],
            reserved_usd_micros=int(fields["reserved_usd_micros"]),
            created_at_ms=int(fields["created_at_ms"]),
        )
    except (KeyError, ValueError):
        if fields:
            log.error("damaged reservation in Redis", reserve_key=key)
        return None
