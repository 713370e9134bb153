"""What every store of receipts promises."""

from __future__ import annotations

import asyncio
import uuid
from typing import Protocol

from pyoco_server.ports.receipts.port import Receipt, Receipts

__all__ = ["KEY", "MakeReceipts", "ReceiptsContract", "a_run_id", "facts"]

KEY = "0f" * 32
OTHER_KEY = "f0" * 32


class MakeReceipts(Protocol):
    """The test's one store of receipts, as another process would open it."""

    def __call__(self) -> Receipts: ...


def a_run_id() -> str:
    return str(uuid.uuid4())


def facts(receipt: Receipt) -> tuple[str, str]:
    return receipt.run_id, receipt.fingerprint


class ReceiptsContract:
    """An adapter passes all of it or does not ship."""

    async def test_the_first_claim_counts_and_all_others_are_told(self, make_receipts: MakeReceipts) -> None:
        first, second = a_run_id(), a_run_id()
        made = await make_receipts().claim(KEY, first, "mark")
        assert facts(made) == (first, "mark")
        assert await make_receipts().claim(KEY, second, "mark") == made
        assert await make_receipts().claim(KEY, second, "another mark") == made

    async def test_a_receipt_is_found_and_nothing_is_claimed_by_that(self, make_receipts: MakeReceipts) -> None:
        assert await make_receipts().find(KEY) is None
        made = await make_receipts().claim(KEY, a_run_id(), "mark")
        assert await make_receipts().find(KEY) == made
        assert await make_receipts().find(OTHER_KEY) is None

    async def test_each_key_is_its_own(self, make_receipts: MakeReceipts) -> None:
        receipts, first, second = make_receipts(), a_run_id(), a_run_id()
        assert facts(await receipts.claim(KEY, first, "mark")) == (first, "mark")
        assert facts(await receipts.claim(OTHER_KEY, second, "mark")) == (second, "mark")

    async def test_of_many_claims_at_once_one_wins_and_all_get_its_receipt(self, make_receipts: MakeReceipts) -> None:
        stores = [make_receipts(), make_receipts()]
        claims = (stores[n % 2].claim(KEY, a_run_id(), f"mark {n}") for n in range(20))
        assert len(set(await asyncio.gather(*claims))) == 1

    async def test_a_receipt_is_replaced_by_who_knows_the_newest(self, make_receipts: MakeReceipts) -> None:
        receipts, second, third = make_receipts(), a_run_id(), a_run_id()
        first = await receipts.claim(KEY, a_run_id(), "mark")
        made = await receipts.replace(KEY, second, first)
        assert facts(made) == (second, "mark")
        # A late caller gets the existing receipt, and changes nothing.
        assert await make_receipts().replace(KEY, third, first) == made
        assert await receipts.claim(KEY, third, "mark") == made
        assert facts(await receipts.replace(KEY, third, made)) == (third, "mark")

    async def test_of_many_replacements_at_once_one_wins_and_all_get_its_receipt(
        self, make_receipts: MakeReceipts
    ) -> None:
        stores = [make_receipts(), make_receipts()]
        first = await stores[0].claim(KEY, a_run_id(), "mark")
        made = await asyncio.gather(*(stores[n % 2].replace(KEY, a_run_id(), first) for n in range(20)))
        assert len(set(made)) == 1
        assert made[0].run_id != first.run_id
