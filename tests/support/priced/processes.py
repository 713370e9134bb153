"""Priced runs in real processes: gateways, workers and keepers over one of the three stacks, and who pays for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import httpx
import psutil
import pytest

from pyoco_server.actions.priced.audit import audit
from pyoco_server.actions.priced.credit import credit
from pyoco_server.actions.priced.tenants import limit_tenant
from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.priced import AwsSettings, PricedConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.ports.keys.jetstream import JetStreamKeys
from pyoco_server.ports.ledger.port import Balances
from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.priced import Priced
from pyoco_server.wiring.priced import open_money
from support import stacks
from support.chaos import Process, free_port
from support.priced.stacks import POSTGRES, QUICK_SPLIT, SPLIT, SQLITE
from support.servers import NatsServer, unique
from support.surroundings import variables_without
from support.timers import timers
from support.warm_processes import ran

__all__ = [
    "BODY",
    "DOLLAR",
    "ENDED",
    "IMPATIENT",
    "Gateway",
    "Keeper",
    "Payer",
    "Site",
    "Worker",
    "admin",
    "at_once",
    "clean_environment",
    "is_pack_host",
    "settings_of",
    "until",
]

T = TypeVar("T")
P = TypeVar("P", bound=Process)

_BIN = Path(sys.executable).parent
DOLLAR = 1_000_000
ENDED = ("COMPLETED", "FAILED")
BODY: dict[str, Any] = {
    "pack_type": "decision",
    "inputs": {"question": "Ship on Friday?"},
    "reservation": {"max_cost_usd": "0.2500"},
}
#: So short that keepers end what was left behind within seconds, and long enough for a busy machine.
IMPATIENT = timers(
    priced_lease_ttl_sec=5,
    priced_heartbeat_sec=1,
    priced_reaper_interval_sec=1,
    priced_sweeper_interval_sec=1,
    priced_reconcile_interval_sec=1,
    priced_reconcile_after_sec=3,
    priced_submit_abandon_sec=4,
    priced_resend_after_sec=3,
    priced_orphan_after_sec=4,
)
_PACK_HOST = "pyoco_server.executors.packs.child"


def is_pack_host(process: psutil.Process) -> bool:
    """Not its guard, which is its parent and has the same words. Raises psutil.Error when it is gone."""
    parent = process.parent()
    return parent is not None and all(_PACK_HOST in " ".join(each.cmdline()) for each in (process, parent))


def until(condition: Callable[[], T | Literal[False] | None], seconds: float = 40.0, what: str = "it") -> T:
    """As that of `stacks`. Looks seldom: each look is work for other processes."""
    return stacks.until(condition, seconds, what, every=0.1)


def clean_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a user who has set nothing else."""
    clean = variables_without("PYOCO_", "AWS_")
    return {**clean, "PYOCO_LOAD_DOTENV": "false", **more}


def settings_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The variables that choose a stack of 21.5, on servers of the tests, under names nobody else uses; QUICK_SPLIT is
    PostgreSQL and Redis, without the seconds that the emulators of SQS and S3 take."""
    if kind == SQLITE:
        return {"PYOCO_LEDGER_URL": f"sqlite:///{folder / 'ledger.db'}"}
    server = request.getfixturevalue("postgres_server")
    url = server.new_database()  # the first process makes the tables
    request.addfinalizer(lambda: server.drop_database(url))
    own = {"PYOCO_LEDGER_URL": url}
    if kind in {SPLIT, QUICK_SPLIT}:
        redis = request.getfixturevalue("redis_server")
        redis.empty()
        own |= {"PYOCO_BUDGET_URL": redis.url}
    if kind in {POSTGRES, SPLIT}:
        aws = request.getfixturevalue("moto_server").empty()
        own |= {**aws.environment, "PYOCO_RESULTS_URL": f"s3://{_dashed('dpp-results')}"}
    if kind == SPLIT:
        own |= {"PYOCO_PACK_QUEUE_URL": f"sqs://{_dashed('dpp-runs')}"}
    return own


def _dashed(name: str) -> str:
    return unique(name).replace("_", "-")


def admin(environment: Mapping[str, str], *words: str, code: int = 0) -> Any:
    """What `pyoco-server-admin` printed, as JSON."""
    command = [str(_BIN / "pyoco-server-admin"), *words]
    done = ran(command, env=dict(environment), timeout=200)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def at_once(count: int, ask: Callable[[int], T]) -> list[T]:
    """So many calls, all under way at the same time."""
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(ask, range(count)))


@dataclass(frozen=True)
class Payer:
    tenant_id: str
    headers: dict[str, str]


class Gateway(Process):
    """`pyoco-server up` with a gateway alone, or with all there is."""

    def __init__(self, name: str, settings: Mapping[str, str], folder: Path, *options: str) -> None:
        self.data_dir = folder / name
        self._port = free_port()
        own = ["--port", str(self._port), "--data-dir", str(self.data_dir)]
        super().__init__(name, [_BIN / "pyoco-server", "up", *own, *options], settings, folder)
        self.client = httpx.Client(base_url=self.address, timeout=60)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def nats_url(self) -> str:
        """It serves before it says so."""
        found = until(
            lambda: re.search(r"NATS +(nats://\S+)", self.output.read_text()), 20, f"the words of {self.name}"
        )
        return found[1]

    def status(self, path: str) -> int:
        """0: no answer."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.address}{path}", timeout=30).status_code
        return 0

    def until_ready(self, path: str = "/readyz") -> Gateway:
        """Until priced runs are accepted."""

        def is_ready() -> bool:
            assert self.is_alive, self.last_words
            return self.status(path) == 200

        until(is_ready, 40, f"{path} of {self.name}")
        return self

    @property
    def family(self) -> list[psutil.Process]:
        parent = psutil.Process(self.pid)
        return [parent, *parent.children(recursive=True)]

    def kill(self) -> None:
        """kill -9 of `up`. Returns once nothing of it is left."""
        family = self.family
        self.end()
        until(lambda: not psutil.wait_procs(family, timeout=0)[1], 10, "the end of all children")

    def post(self, payer: Payer, key: str | None = None, **changes: Any) -> httpx.Response:
        headers = {**payer.headers, "Idempotency-Key": key or f"key-{uuid.uuid4()}"}
        return self.client.post("/v1/runs", json=BODY | changes, headers=headers)

    def knows(self, payer: Payer) -> bool:
        """Whether it knows the key."""
        return self.client.post("/v1/runs", json={}, headers=payer.headers).status_code == 422

    def submitted(self, payer: Payer, **changes: Any) -> str:
        answer = self.post(payer, **changes)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    def get(self, payer: Payer, run_id: str) -> httpx.Response:
        return self.client.get(f"/v1/runs/{run_id}", headers=payer.headers)

    def until_status(self, payer: Payer, run_id: str, *statuses: str, seconds: float = 30.0) -> dict[str, Any]:
        """The run, as it is shown then."""

        def shown() -> dict[str, Any] | None:
            found: dict[str, Any] = self.get(payer, run_id).json()
            return found if found.get("status") in statuses else None

        return until(shown, seconds, f"{statuses} of {run_id}")

    def listed(self, run_id: str) -> dict[str, Any] | None:
        """As the list of all runs shows it."""
        answer = self.client.get("/runs", params={"kind": "pack", "limit": 200})
        runs = answer.json() if answer.status_code == 200 else []  # lists are not true yet
        return next((run for run in runs if run["run_id"] == run_id), None)


class _Probed(Process):
    """A process with a health port of its own."""

    _takes_part: str

    def __init__(self, name: str, command: list[str | Path], settings: Mapping[str, str], folder: Path) -> None:
        self._port = free_port()
        own = {"PYOCO_DATA_DIR": str(folder / name), "PYOCO_HEALTH_PORT": str(self._port)}
        super().__init__(name, command, {**settings, **own}, folder)

    def health(self, path: str) -> int:
        return httpx.get(f"http://127.0.0.1:{self._port}{path}", timeout=60).status_code

    def until_ready(self) -> Self:
        """Until it takes part in priced runs."""

        def is_ready() -> bool:
            assert self.is_alive, self.last_words
            return self.has_said(self._takes_part)

        until(is_ready, what=f"{self.name} takes part")
        return self


class Keeper(_Probed):
    """`pyoco-keeper`, which takes everything from the environment."""

    _takes_part = "priced duties started"

    def __init__(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        super().__init__(name, [_BIN / "pyoco-keeper"], settings, folder)


class Worker(_Probed):
    """`pyoco-worker`, one priced run at a time."""

    _takes_part = "taking priced runs"

    def __init__(self, name: str, settings: Mapping[str, str], folder: Path) -> None:
        super().__init__(name, [_BIN / "pyoco-worker", "--worker-id", name, "--slots", "1"], settings, folder)

    def pack_hosts(self) -> list[psutil.Process]:
        """The processes in which packs are executed: one for the slot, a spare, and those that packs have alone."""
        hosts = []
        for child in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it is just ending
                if is_pack_host(child):
                    hosts.append(child)
        return hosts

    @contextlib.contextmanager
    def no_pack_ends(self) -> Iterator[list[psutil.Process]]:
        """A run that is started meanwhile goes on until the block ends; its worker lives, and renews its lease.
        Whatever process for packs comes later, a spare among them, is halted before it is ready."""
        hosts = until(self.pack_hosts, what="a pack process")
        is_over = threading.Event()

        def halt_others() -> None:
            with contextlib.suppress(psutil.NoSuchProcess):  # the worker was killed
                while not is_over.wait(0.1):
                    _halt([each for each in self.pack_hosts() if each not in hosts], hosts)

        _halt(list(hosts), hosts)
        halting = threading.Thread(target=halt_others)
        halting.start()
        try:
            yield hosts
        finally:
            is_over.set()
            halting.join()
            for host in hosts:
                with contextlib.suppress(psutil.NoSuchProcess):
                    host.resume()

    def send(self, how: signal.Signals) -> None:
        os.kill(self.pid, how)


def _halt(processes: list[psutil.Process], halted: list[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.suspend()
        if each not in halted:
            halted.append(each)


class Site:
    """The stores of one stack, and our processes over them. What was started is killed by `end`."""

    def __init__(self, folder: Path, nats: NatsServer, settings: Mapping[str, str]) -> None:
        self.folder, self.nats = folder, nats
        self.environment = clean_environment({"PYOCO_NATS_URL": nats.url, "PYOCO_PACK_SLOTS": "1", **settings})
        self.priced = PricedConfig.read(self.environment)
        self.config = NatsBackendConfig(nats_url=nats.url, data_dir=str(folder))
        self._processes: list[Process] = []

    def gateway(self, name: str, **more: str) -> Gateway:
        """With a data directory of its own. Started, and not waited for."""
        alone = ("--no-worker", "--no-keeper", "--nats-url", self.nats.url)
        return self._started(Gateway(name, self.environment | more, self.folder, *alone))

    def worker(self, name: str, **more: str) -> Worker:
        return self._started(Worker(name, self.environment | more, self.folder))

    def keeper(self, name: str, **more: str) -> Keeper:
        return self._started(Keeper(name, self.environment | more, self.folder))

    def _started(self, process: P) -> P:
        process.start()
        self._processes.append(process)
        return process

    def end(self) -> None:
        for process in self._processes:
            if isinstance(process, Gateway):
                process.client.close()
            process.end()

    def money(self, work: Callable[[Priced], Awaitable[T]]) -> T:
        """What an operator's command would do with ledger and budget, in this process."""

        async def all_of_it() -> T:
            async with open_money(self.config, self.priced, AwsSettings.read(self.environment)) as priced:
                return await work(priced)

        return asyncio.run(all_of_it())

    def payer(self, usd_micros: int = DOLLAR, per_minute: int | None = 1_000_000) -> Payer:
        """A new tenant with a key and so much to spend; it may ask as often as it likes, unless that is told."""
        tenant_id = unique("team")

        async def make(priced: Priced) -> None:
            await credit(priced, tenant_id, usd_micros, str(uuid.uuid4()))
            await limit_tenant(priced, tenant_id, per_minute)

        self.money(make)
        payer = Payer(tenant_id, asyncio.run(self._key(tenant_id)))
        for gateway in self._processes:
            if isinstance(gateway, Gateway) and gateway.is_alive:
                until(lambda gateway=gateway: gateway.knows(payer), 10, "the key is known")  # type: ignore[misc]
        return payer

    async def _key(self, tenant_id: str) -> dict[str, str]:
        plain, record = make_key(
            tenant_id, self.config.auth_pepper, time.time(), secrets.token_hex, secrets.token_urlsafe
        )
        link = await open_link(self.nats.url, "tests")
        try:
            assert await JetStreamKeys(link, self.config.auth_kv_bucket).add(record)
        finally:
            await link.close()
        return {"Authorization": f"Bearer {plain}"}

    def row(self, run_id: str) -> PricedRun:
        row = self.money(lambda priced: priced.ledger.read(lambda tx: tx.runs.get(run_id)))
        assert row is not None
        return row

    def rows(self, payer: Payer) -> list[PricedRun]:
        found = self.money(lambda priced: priced.ledger.read(lambda tx: tx.runs.changed_since(0, "", 100_000)))
        return [row for row in found if row.tenant_id == payer.tenant_id]

    def sums(self, payer: Payer) -> Balances:
        return self.money(lambda priced: priced.ledger.read(lambda tx: tx.journal.balances(payer.tenant_id)))

    def balance(self, payer: Payer) -> int:
        return self.money(lambda priced: priced.budget.balance(payer.tenant_id))

    def check_money(self) -> None:
        """As `budget verify`: everything is computed anew from the journal."""
        assert self.money(audit).differences == ()
