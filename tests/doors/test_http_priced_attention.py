"""`GET /attention` tells what an operator of priced runs should look at, and asks their stores now and then alone."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from pyoco_server.actions.priced.resolve import Refund, resolve
from pyoco_server.core.priced.audit_note import AuditNote
from pyoco_server.core.priced.run import Intent, MoneyOp
from pyoco_server.core.states.priced import Actor, Basis, Status
from pyoco_server.doors.http.outlook import Outlook
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.loops.priced.auditor import Auditor
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.ports.priced import Priced
from support.priced.gateways import Payer, PricedDoor
from support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

OURS = {"priced_stores_silent", "money_differs", "disputed_runs", "pack_letters"}


@pytest.fixture(autouse=True)
def fresh(priced_door: PricedDoor) -> Iterator[None]:
    """Each test begins without a look of the one before."""
    state = priced_door.gateway.app.state.gateway
    state.outlook = Outlook(priced_door.priced)
    yield
    state.outlook = Outlook(priced_door.priced)


@pytest_asyncio.fixture(loop_scope="module")
async def payer(priced_door: PricedDoor) -> Payer:
    return await priced_door.payer()


async def told(door: PricedDoor, priced: Priced | None = None) -> dict[str, Any]:
    """By kind, what is told of priced runs by a gateway that looks anew."""
    door.gateway.app.state.gateway.outlook = Outlook(priced or door.priced)
    answer = await door.client.get("/attention")
    assert answer.status_code == 200
    return {item["kind"]: item for item in answer.json()["items"] if item["kind"] in OURS}


def dispute(tx: LedgerTx, run_id: str) -> None:
    run = tx.runs.get(run_id)
    assert run is not None
    intent = Intent(status=Status.FAILED, money_op=MoneyOp.REFUND, charge_usd_micros=0)
    claimed = tx.ends.claim(run_id, run.version, Basis.SEND_FAILED, str(uuid.uuid4()), Actor.API, intent)
    assert not isinstance(claimed, Lost)
    assert not isinstance(tx.ends.dispute(run_id, claimed.version, claimed.finalize_token or ""), Lost)


async def test_disputed_runs_are_told_until_they_are_ended(priced_door: PricedDoor, payer: Payer) -> None:
    assert await told(priced_door) == {}
    run_id = await priced_door.submitted(payer)
    await priced_door.priced.ledger.transact(lambda tx: dispute(tx, run_id))
    item = (await told(priced_door))["disputed_runs"]
    assert (item["level"], item["count"], item["facts"]["run_ids"]) == ("danger", 1, [run_id])
    assert item["facts"]["oldest_at"] == pytest.approx(priced_door.gateway.backend.clock(), abs=60)
    assert "pyoco-server-admin budget disputes" in item["message"]
    await resolve(priced_door.priced, run_id, Refund(), "a test")
    assert await told(priced_door) == {}


async def test_what_an_audit_found_is_told_to_whom_it_concerns(priced_door: PricedDoor, payer: Payer) -> None:
    """PRICED-60: the keeper finds it, a gateway shows it"""
    ledger = priced_door.priced.ledger
    note = AuditNote.of(1_000_000, [payer.tenant_id, payer.tenant_id])
    await ledger.transact(lambda tx: tx.notes.put("last_audit", note.text()))
    item = (await told(priced_door))["money_differs"]
    assert (item["level"], item["count"], item["facts"]) == ("danger", 2, {"audited_at": 1.0})
    seen = await priced_door.gateway.app.state.gateway.outlook()
    assert seen.audit.seen_by("somebody-else") == 0

    await Auditor(priced_door.priced).turn()  # it finds nothing
    assert "money_differs" not in await told(priced_door)


class _Queue:
    """One that can be asked how much is in it, and nothing else."""

    def __init__(self, letters: int = 0, *, answers: bool = True) -> None:
        self._letters, self._answers, self.asked = letters, answers, 0

    async def depth(self) -> tuple[int, int]:
        self.asked += 1
        if not self._answers:
            await asyncio.Event().wait()
        return 0, self._letters


async def test_dead_letters_of_packs_are_told(priced_door: PricedDoor) -> None:
    item = (await told(priced_door, replace(priced_door.priced, queue=cast(Any, _Queue(3)))))["pack_letters"]
    assert (item["level"], item["count"]) == ("warning", 3)


@pytest.mark.usefixtures("impatient_gateways")
async def test_stores_that_do_not_answer_are_told_and_the_rest_is_told_all_the_same(
    priced_door: PricedDoor, payer: Payer
) -> None:
    """Also one that hangs: the answer takes at most a second."""

    async def gone() -> None:
        raise DependencyUnavailable("gone")

    run_id = await priced_door.submitted(payer)
    await priced_door.priced.ledger.transact(lambda tx: dispute(tx, run_id))
    results = cast(Any, SimpleNamespace(ping=gone))
    broken = replace(priced_door.priced, queue=cast(Any, _Queue(answers=False)), results=results)

    async def are_told() -> bool:
        """On a busy machine the others may need longer than that second as well, now and then."""
        found = {kind: item["facts"] for kind, item in (await told(priced_door, broken)).items()}
        silent, disputed = found.get("priced_stores_silent"), found.get("disputed_runs", {})
        return silent == {"stores": ["queue", "results"]} and disputed.get("run_ids") == [run_id]

    await eventually(are_told)
    await resolve(priced_door.priced, run_id, Refund(), "a test")


async def test_however_many_ask_the_stores_are_asked_once(priced_door: PricedDoor) -> None:
    queue = _Queue(1)
    look = Outlook(replace(priced_door.priced, queue=cast(Any, queue)))
    first = asyncio.create_task(look())
    others = [asyncio.create_task(look()) for _ in range(20)]
    await asyncio.sleep(0)
    first.cancel()  # its page was closed: the others are not told less
    assert {trouble.dead_letters for trouble in await asyncio.gather(*others)} == {1}
    assert queue.asked == 1
    look._until = 0.0
    await look()
    assert queue.asked == 2
    await look.close()


async def test_a_gateway_that_knows_no_priced_runs_asks_nobody(priced_door: PricedDoor) -> None:
    state = priced_door.gateway.app.state.gateway
    state.outlook = None
    answer = await priced_door.client.get("/attention")
    assert not {item["kind"] for item in answer.json()["items"]} & OURS
