"""Every place a priced run can be at, and rows that are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from pyoco_server.core.priced.instants import SECOND_US
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Actor, Basis
from pyoco_server.ports.ledger.port import Final, Ledger, LedgerTx, Lost
from support.priced.ledgers import COMPLETES, FAILS, REFUNDS, SPANS, Skew, a_new_run

__all__ = ["CLAIM", "LEASE", "WAYS", "WHEN", "Raw", "attempt", "row_at", "rows_at"]

#: One statement on a connection of its own, committed; the rows it gives back.
Raw = Callable[[str], list[tuple[Any, ...]]]

LEASE, CLAIM = "lease-1", "claim-1"

#: By way of which steps; T1 comes before them.
WAYS: dict[str, tuple[str, ...]] = {
    "QUEUED/NONE/OPEN": (),
    "QUEUED/NONE/CLAIMED": ("T12",),
    "QUEUED/RESERVED/OPEN": ("T2",),
    "QUEUED/RESERVED/CLAIMED": ("T2", "T13"),
    "QUEUED/DISPUTED/CLAIMED": ("T2", "T13", "T17"),
    "PROCESSING/RESERVED/OPEN": ("T2", "T4"),
    "PROCESSING/RESERVED/CLAIMED": ("T2", "T4", "T6"),
    "PROCESSING/DISPUTED/CLAIMED": ("T2", "T4", "T6", "T17"),
    "COMPLETED/SETTLED/COMMITTED": ("T2", "T4", "T6", "T7"),
    "FAILED/SETTLED/COMMITTED": ("T2", "T4", "T6", "T8"),
    "FAILED/REFUNDED/COMMITTED": ("T2", "T13", "T14"),
    "EXPIRED/SETTLED/COMMITTED": ("T2", "T4", "T6", "T7", "T16"),
    "EXPIRED/REFUNDED/COMMITTED": ("T2", "T13", "T14", "T16"),
}

#: When a step may be taken by its clock, in seconds after the row was made.
WHEN = {"T9": 121, "T11": 3_600, "T12": 61, "T15": 400, "T16": SPANS.retention_seconds + 1}

BASES = {basis.value: basis for basis in Basis}
INTENTS = {"T7": COMPLETES, "T8": FAILS, "T10": FAILS, "T14": REFUNDS, "T18": COMPLETES}


def attempt(tx: LedgerTx, step: str, run: PricedRun, **told: Any) -> PricedRun | Lost | bool:
    """The step, with everything right but, perhaps, the place. `told` is what is to be wrong."""
    run_id, version = run.run_id, told.get("version", run.version)
    lease, claim = told.get("lease", LEASE), told.get("claim", CLAIM)
    if step in BASES:
        lease_token = lease if step == "T6" else None
        return tx.ends.claim(run_id, version, BASES[step], CLAIM, Actor.WORKER, COMPLETES, lease_token)
    if step in ("T7", "T8", "T10", "T14", "T18"):
        final = Final(step=step, intent=INTENTS[step], charge_usd_micros=INTENTS[step].charge_usd_micros)
        if step == "T18":
            return tx.ends.resolve(run_id, version, final)
        return tx.ends.commit(run_id, version, claim, final)
    acts: dict[str, Callable[[], PricedRun | Lost | bool]] = {
        "T2": lambda: tx.runs.mark_reserved(run_id, version),
        "T3": lambda: tx.runs.delete_unreserved(run_id),
        "T4": lambda: tx.leases.start(run_id, version, LEASE),
        "T5": lambda: tx.leases.heartbeat(run_id, version, lease),
        "T15": lambda: tx.ends.take_over(run_id, version, "claim-2", Actor.RECONCILE),
        "T16": lambda: tx.ends.expire(run_id, version),
        "T17": lambda: tx.ends.dispute(run_id, version, claim),
        "T19": lambda: tx.ends.replace_intent(run_id, version, claim, FAILS),
    }
    return acts[step]()


async def rows_at(
    ledger: Ledger, skew: Skew, places: Sequence[str], steps: Sequence[str] | None = None
) -> list[PricedRun]:
    """A new run at each of these places. The clock is moved for the steps that need it, and set back.

    `steps`: what is to be tried with each of them. T20 needs a run that is not due, and a run that was started is.
    """

    def walk(tx: LedgerTx, runs: list[PricedRun], done: list[int], at: int) -> None:
        for n, place in enumerate(places):
            while done[n] < len(WAYS[place]) and WHEN.get(WAYS[place][done[n]], 0) == at:
                taken = attempt(tx, WAYS[place][done[n]], runs[n])
                assert isinstance(taken, PricedRun)
                runs[n], done[n] = taken, done[n] + 1

    def make(tx: LedgerTx) -> list[PricedRun]:
        due = [
            time.time_ns() // 1_000 + skew() + 3_600 * SECOND_US if step == "T20" and "T4" not in WAYS[place] else None
            for step, place in zip(steps or [""] * len(places), places, strict=True)
        ]
        made = [tx.runs.create(a_new_run(not_before=not_before)) for not_before in due]
        return [one for one in made if isinstance(one, PricedRun)]

    runs, done = await ledger.transact(make), [0] * len(places)
    start = skew.us
    for at in (0, WHEN["T12"], WHEN["T16"]):
        skew.us = start + at * SECOND_US
        await ledger.transact(lambda tx, at=at: walk(tx, runs, done, at))  # type: ignore[misc]
    skew.us = start
    assert [str(run.at) for run in runs] == list(places)
    return runs


async def row_at(ledger: Ledger, skew: Skew, place: str) -> PricedRun:
    return (await rows_at(ledger, skew, [place]))[0]
