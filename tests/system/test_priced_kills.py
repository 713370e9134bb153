"""Priced runs while processes are killed, frozen and started again: nothing is lost, spent twice or made up."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from pyoco_server.core.priced.run import PricedRun
from support.chaos import ROOT
from support.priced.processes import (
    DOLLAR,
    ENDED,
    IMPATIENT,
    Gateway,
    Keeper,
    Payer,
    Site,
    Worker,
    at_once,
    settings_of,
    until,
)
from support.priced.stacks import QUICK_SPLIT, SQLITE
from support.servers import NatsServer
from support.warm_processes import ran

FEE = 5_000
COST = 50_000


@dataclass
class Deployed:
    kind: str
    site: Site
    gateway: Gateway
    _worker: Worker
    _keeper: Keeper

    def worker(self) -> Worker:
        """One that takes priced runs, as soon as it does."""
        if not self._worker.is_alive:
            self._worker.start()
        return self._worker.until_ready()

    def keeper(self) -> Keeper:
        if not self._keeper.is_alive:
            self._keeper.start()
        return self._keeper.until_ready()

    def started(self, payer: Payer) -> str:
        """A run that a worker has in hand. Its pack must be kept from ending."""
        run_id = self.gateway.submitted(payer)
        self.gateway.until_status(payer, run_id, "PROCESSING")
        return run_id


#: What a process does besides money is the same in both modes.
in_one_mode = pytest.mark.parametrize("deployed", [SQLITE], indirect=True)
in_both_modes = pytest.mark.parametrize("deployed", [SQLITE, QUICK_SPLIT], indirect=True)


@pytest.fixture(scope="module")
def deployed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("kills")
    nats = NatsServer(folder / "nats")
    nats.start()
    site = Site(folder, nats, settings_of(request.param, folder, request) | IMPATIENT)
    try:
        gateway, worker, keeper = site.gateway("gateway"), site.worker("worker"), site.keeper("keeper")
        deployed = Deployed(request.param, site, gateway.until_ready(), worker, keeper)
        deployed.worker()
        deployed.keeper()
        yield deployed
    finally:
        site.end()
        nats.kill()


def ends_of(row: PricedRun) -> tuple[str, str, str | None, int]:
    return row.status.value, row.money.value, row.reason_code, row.actual_cost_usd_micros or 0


@in_one_mode
def test_a_worker_that_is_frozen_for_too_long_has_lost_its_run(deployed: Deployed) -> None:
    """PRICED-154, PRICED-123, AC-4205: the reaper ends it, though its keeper was killed meanwhile; who wakes up late
    changes nothing"""
    site, gateway, worker, keeper = deployed.site, deployed.gateway, deployed.worker(), deployed.keeper()
    payer = site.payer()
    with worker.no_pack_ends():
        run_id = deployed.started(payer)
        until(lambda: run_id in _running(gateway), 10, "the registry shows the run")
        until(lambda: (gateway.listed(run_id) or {}).get("status") == "RUNNING", 10, "the list shows it")
        keeper.end()
        worker.send(signal.SIGSTOP)
        deployed.keeper()
        shown = gateway.until_status(payer, run_id, *ENDED)
    assert (shown["status"], shown["result"]["reason_code"]) == ("FAILED", "WORKER_TIMEOUT")
    assert [keeper.health(path) for path in ("/healthz", "/readyz")] == [200, 200]
    before = site.row(run_id)
    assert ends_of(before) == ("FAILED", "SETTLED", "WORKER_TIMEOUT", FEE)
    worker.send(signal.SIGCONT)
    until(lambda: worker.has_said("lease lost") or worker.has_said("another process ends it"), 20, "a word")
    until(lambda: (gateway.listed(run_id) or {}).get("status") == "FAILED", 10, "the list shows the end")
    assert site.row(run_id) == before
    assert site.balance(payer) == DOLLAR - FEE
    site.check_money()


def _running(gateway: Gateway) -> list[str]:
    answer = gateway.client.get("/workers")
    workers = answer.json() if answer.status_code == 200 else []  # what is known might be out of date
    return [run_id for worker in workers for run_id in worker["running"]]


@in_both_modes
def test_a_killed_worker_costs_the_minimum_fee_and_so_does_a_killed_pack(deployed: Deployed) -> None:
    """PRICED-229, sixth line; PRICED-222, pack failure; PRICED-118"""
    site, gateway, worker = deployed.site, deployed.gateway, deployed.worker()
    deployed.keeper()
    payer = site.payer()
    with worker.no_pack_ends() as hosts:
        packs = deployed.started(payer)
        for host in hosts:
            host.kill()
        failed = gateway.until_status(payer, packs, *ENDED)
    assert failed["result"]["reason_code"] == "PACK_FAILED"
    gateway.until_status(payer, gateway.submitted(payer), "COMPLETED")  # another process has taken its place
    with worker.no_pack_ends() as hosts:
        workers = deployed.started(payer)
        worker.end()
        gateway.until_status(payer, workers, *ENDED)
    until(lambda: not psutil.wait_procs(hosts, timeout=0)[1], 10, "the end of its pack processes")
    assert ends_of(site.row(packs)) == ("FAILED", "SETTLED", "PACK_FAILED", FEE)
    assert ends_of(site.row(workers)) == ("FAILED", "SETTLED", "WORKER_TIMEOUT", FEE)
    assert site.balance(payer) == DOLLAR - 2 * FEE - COST
    site.check_money()


@in_one_mode
def test_a_worker_that_is_to_stop_finishes_what_it_has_and_takes_nothing_new(deployed: Deployed) -> None:
    """PRICED-125"""
    site, gateway, worker = deployed.site, deployed.gateway, deployed.worker()
    payer = site.payer()
    with worker.no_pack_ends():
        first = deployed.started(payer)
        worker.send(signal.SIGTERM)
        until(lambda: worker.has_said("finishing priced runs"), 10, "it has heard")
        second = gateway.submitted(payer)
    assert worker.exit_code() == 0
    assert [gateway.get(payer, run_id).json()["status"] for run_id in (first, second)] == ["COMPLETED", "QUEUED"]
    deployed.worker()
    gateway.until_status(payer, second, "COMPLETED")
    assert site.balance(payer) == DOLLAR - 2 * COST
    site.check_money()


@dataclass
class Customer:
    """Submits under a key until somebody has accepted, at one gateway or the other."""

    gateways: tuple[Gateway, Gateway]
    payer: Payer
    accepted: dict[str, str] = field(default_factory=dict)
    #: Set once some are in.
    is_busy: threading.Event = field(default_factory=threading.Event)

    def submit_some(self, number: int) -> None:
        for each in range(6):
            self.submit(6 * number + each)

    def submit(self, number: int) -> None:
        key = f"key-{number:05d}"

        def once() -> bool:
            for gateway in self.gateways:
                try:
                    answer = gateway.post(self.payer, key)
                except httpx.HTTPError:
                    continue
                assert answer.status_code in {202, 409, 503}, answer.text
                if answer.status_code == 202:
                    known = self.accepted.setdefault(key, answer.json()["run_id"])
                    assert known == answer.json()["run_id"]
                    return True
                assert answer.json()["reason_code"] != "IDEMPOTENCY_CONFLICT"
            return False

        until(once, 60, f"{key} is accepted")
        if len(self.accepted) >= 20:
            self.is_busy.set()


#: For all of them at once, should no worker be quick enough to give anything back meanwhile.
CREDIT = 120 * 250_000


@in_both_modes
def test_a_gateway_killed_among_many_submits_loses_none_and_doubles_none(deployed: Deployed) -> None:
    """PRICED-104, PRICED-158, PRICED-81: 96 keys, each with one run; addresses signed before still open results"""
    site, first = deployed.site, deployed.gateway
    second = site.gateway("second").until_ready()
    deployed.worker()
    deployed.keeper()
    payer = site.payer(CREDIT)
    early = first.submitted(payer)
    url = first.until_status(payer, early, "COMPLETED")["result"]["presigned_url"]
    customer = Customer((first, second), payer)
    customers = threading.Thread(target=at_once, args=(16, customer.submit_some))
    customers.start()
    assert customer.is_busy.wait(200)
    first.kill()
    first.start()
    customers.join(250)
    assert len(customer.accepted) == len(set(customer.accepted.values())) == 96
    rows = until(lambda: (found := site.rows(payer)) and all(row.has_ended for row in found) and found, 60, "the end")
    keyed = {row.idempotency_key: row.run_id for row in rows if row.idempotency_key in customer.accepted}
    assert keyed == customer.accepted
    charged = sum(row.actual_cost_usd_micros or 0 for row in rows)
    assert site.balance(payer) == CREDIT - charged
    ends = Counter(ends_of(row) for row in rows if row.idempotency_key is not None)
    late = ends.pop(("FAILED", "SETTLED", "WORKER_TIMEOUT", FEE), 0)
    assert late <= 3, "one at a time, and only where the machine stood still for longer than a lease"
    assert ends.keys() == {("COMPLETED", "SETTLED", None, COST)}
    first.until_ready()
    for gateway in (first, second):
        assert gateway.client.get(urlsplit(url).path).status_code == 200
    site.check_money()
    second.kill()


AFTER_START = ("worker.after_start", "worker.after_upload")
AFTER_CLAIM = ("finalize.after_claim", "finalize.after_money", "worker.before_ack")
BEFORE_RESERVED = ("submit.after_insert", "submit.after_reserve")
AFTER_RESERVED = ("submit.after_mark_reserved", "submit.after_send")


@in_both_modes
def test_whoever_is_killed_at_a_point_leaves_what_the_matrix_says(deployed: Deployed) -> None:
    """PRICED-229: real processes, real keepers; who worked, and then who submitted"""
    site, gateway = deployed.site, deployed.gateway
    deployed.keeper()
    deployed.worker().end(signal.SIGTERM)
    workers, submitters = site.payer(2 * DOLLAR), site.payer()
    runs = [gateway.submitted(workers) for _ in (*AFTER_START, *AFTER_CLAIM)]
    _die_at(site, submitters, *AFTER_START, *AFTER_CLAIM, *BEFORE_RESERVED, *AFTER_RESERVED)
    deployed.worker()
    for run_id in runs:
        gateway.until_status(workers, run_id, *ENDED)
    ends = sorted(ends_of(site.row(run_id)) for run_id in runs)
    assert ends == [("COMPLETED", "SETTLED", None, COST)] * 3 + [("FAILED", "SETTLED", "WORKER_TIMEOUT", FEE)] * 2
    assert site.balance(workers) == 2 * DOLLAR - 3 * COST - 2 * FEE

    wanted = 2 if deployed.kind == SQLITE else 4
    rows = until(lambda: _all_ended(site.rows(submitters), wanted), what="the end of what was submitted")
    undone = [("FAILED", "REFUNDED", "SUBMIT_ABANDONED", 0)] * (wanted - 2)
    assert sorted(map(ends_of, rows)) == [("COMPLETED", "SETTLED", None, COST)] * 2 + undone
    assert {row.idempotency_key for row in rows} - {None} == set(AFTER_RESERVED)
    assert site.balance(submitters) == DOLLAR - 2 * COST
    site.check_money()


def _all_ended(rows: list[PricedRun], count: int) -> list[PricedRun] | None:
    return rows if len(rows) == count and all(row.has_ended for row in rows) else None


def _die_at(site: Site, payer: Payer, *points: str) -> None:
    command = [sys.executable, "-m", "support.priced.crash_process", payer.tenant_id, *points]
    done = ran(command, env=site.environment | {"PYOCO_WORKER_SLOTS": "1"}, cwd=Path(ROOT) / "tests", timeout=280)
    assert json.loads(done.stdout) == dict.fromkeys(points, -signal.SIGKILL), done.stderr
