"""A ledger that is deleted under a running deployment, and a gateway that brings one of its own: real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pyoco_server.ports.ledger import migrate
from support.priced.processes import DOLLAR, IMPATIENT, Gateway, Payer, Site, admin, clean_environment, until
from support.servers import NatsServer


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Gateway]:
    settings = clean_environment({**IMPATIENT, "PYOCO_PACK_SLOTS": "1"})
    up = Gateway("up", settings, tmp_path, "--slots", "1")
    up.start()
    yield up.until_ready()
    up.client.close()
    up.end()


def test_a_ledger_that_is_deleted_stops_priced_runs_at_once_and_no_empty_one_takes_its_place(up: Gateway) -> None:
    """SAFE-12: while it runs, at the next start, and after the operator has said so"""
    environment = clean_environment({"PYOCO_DATA_DIR": str(up.data_dir), "PYOCO_NATS_URL": up.nats_url})
    made = admin(environment, "api-key", "create", "--tenant", "team-a")
    payer = Payer("team-a", {"X-API-Key": made["api_key"]})
    until(lambda: up.knows(payer), 10, "the key is known")
    admin(environment, "budget", "credit", "--tenant", "team-a", "--usd", "10.0000", "--ref", "first")
    up.until_status(payer, up.submitted(payer), "COMPLETED")
    ledger = up.data_dir / "ledger.db"
    ledger_id = migrate.stored_id_at(f"sqlite:///{ledger}")
    assert ledger_id is not None

    ledger.unlink()
    refused = up.post(payer)
    assert (refused.status_code, refused.json()["reason_code"]) == (503, "DEPENDENCY_UNAVAILABLE")

    def checks() -> dict[str, str]:
        found: dict[str, str] = httpx.get(f"{up.address}/readyz", timeout=30).json()["checks"]
        return found

    until(lambda: checks()["ledger_identity"] == "fail", 10, "the gateway has found it out")
    assert up.status("/readyz") == 503
    assert not ledger.exists()

    up.kill()
    up.start()
    until(lambda: not up.is_alive, 60, "the end")
    assert up.exit_code() == 3
    assert "ERR-PYOCO-0049: there is no ledger with an id here" in up.last_words
    assert ledger_id in up.last_words
    assert "Traceback" not in up.last_words
    assert not ledger.exists()

    del environment["PYOCO_NATS_URL"]  # that NATS ended with `up`; the command starts it for itself
    assert admin(environment, "ledger", "adopt", "--yes") == {
        "before": ledger_id,
        "after": None,
        "ledger": f"sqlite:///{ledger}",
        "changed": True,
    }
    up.start()
    up.until_ready()
    assert migrate.stored_id_at(f"sqlite:///{ledger}") not in {None, ledger_id}
    assert up.post(payer).json()["reason_code"] == "BUDGET_DRAINED", "the money was in the ledger that is gone"


@pytest.mark.parametrize("part", ["gateway", "worker", "keeper"])
def test_a_process_with_another_ledger_ends_with_3_and_both_ids(
    own_nats_server: NatsServer, tmp_path: Path, part: str
) -> None:
    """SAFE-12"""
    urls = [f"sqlite:///{tmp_path / name}" for name in ("first.db", "second.db")]
    for url in urls:
        migrate.upgrade(url)
    site = Site(tmp_path, own_nats_server, {"PYOCO_LEDGER_URL": urls[0]})
    try:
        first = site.gateway("first").until_ready()
        start = {"gateway": site.gateway, "worker": site.worker, "keeper": site.keeper}[part]
        second = start("second", PYOCO_LEDGER_URL=urls[1])
        until(lambda: not second.is_alive, 60, "the end")
        assert second.exit_code() == 3
        assert "ERR-PYOCO-0049: this ledger has the id" in second.last_words
        assert all(str(migrate.stored_id_at(url)) in second.last_words for url in urls)
        assert "Traceback" not in second.last_words
        assert first.status("/readyz") == 200
    finally:
        site.end()


def test_the_money_of_a_ledger_that_is_put_back_is_there_again(up: Gateway) -> None:
    """SAFE-12"""
    environment = clean_environment({"PYOCO_DATA_DIR": str(up.data_dir), "PYOCO_NATS_URL": up.nats_url})
    admin(environment, "budget", "credit", "--tenant", "team-a", "--usd", "10.0000", "--ref", "first")
    away = (up.data_dir / "ledger.db").rename(up.data_dir / "away.db")
    until(lambda: up.status("/readyz") == 503, 10, "the gateway has found it out")
    away.rename(up.data_dir / "ledger.db")
    up.until_ready()
    assert admin(environment, "budget", "show", "--tenant", "team-a")["balance_usd_micros"] == 10 * DOLLAR
