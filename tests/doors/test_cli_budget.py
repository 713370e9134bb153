"""`pyoco-server-admin budget`, `ledger` and `tenant`: money from the command line, on a real ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.priced.note_audit import last_audit
from pyoco_server.config import NatsBackendConfig, priced_from_env
from pyoco_server.core.priced import journal
from pyoco_server.core.priced.run import Intent, MoneyOp, PricedRun
from pyoco_server.core.states.priced import Actor, Basis, Status
from pyoco_server.doors.cli.admin import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.port import LedgerTx, Lost
from pyoco_server.wiring.priced import open_money
from support.priced.ledgers import a_new_run, sqlite_url
from support.priced.servers import PostgresServer, ValkeyServer

Run = Callable[..., "Ended"]


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def result(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


@pytest.fixture
def ledger_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = sqlite_url(tmp_path)
    monkeypatch.setenv("PYOCO_LEDGER_URL", url)
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "0")
    return url


@pytest.fixture
def admin(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> Ended:
        code = outcome(cli, "pyoco-server-admin", arguments)
        said = capsys.readouterr()
        return Ended(code, said.out, said.err)

    return call


def in_ledger(work: Callable[[LedgerTx], Any]) -> Any:
    async def all_of_it() -> Any:
        async with open_money(NatsBackendConfig(), *priced_from_env()) as priced:
            return await priced.ledger.transact(work)

    return asyncio.run(all_of_it())


@pytest.mark.usefixtures("ledger_url")
class TestBudget:
    def test_a_credit_makes_the_tenant_and_is_shown_in_whole_micros(self, admin: Run) -> None:
        given = admin("budget", "credit", "--tenant", "team-a", "--usd", "10.0000").result
        assert (given["applied"], given["balance_usd_micros"], given["balance_usd"]) == (True, 10_000_000, "10.0000")
        assert admin("budget", "show", "--tenant", "team-a").result == {
            "tenant_id": "team-a",
            "status": "ACTIVE",
            "balance_usd_micros": 10_000_000,
            "held_usd_micros": 0,
            "charged_usd_micros": 0,
            "credited_usd_micros": 10_000_000,
        }

    def test_the_same_ref_credits_once(self, admin: Run) -> None:
        """PRICED-57, PRICED-58"""
        for applied in (True, False):
            given = admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "invoice 7")
            assert given.result["applied"] is applied
            assert given.result["balance_usd_micros"] == 1_000_000
            assert ("given before" in given.err) is not applied

    def test_a_ref_cannot_stand_for_two_credits(self, admin: Run) -> None:
        assert admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "r").code == 0
        other = admin("budget", "credit", "--tenant", "t", "--usd", "2.0000", "--ref", "r")
        assert (other.code, other.out) == (1, "")
        assert "another credit" in other.err
        assert admin("budget", "show", "--tenant", "t").result["balance_usd_micros"] == 1_000_000

    @pytest.mark.parametrize(
        "usd", ["10", "10.0", "-1.0000", "+1.0000", "1e3", "0.0000", "1.00000", " 1.0000", "٣.0000", "1000000000.0000"]
    )
    def test_a_bad_amount_exits_1_and_changes_nothing(self, admin: Run, usd: str) -> None:
        """PRICED-34"""
        refused = admin("budget", "credit", "--tenant", "t", f"--usd={usd}")
        assert (refused.code, refused.out) == (1, "")
        assert "--usd" in refused.err
        assert "Traceback" not in refused.err
        assert admin("budget", "show", "--tenant", "t").result["credited_usd_micros"] == 0

    @pytest.mark.parametrize("tenant", ["", "a b", "x" * 65, "ä", "a/b"])
    def test_what_cannot_be_a_tenant_is_refused(self, admin: Run, tenant: str) -> None:
        refused = admin("budget", "credit", "--tenant", tenant, "--usd", "1.0000")
        assert (refused.code, refused.out) == (1, "")
        assert "64 at most" in refused.err

    def test_a_tenant_nobody_has_credited_has_nothing(self, admin: Run) -> None:
        assert admin("budget", "show", "--tenant", "new").result["balance_usd_micros"] == 0

    def test_one_micro_of_difference_is_found_and_the_tenant_named(self, admin: Run, ledger_url: str) -> None:
        """PRICED-59, PRICED-60"""
        for tenant in ("team-a", "team-b"):
            admin("budget", "credit", "--tenant", tenant, "--usd", "3.0000")
        assert admin("budget", "verify").result == {"ok": True, "tenants": 2, "differences": []}
        with sqlite3.connect(ledger_url.removeprefix("sqlite:///")) as database:
            database.execute("UPDATE budgets SET balance_usd_micros = 3000001 WHERE tenant_id = 'team-b'")
        database.close()
        found = admin("budget", "verify")
        assert found.code == 1
        assert "team-b" in found.err
        assert {item["tenant_id"] for item in json.loads(found.out)["differences"]} == {"team-b"}
        assert admin("budget", "verify", "--tenant", "team-a").code == 0
        assert admin("budget", "verify", "--tenant", "team-b").code == 1

    def test_a_budget_in_the_ledger_cannot_be_rebuilt(self, admin: Run) -> None:
        refused = admin("budget", "rebuild", "--tenant", "t", "--yes")
        assert (refused.code, refused.out) == (1, "")
        assert "nothing to rebuild" in refused.err

    def test_what_verify_found_is_left_for_gateways_to_show(self, admin: Run) -> None:
        """An operator who has repaired something does not wait for the keeper's next audit to see it"""
        assert in_ledger(last_audit) is None
        assert admin("budget", "verify").code == 0
        note = in_ledger(last_audit)
        assert note is not None
        assert note.differences == {}

    def test_a_disputed_run_waits_for_a_word_and_is_ended_by_it(self, admin: Run) -> None:
        """T18, PRICED-16"""
        admin("budget", "credit", "--tenant", "acme", "--usd", "1.0000")
        ask = a_new_run(tenant_id="acme")
        in_ledger(lambda tx: _disputed(tx, ask))
        listed = admin("budget", "disputes").result
        assert [item["run_id"] for item in listed] == [ask.run_id]
        words = ("budget", "resolve", "--run-id", ask.run_id, "--refund", "--memo", "nobody knows")
        assert "use --yes" in admin(*words).err
        assert admin("budget", "disputes").result == listed
        done = admin(*words, "--yes").result
        assert (done["status"], done["money_state"], done["charged_usd_micros"]) == ("FAILED", "REFUNDED", 0)
        assert admin("budget", "verify").code == 0
        assert admin("budget", "show", "--tenant", "acme").result["balance_usd_micros"] == 1_000_000
        again = admin(*words, "--yes")
        assert (again.code, again.out) == (1, "")

    def test_a_disputed_run_can_end_well_and_cost_nothing(self, admin: Run) -> None:
        """T18"""
        admin("budget", "credit", "--tenant", "acme", "--usd", "1.0000")
        ask = a_new_run(tenant_id="acme")
        in_ledger(lambda tx: _disputed(tx, ask))
        words = ("budget", "resolve", "--run-id", ask.run_id, "--charge-nothing", "--memo", "ours", "--yes")
        done = admin(*words)
        assert (done.result["money_state"], done.result["charged_usd_micros"]) == ("SETTLED", 0)
        assert "rebuild" not in done.err
        assert admin("budget", "verify").code == 0

    @pytest.mark.parametrize(
        "more",
        [
            (),
            ("--refund", "--charge-usd", "0.1000"),
            ("--refund", "--charge-nothing"),
            ("--charge-usd", "ten"),
            ("--charge-usd", "0.0000"),
        ],
    )
    def test_a_decision_must_be_one(self, admin: Run, more: tuple[str, ...]) -> None:
        refused = admin("budget", "resolve", "--run-id", "x", "--memo", "m", "--yes", *more)
        assert (refused.code, refused.out) == (1, "")


def _disputed(tx: LedgerTx, ask: Any) -> None:
    tx.runs.create(ask)
    tx.money.reserve(ask.tenant_id, ask.run_id, ask.reserved_usd_micros)
    _dispute(tx, ask.run_id)


def _dispute(tx: LedgerTx, run_id: str) -> None:
    assert not isinstance(tx.runs.mark_reserved(run_id, 0), Lost)
    intent = Intent(status=Status.FAILED, money_op=MoneyOp.REFUND, charge_usd_micros=0)
    claimed = tx.ends.claim(run_id, 1, Basis.SEND_FAILED, "00000000-0000-4000-8000-000000000001", Actor.API, intent)
    assert not isinstance(claimed, Lost)
    assert not isinstance(tx.ends.dispute(run_id, claimed.version, claimed.finalize_token or ""), Lost)


@pytest.mark.usefixtures("ledger_url")
class TestModes:
    @pytest.fixture
    def redis(self, redis_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> ValkeyServer:
        """Not told to anybody yet."""
        redis_server.empty()
        monkeypatch.delenv("PYOCO_BUDGET_URL", raising=False)
        return redis_server

    def test_a_command_that_takes_the_budget_for_elsewhere_is_refused(
        self, admin: Run, redis: ValkeyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a credit would be given here and there."""
        admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "r")
        monkeypatch.setenv("PYOCO_BUDGET_URL", redis.url)
        refused = admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "r")
        assert (refused.code, refused.out) == (1, "")
        assert "pyoco-server-admin ledger mode --to split" in refused.err

    def test_budgets_are_moved_to_redis_and_back(
        self, admin: Run, redis: ValkeyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PRICED-61"""
        admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "r")
        assert "PYOCO_BUDGET_URL" in admin("ledger", "mode", "--to", "split", "--yes").err
        monkeypatch.setenv("PYOCO_BUDGET_URL", redis.url)
        dry = admin("ledger", "mode", "--to", "split")
        assert dry.result == {
            "before": "joint",
            "after": "split",
            "tenants": [{"tenant_id": "t", "balance_usd_micros": 1_000_000}],
        }
        assert "use --yes" in dry.err
        assert admin("budget", "verify").code == 1, "nothing was written"
        moved = admin("ledger", "mode", "--to", "split", "--yes")
        assert moved.code == 0
        assert "set PYOCO_BUDGET_URL" in moved.err
        assert admin("budget", "show", "--tenant", "t").result["balance_usd_micros"] == 1_000_000
        redis.empty()
        again = admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "r")
        assert (again.result["applied"], again.result["balance_usd_micros"]) == (False, 0)
        assert "budget rebuild --tenant t" in again.err
        assert admin("budget", "rebuild", "--tenant", "t", "--yes").code == 0
        assert admin("budget", "verify").code == 0
        assert admin("ledger", "mode", "--to", "joint", "--yes").code == 0
        monkeypatch.delenv("PYOCO_BUDGET_URL")
        assert admin("budget", "verify").code == 0
        assert "nothing to change" in admin("ledger", "mode", "--to", "joint").err

    def test_a_run_that_was_resolved_asks_for_a_rebuild(
        self, admin: Run, redis: ValkeyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """T18, PRICED-61"""
        monkeypatch.setenv("PYOCO_BUDGET_URL", redis.url)
        admin("budget", "credit", "--tenant", "acme", "--usd", "1.0000")
        ask = a_new_run(tenant_id="acme")
        in_ledger(lambda tx: _disputed_elsewhere(tx, ask))
        words = ("budget", "resolve", "--run-id", ask.run_id, "--charge-usd", "0.1000", "--memo", "m", "--yes")
        assert "budget rebuild --tenant acme" in admin(*words).err
        assert admin("budget", "verify").code == 1
        assert admin("budget", "rebuild", "--tenant", "acme", "--yes").code == 0
        assert admin("budget", "verify").code == 0


def _disputed_elsewhere(tx: LedgerTx, ask: Any) -> None:
    made = tx.runs.create(ask)
    assert isinstance(made, PricedRun)
    tx.journal.post(journal.reserve(ask.tenant_id, ask.run_id, ask.reserved_usd_micros, Actor.API))
    _dispute(tx, ask.run_id)


@pytest.mark.usefixtures("ledger_url")
class TestTenants:
    def test_a_tenant_is_suspended_limited_and_let_in_again(self, admin: Run) -> None:
        admin("budget", "credit", "--tenant", "t", "--usd", "1.0000")
        assert admin("tenant", "suspend", "--tenant", "t").result["status"] == "SUSPENDED"
        assert admin("tenant", "limit", "--tenant", "t", "--per-minute", "7").result["rate_limit_per_min"] == 7
        (shown,) = admin("tenant", "list").result
        assert (shown["tenant_id"], shown["status"], shown["rate_limit_per_min"]) == ("t", "SUSPENDED", 7)
        assert admin("tenant", "activate", "--tenant", "t").result["status"] == "ACTIVE"
        assert admin("tenant", "limit", "--tenant", "t", "--default").result["rate_limit_per_min"] is None

    def test_one_that_is_not_there_is_an_error(self, admin: Run) -> None:
        refused = admin("tenant", "suspend", "--tenant", "nobody")
        assert (refused.code, refused.out) == (1, "")
        assert "no tenant 'nobody'" in refused.err


class TestLedger:
    def test_tables_are_made_and_told_of(
        self, admin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer
    ) -> None:
        for url in (f"sqlite:///{tmp_path}/new/ledger.db", postgres_server.new_database()):
            monkeypatch.setenv("PYOCO_LEDGER_URL", url)
            assert admin("ledger", "status").code == 1
            made = admin("ledger", "migrate").result
            assert (made["before"], made["changed"]) == (None, True)
            assert admin("ledger", "migrate").result == {
                "before": made["after"],
                "after": made["after"],
                "changed": False,
            }
            assert admin("ledger", "status").result["up_to_date"] is True

    def test_a_ledger_that_was_never_made_is_not_made_by_a_question(
        self, admin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In another directory the default names another file: to make it would hide that."""
        monkeypatch.delenv("PYOCO_LEDGER_URL", raising=False)
        refused = admin("--data-dir", str(tmp_path), "budget", "credit", "--tenant", "t", "--usd", "1.0000")
        assert (refused.code, refused.out) == (1, "")
        assert "there is no ledger at" in refused.err
        assert not (tmp_path / "ledger.db").exists()

    def test_no_command_but_a_credit_makes_a_ledger_at_an_address_that_has_none(
        self, admin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer
    ) -> None:
        """A slip in an address must not become a second ledger."""
        empty = tmp_path / "empty.db"
        empty.touch()
        missing, database = f"sqlite:///{tmp_path}/missing.db", postgres_server.new_database()
        for url in (missing, f"sqlite:///{empty}", f"{database}?password=hidden"):
            monkeypatch.setenv("PYOCO_LEDGER_URL", url)
            for words in (
                ("budget", "show", "--tenant", "t"),
                ("budget", "verify"),
                ("budget", "disputes"),
                ("tenant", "list"),
                ("ledger", "mode", "--to", "joint", "--yes"),
            ):
                refused = admin(*words)
                assert (refused.code, refused.out) == (1, ""), words
                assert "there is no ledger at" in refused.err
                assert "`pyoco-server-admin ledger migrate` makes one" in refused.err
                assert "hidden" not in refused.err
            assert migrate.is_empty(url)
        assert not (tmp_path / "missing.db").exists()

    def test_a_credit_makes_the_tables_where_there_is_nothing_and_says_so(
        self, admin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer
    ) -> None:
        for url in (f"sqlite:///{tmp_path}/new.db", postgres_server.new_database()):
            monkeypatch.setenv("PYOCO_LEDGER_URL", url)
            given = admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "first")
            assert given.result["balance_usd_micros"] == 1_000_000
            assert "made the tables of a new ledger at" in given.err
            again = admin("budget", "credit", "--tenant", "t", "--usd", "1.0000", "--ref", "second")
            assert again.result["balance_usd_micros"] == 2_000_000
            assert "made the tables" not in again.err

    def test_a_credit_makes_no_folder_and_adds_no_table_to_another_ones_database(
        self, admin: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "theirs.db")) as theirs:
            theirs.execute("CREATE TABLE theirs (a INTEGER)")
        for name, said in (("slip/ledger.db", "no such folder"), ("theirs.db", "but other tables exist there")):
            monkeypatch.setenv("PYOCO_LEDGER_URL", f"sqlite:///{tmp_path}/{name}")
            refused = admin("budget", "credit", "--tenant", "t", "--usd", "1.0000")
            assert (refused.code, refused.out) == (1, "")
            assert said in refused.err
        assert not (tmp_path / "slip").exists()
        with contextlib.closing(sqlite3.connect(tmp_path / "theirs.db")) as theirs:
            assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]

    def test_a_database_that_does_not_answer_is_told_without_its_password(
        self, admin: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PYOCO_LEDGER_URL", "postgresql://me:hidden@127.0.0.1:1/db")
        for words in (("budget", "verify"), ("ledger", "status"), ("ledger", "migrate")):
            refused = admin(*words)
            assert (refused.code, refused.out) == (1, "")
            assert refused.err.startswith("ERR-PYOCO-0036")
            assert "hidden" not in refused.err
