"""What must hold for priced runs after every commit and every call to the budget, and what must have come true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from pyoco_server.core.priced.journal import REVENUE, available, held
from pyoco_server.core.priced.message import decode
from pyoco_server.core.priced.projection import version_of
from pyoco_server.core.priced.reasons import Reason
from pyoco_server.core.priced.run import NewRun, PricedRun
from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import read_snapshot
from pyoco_server.core.states.priced import Money, Status
from pyoco_server.ports.budget.memory import MemoryBudgets
from pyoco_server.ports.budget.port import Settled
from pyoco_server.ports.ledger.port import Spans
from pyoco_server.ports.nats.memory.messages import Message
from pyoco_server.ports.nats.memory.stream import Stream
from simulation.kind import Problems
from simulation.loop import SimLoop
from simulation.network import WatchedNats
from simulation.packs.books import Books, Fact, Row
from simulation.packs.steps import NEW, READY, step_of, step_problems

__all__ = ["PackJudge"]

_RUNS, _QUEUE = "KV_pyoco_runs", "DPP_RUNS"
#: The longest time of an audit, with calls to the ledger that get no answer.
_AUDIT_US = 60_000_000


@dataclass
class _Posted:
    """What the journal has of one run."""

    reserved: int | None = None
    #: SETTLE or REFUND.
    closed_by: str | None = None
    charge: int = 0


@dataclass
class _Account:
    """What the journal has of one tenant."""

    credited: int = 0
    available: int = 0
    held: int = 0
    charged: int = 0


class PackJudge:
    def __init__(
        self,
        loop: SimLoop,
        nats: WatchedNats,
        problems: Problems,
        books: Books,
        budgets: MemoryBudgets | None,
        spans: Spans,
        now_us: Callable[[], int],
    ) -> None:
        """`budgets`: split mode. `now_us`: the ledger's clock."""
        self._loop, self._nats, self.blame = loop, nats, problems.blame
        self._books, self._budgets, self._spans, self._now_us = books, budgets, spans, now_us
        self.rows: dict[str, Row] = {}
        self._asks: dict[str, NewRun] = {}
        self._accepted: dict[str, NewRun] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._posted: defaultdict[str, _Posted] = defaultdict(_Posted)
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)
        self._topups: dict[str, tuple[str, int]] = {}
        self._credits: dict[str, tuple[str, int]] = {}
        self._executed: dict[str, str] = {}
        self._has_half_a_credit, self._half_a_credit_at = False, 0
        self._ends_read: dict[str, tuple[str, int]] = {}
        #: Tenants of reservations in the budget, by run.
        self._tenants: dict[str, str] = {}
        self._shown: dict[str, Run] = {}
        nats.on_stream.append(self._on_stream)

    # Requests of clients, and their answers.

    def ask(self, ask: NewRun) -> None:
        """Before it is asked, with the id that the gateway gives it."""
        self._asks[ask.run_id] = ask

    def accept(self, ask: NewRun, run: PricedRun) -> None:
        """A client was told that its submission is this run."""
        row = self.rows.get(run.run_id)
        if row is None or row.at.money is Money.NONE:
            self.blame("a run was accepted that is not stored", run.run_id)
            return
        self._accepted[run.run_id] = ask
        if row.payload_hash != ask.payload_hash or row.tenant_id != ask.tenant_id:
            self.blame("a submission was answered with the run of another one", run.run_id)
        key = (ask.tenant_id, ask.idempotency_key)
        other = self._by_key.get(key, run.run_id)
        if other != run.run_id and self.rows[other].idempotency_key is not None:
            self.blame(f"idempotency key {ask.idempotency_key} names two runs", run.run_id)
        self._by_key[key] = run.run_id

    def credited(self, ref: str, tenant_id: str, amount: int) -> None:
        """The operator was told that the tenant has it."""
        self._credits[ref] = (tenant_id, amount)
        if self._topups.get(f"topup:{ref}") != (tenant_id, amount):
            self.blame(f"a credit was confirmed that is not in the journal: {ref}")

    def read(self, run: PricedRun) -> None:
        """A client was shown this."""
        row = self.rows.get(run.run_id)
        if row is None or run.version > row.version:
            self.blame("a client was shown what is not stored", run.run_id)
        elif run.has_ended:
            end = (run.status.value, run.used_usd_micros)
            if self._ends_read.setdefault(run.run_id, end) != end:
                self.blame(f"a run ended as {self._ends_read[run.run_id]} and then as {end}", run.run_id)

    def began(self, process: str, run_id: str) -> None:
        self._loop.record("execute pack", by=process, run=run_id)
        other = self._executed.setdefault(run_id, process)
        if other != process or run_id not in self.rows:
            self.blame(f"{process} executes a run that {other} has executed, or that is not stored", run_id)

    # What is committed.

    def on_commit(self) -> None:
        self._check_audit()
        facts, changed = self._books.new_facts(), self._books.changed_runs()
        if not facts and not changed:
            return
        now_us = self._now_us()
        for fact in facts:
            self._post(fact)
        for run_id in changed:
            self._change(run_id, self._books.row(run_id), now_us)
        for run_id in dict.fromkeys([*changed, *(fact.run_id for fact in facts if fact.run_id is not None)]):
            self._check_run(run_id)
        if self._budgets is None:
            self._check_tables()

    def _check_audit(self) -> None:
        note = self._books.last_audit()
        if note is not None and note.differences and self._half_a_credit_at < note.at_us - _AUDIT_US:
            self.blame("an audit has found that money does not add up")
        self._look_for_half_a_credit()

    def _look_for_half_a_credit(self) -> None:
        """Split mode: a process died between the journal and the budget, which an audit finds rightly. The operator
        repeats the credit."""
        had = self._has_half_a_credit
        store = self._budgets
        self._has_half_a_credit = store is not None and any(key not in store.credits for key in self._topups)
        if had or self._has_half_a_credit:
            self._half_a_credit_at = self._now_us()

    def _change(self, run_id: str, row: Row | None, now_us: int) -> None:
        before = self.rows.pop(run_id, None)
        if row is None:
            if before is not None and before.at != NEW:
                self.blame(f"a row was deleted at {before.at}", run_id)
            return
        self.rows[run_id] = row
        if before is None or before.version != row.version:
            step = "T1" if before is None else step_of(before, row)
            self._loop.record("row", run=run_id, step=step, at=str(row.at), version=row.version)
        if before is not None and step_of(before, row) == "T11" and run_id not in self._dead_letters():
            self.blame("a run was given up although no worker has refused its message", run_id)
        if before is not None:
            for problem in step_problems(before, row, now_us, self._spans):
                self.blame(problem, run_id)
        elif (row.at, row.version) != ((READY, 1) if self._budgets is None else (NEW, 0)):
            self.blame(f"a row began at {row.at}, version {row.version}", run_id)
        if row.has_ended and (before is None or not before.has_ended):
            self._check_work(run_id, row)

    def _dead_letters(self) -> set[str]:
        letters = self._nats.streams.get(f"{_QUEUE}_DLQ")
        return {decode(each.data).run_id for each in letters.messages.since(1)} if letters is not None else set()

    def _check_work(self, run_id: str, row: Row) -> None:
        """The end fits the work."""
        ask = self._asks.get(run_id)
        if ask is None:
            self.blame("a run ended that nobody has asked for", run_id)
        elif row.at.status is Status.COMPLETED:
            work = ask.inputs
            if work["end"] != "complete" or work["seconds"] >= ask.timebox_sec or run_id not in self._executed:
                self.blame("a run is completed whose work was not done", run_id)
            if row.actual_cost_usd_micros != min(work["cost"], ask.reserved_usd_micros):
                self.blame(f"work of {work['cost']} was charged with {row.actual_cost_usd_micros}", run_id)
        elif (
            row.at.money is Money.REFUNDED
            and run_id in self._executed
            and row.last_error_reason_code != Reason.PACK_UNAVAILABLE
        ):
            self.blame("a run was refunded that was executed", run_id)

    def _post(self, fact: Fact) -> None:
        self._loop.record("journal", fact=fact.op_key, kind=fact.kind)
        if sum(fact.entries.values()):
            self.blame(f"the entries of {fact.op_key} do not sum to zero")
        account, entries = self._accounts[fact.tenant_id], fact.entries
        account.available += entries.get(available(fact.tenant_id), 0)
        account.held += entries.get(held(fact.tenant_id), 0)
        account.charged += entries.get(REVENUE, 0)
        if fact.kind == "TOPUP":
            amount = entries[available(fact.tenant_id)]
            account.credited += amount
            self._topups[fact.op_key] = (fact.tenant_id, amount)
            return
        assert fact.run_id is not None
        posted = self._posted[fact.run_id]
        if fact.kind == "RESERVE":
            posted.reserved = entries[held(fact.tenant_id)]
        elif posted.closed_by is not None:
            self.blame(f"the journal closes a run by {posted.closed_by} and by {fact.kind}", fact.run_id)
        else:
            posted.closed_by, posted.charge = fact.kind, entries.get(REVENUE, 0)

    def _check_run(self, run_id: str) -> None:
        """The row and the journal tell the same."""
        row, posted = self.rows.get(run_id), self._posted[run_id]
        found = (posted.reserved, posted.closed_by, posted.charge)
        if (row is None or row.at.money is not Money.DISPUTED) and found not in _expected(row):
            place = "deleted" if row is None else str(row.at)
            self.blame(f"a run is {place}, and the journal has {found} of it", run_id)

    def _check_tables(self) -> None:
        """Joint mode: balances and reservations are what the journal says, at every commit."""
        balances, reserved = self._books.balances(), self._books.open_reservations()
        for tenant_id, account in self._accounts.items():
            found = (balances.get(tenant_id, 0), reserved.get(tenant_id, 0))
            if found != (account.available, account.held):
                self.blame(f"{tenant_id} has {found}, and {account} by the journal")
            elif account.credited != sum(found) + account.charged or min(found) < 0:
                self.blame(f"money of {tenant_id} was made or lost: {account}")

    # What the budget elsewhere does.

    def on_budget(self) -> None:
        """Split mode: what a tenant has, holds and has paid is what it was given."""
        store = self._budgets
        assert store is not None
        self._look_for_half_a_credit()
        totals: defaultdict[str, int] = defaultdict(int, store.balances)
        for run_id, each in store.reservations.items(0):
            self._tenants[run_id] = each.tenant_id
            totals[each.tenant_id] += each.reserved_usd_micros
        for run_id, outcome in store.outcomes.items(0):
            totals[self._tenants[run_id]] += outcome.charge_usd_micros if isinstance(outcome, Settled) else 0
        for key in store.credits:
            tenant_id, amount = self._topups[key]
            totals[tenant_id] -= amount
        for tenant_id, difference in totals.items():
            if difference or store.balances.get(tenant_id, 0) < 0:
                self.blame(f"the budget of {tenant_id} is off by {difference}: {store.balances[tenant_id]}")

    # What is shown in the lists.

    def _on_stream(self, stream: Stream) -> None:
        if stream.name == _RUNS:
            stream.on_stored.append(self._on_revision)

    def _on_revision(self, message: Message) -> None:
        if b"KV-Operation" in message.head:
            self._shown.pop(message.subject.rpartition(".")[2], None)
            return
        run = read_snapshot(message.data)
        if not run.is_pack:
            return
        row, before = self.rows.get(run.run_id), self._shown.get(run.run_id)
        if row is None or version_of(run) > row.version:
            self.blame("the lists show what is not stored", run.run_id)
        elif before is not None and version_of(before) >= version_of(run):
            self.blame(f"the lists went back to version {version_of(run)}", run.run_id)
        self._shown[run.run_id] = run

    # What must have come true.

    def unsettled(self) -> list[tuple[str, str]]:
        """What has not come true yet, with the run."""
        found = [(f"a run is stuck at {row.at}", run_id) for run_id, row in self.rows.items() if not row.has_ended]
        found += [("an accepted run is lost", run_id) for run_id in self._accepted if run_id not in self.rows]
        for run_id, row in self.rows.items():
            shown = self._shown.get(run_id)
            told = None if shown is None else (version_of(shown), shown.status.value)
            if row.at.status in (Status.COMPLETED, Status.FAILED) and told != (row.version, row.at.status.value):
                found.append((f"the lists show {told} for {row.at}, version {row.version}", run_id))
        queue = self._nats.streams.get(_QUEUE)
        if queue is not None and queue.messages:
            found.append((f"{len(queue.messages)} messages are left in the queue of packs", ""))
        return found + [(text, "") for text in self._unsettled_money()]

    def _unsettled_money(self) -> list[str]:
        found = [f"{tenant_id} still holds {each.held}" for tenant_id, each in self._accounts.items() if each.held]
        store = self._budgets
        if store is not None:
            for tenant_id, account in self._accounts.items():
                if store.balances.get(tenant_id, 0) != account.available:
                    found.append(f"the budget of {tenant_id} is {store.balances.get(tenant_id, 0)}, and {account}")
            found += [f"a reservation is left open: {run_id}" for run_id, _ in store.reservations.items(0)]
        return found

    def conclude(self) -> None:
        for text, run_id in self.unsettled():
            self.blame(text, run_id)
        for ref, (tenant_id, amount) in self._credits.items():
            if self._topups.get(f"topup:{ref}") != (tenant_id, amount):
                self.blame(f"a credit is lost: {ref}")
        for tenant_id, account in self._accounts.items():
            if account.credited != account.available + account.held + account.charged:
                self.blame(f"money of {tenant_id} was made or lost: {account}")
        for run_id, row in self.rows.items():
            if row.at.money is Money.DISPUTED:
                self.blame("a run is disputed", run_id)


def _expected(row: Row | None) -> list[tuple[int | None, str | None, int]]:
    """What the journal may have of a run: what is reserved, how it was closed, and the charge."""
    if row is None or row.at.money is Money.NONE:
        return [(None, None, 0)]
    amount = row.reservation_max_cost_usd_micros
    if row.at.money is Money.RESERVED:
        return [(amount, None, 0)]
    if row.at.money is Money.SETTLED:
        return [(amount, "SETTLE", row.actual_cost_usd_micros)]
    return [(amount, "REFUND", 0), (None, None, 0)]  # nothing: given up before it was known to be reserved
