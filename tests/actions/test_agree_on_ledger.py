"""Which ledger a deployment uses: the first one that a gateway brings, and no other until an operator says so."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest

from pyoco_server.actions.priced.adopt_ledger import adopt_ledger, plan_adoption
from pyoco_server.actions.priced.agree_on_ledger import (
    LedgerAgreement,
    agree_on_ledger,
    compare_ledger,
    refuse_missing_ledger,
)
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import Conflict, OtherLedger
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.known_ledger.port import Remembered
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.ports.nats.link import Link
from support.priced.ledgers import memory_url, open_ledger


def new_id() -> str:
    return str(uuid.uuid4())


@pytest.fixture
async def known(link: Link, config: NatsBackendConfig) -> JetStreamKnownLedger:
    known = JetStreamKnownLedger(link, config)
    await known.start()
    return known


@contextlib.asynccontextmanager
async def opened(ledger_id: str | None) -> AsyncIterator[SqlLedger]:
    """A ledger with this id."""
    with memory_url() as url:
        async with open_ledger(url) as ledger:
            await ledger.transact(lambda tx: tx.identity.give("unused"))
            engine = ledger._writing._engine  # type: ignore[union-attr]
            with engine.begin() as connection:
                connection.exec_driver_sql("DELETE FROM ledger_settings WHERE name = 'ledger_id'")
            if ledger_id is not None:
                await ledger.transact(lambda tx: tx.identity.give(ledger_id))
            yield ledger


async def test_the_first_ledger_is_remembered_and_another_is_refused_with_both_ids(
    known: JetStreamKnownLedger,
) -> None:
    """SAFE-12"""
    async with opened("first") as first, opened("second") as second:
        await agree_on_ledger(first, known, new_id)
        assert (await known.get()).ledger_id == "first"
        for _ in range(2):
            await agree_on_ledger(first, known, new_id)
            await compare_ledger(first, known)
            for refused in (agree_on_ledger(second, known, new_id), compare_ledger(second, known)):
                with pytest.raises(OtherLedger, match=r"second.*first.*pyoco-server-admin ledger adopt"):
                    await refused
        assert (await known.get()).ledger_id == "first"


async def test_a_ledger_of_an_older_version_is_adopted_where_none_is_remembered(
    known: JetStreamKnownLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """SAFE-12: an upgrade needs no operator, and is logged once"""
    caplog.set_level("INFO")
    async with opened(None) as old:
        for _ in range(3):
            await agree_on_ledger(old, known, new_id)
        assert (await known.get()).ledger_id == await old.stored_id() is not None
    assert caplog.text.count("this deployment uses this ledger from now on") == 1


async def test_a_ledger_without_an_id_beside_a_remembered_one_is_refused(known: JetStreamKnownLedger) -> None:
    """SAFE-12"""
    async with opened("first") as first, opened(None) as old:
        await agree_on_ledger(first, known, new_id)
        with pytest.raises(OtherLedger, match=r"no ledger with an id here.*first"):
            await agree_on_ledger(old, known, new_id)
        assert await old.stored_id() is None


async def test_whoever_does_not_decide_accepts_its_ledger_while_none_is_remembered(
    known: JetStreamKnownLedger,
) -> None:
    """Workers may be upgraded before gateways. They give a ledger no id, and remember none."""
    async with opened(None) as old:
        assert await compare_ledger(old, known) == Remembered(None, 0)
        assert await old.stored_id() is None
    assert (await known.get()).ledger_id is None


async def test_of_gateways_that_start_at_once_with_different_ledgers_one_decides(known: JetStreamKnownLedger) -> None:
    """SAFE-12: compare-and-set"""
    async with contextlib.AsyncExitStack() as stack:
        ledgers = [await stack.enter_async_context(opened(None)) for _ in range(4)]
        agreed = await asyncio.gather(
            *(agree_on_ledger(ledger, known, new_id) for ledger in ledgers), return_exceptions=True
        )
        decided = (await known.get()).ledger_id
        winners = [ledger for ledger, error in zip(ledgers, agreed, strict=True) if error is None]
        assert [await ledger.stored_id() for ledger in winners] == [decided]
        assert [type(error) for error in agreed if error is not None] == [OtherLedger] * 3


async def test_gateways_that_share_one_ledger_agree_whoever_is_first(known: JetStreamKnownLedger) -> None:
    async with opened(None) as ledger:
        await asyncio.gather(*(agree_on_ledger(ledger, known, new_id) for _ in range(8)))
        assert (await known.get()).ledger_id == await ledger.stored_id()


async def test_no_ledger_may_be_created_beside_a_remembered_one(known: JetStreamKnownLedger) -> None:
    """SAFE-12"""
    await refuse_missing_ledger(known)
    assert await known.remember("first", await known.get())
    with pytest.raises(OtherLedger, match="first"):
        await refuse_missing_ledger(known)


async def test_deployments_with_names_of_their_own_share_a_server(link: Link, known: JetStreamKnownLedger) -> None:
    other = JetStreamKnownLedger(link, NatsBackendConfig(runs_kv_bucket="somebody_elses"))
    before = await other.get()
    assert await known.remember("first", await known.get())
    assert await other.get() == before


async def test_what_was_remembered_changes_by_compare_and_set_alone(known: JetStreamKnownLedger) -> None:
    nothing = await known.get()
    assert await known.remember("first", nothing)
    assert not await known.remember("second", nothing)
    assert not await known.forget(nothing)
    first = await known.get()
    assert await known.forget(first)
    assert not await known.remember("third", first)
    assert await known.remember("third", await known.get())
    assert (await known.get()).ledger_id == "third"


class TestAdopting:
    async def test_another_ledger_is_used_from_now_on(self, known: JetStreamKnownLedger) -> None:
        """SAFE-12"""
        async with opened("first") as first, opened("second") as second:
            await agree_on_ledger(first, known, new_id)
            plan = await plan_adoption(known, "second")
            assert (plan.before, plan.changes) == ("first", True)
            await adopt_ledger(known, plan)
            await agree_on_ledger(second, known, new_id)
            with pytest.raises(OtherLedger):
                await compare_ledger(first, known)

    async def test_without_a_ledger_the_next_gateway_decides(self, known: JetStreamKnownLedger) -> None:
        """SAFE-12: the old file was deleted"""
        assert await known.remember("first", await known.get())
        await adopt_ledger(known, await plan_adoption(known, None))
        await refuse_missing_ledger(known)
        async with opened("second") as second:
            await agree_on_ledger(second, known, new_id)
        assert (await known.get()).ledger_id == "second"

    async def test_a_plan_that_somebody_else_has_overtaken_changes_nothing(self, known: JetStreamKnownLedger) -> None:
        plan = await plan_adoption(known, "mine")
        assert await known.remember("another", await known.get())
        with pytest.raises(Conflict):
            await adopt_ledger(known, plan)
        assert (await known.get()).ledger_id == "another"

    async def test_a_ledger_that_is_used_already_is_not_written_again(self, known: JetStreamKnownLedger) -> None:
        assert await known.remember("first", await known.get())
        before = await known.get()
        await adopt_ledger(known, await plan_adoption(known, "first"))
        assert await known.get() == before


class TestStanding:
    def test_a_ledger_that_was_not_compared_yet_may_not_be_used(self) -> None:
        standing = LedgerAgreement()
        assert not standing.is_own
        with pytest.raises(OtherLedger, match="not been compared yet"):
            standing.check()

    def test_each_problem_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        standing = LedgerAgreement()
        for problem in ("one", "one", "two", "two"):
            standing.refuse(OtherLedger(problem))
            with pytest.raises(OtherLedger, match=problem):
                standing.check()
        assert caplog.text.count("priced runs are stopped") == 2
        for _ in range(2):
            standing.accept()
            standing.check()
        assert standing.is_own
        assert caplog.text.count("is the one that this deployment uses") == 1


def test_the_texts_of_the_error_are_those_of_the_contract() -> None:
    """SAFE-12"""
    text = OtherLedger("x").text
    assert (text.err_id, text.en) == ("ERR-PYOCO-0049", "This is not the ledger that this deployment uses.")
    assert text.ja == "このデプロイで使用しているledgerではありません"
