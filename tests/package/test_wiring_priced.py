"""Which stores a process opens for priced runs, what it does while they are away, and what it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from pyoco_server.actions.priced.credit import credit
from pyoco_server.actions.priced.unserved import living
from pyoco_server.config import NatsBackendConfig, priced_from_env
from pyoco_server.config.priced import AwsSettings, PricedConfig
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.cli import worker as worker_command
from pyoco_server.errors import DependencyUnavailable, LedgerOutdated, SettingError, UsageError
from pyoco_server.ports.budget.memory import BUDGETS
from pyoco_server.ports.idempotency_locks.memory import LOCKS
from pyoco_server.ports.ledger import connect, migrate
from pyoco_server.ports.ledger.memory import forget_database
from pyoco_server.ports.ledger.port import BudgetMode
from pyoco_server.ports.ledger.sql import SqlLedger
from pyoco_server.ports.nats.link import Link, Missing
from pyoco_server.ports.nats.resources import priced_resources
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring import offer as wiring_offer
from pyoco_server.wiring import priced as wiring_priced
from pyoco_server.wiring.priced import PricedSettings, open_money, open_priced
from support.doctor_commands import a_worker
from support.priced.ledgers import open_ledger, sqlite_url
from support.servers import unique
from support.waiting import eventually


class Deployment:
    """Settings of this test's own, and what is opened by them."""

    def __init__(self, link: Link, config: NatsBackendConfig) -> None:
        self.link, self.config = link, config

    def priced(self, **settings: Any) -> PricedConfig:
        return PricedConfig(
            pack_stream=unique("DPP"), pack_subject=unique("dpp"), results_bucket=unique("results"), **settings
        )

    def opened(
        self, priced: PricedConfig, *, makes_file: bool = False
    ) -> contextlib.AbstractAsyncContextManager[Priced]:
        settings = PricedSettings(
            config=self.config,
            priced=priced,
            aws=AwsSettings(),
            new_id=lambda: str(uuid.uuid4()),
            makes_file=makes_file,
        )
        return self._opened(settings)

    @contextlib.asynccontextmanager
    async def _opened(self, settings: PricedSettings) -> AsyncIterator[Priced]:
        runs = JetStreamRuns(self.link, self.config.runs_kv_bucket, 1_000_000, 0.0)
        try:
            async with open_priced(settings, self.link, runs) as priced:
                yield priced
        finally:
            for resource in priced_resources(self.config, settings.priced):
                with contextlib.suppress(Missing):  # never made
                    await self.link.api(f"STREAM.DELETE.{resource.name}", {}, dict[str, Any])

    @property
    def ledger_url(self) -> str:
        """Where the ledger is when nobody says."""
        return PricedConfig().ledger_address(self.config.data_dir)


@pytest.fixture
def deployment(link: Link, prepared: NatsBackendConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setattr(wiring_priced, "_AGAIN_SECONDS", 0.05)
    return Deployment(link, replace(prepared, data_dir=str(tmp_path)))


async def is_open(priced: Priced) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await priced.until_open()
            return True
    return False


def set_version(url: str, version: str) -> None:
    engine = connect.engine_for_writing(connect.address(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    engine.dispose()


async def test_a_gateway_that_is_told_of_no_ledger_makes_one(deployment: Deployment) -> None:
    async with deployment.opened(deployment.priced(), makes_file=True) as priced:
        await asyncio.wait_for(priced.until_open(), 100)
        await credit(priced, "team-a", 1_000_000, "first")
    assert migrate.status(deployment.ledger_url).is_current


@pytest.fixture
def memory() -> Iterator[str]:
    """An address for stores in memory, which are removed at the end."""
    name = unique("memory")
    yield f"memory://{name}"
    forget_database(name)
    BUDGETS.forget(name)
    LOCKS.forget(name)


@pytest.mark.parametrize("is_split", [False, True], ids=["joint", "split"])
async def test_processes_share_stores_in_memory_by_name(deployment: Deployment, memory: str, is_split: bool) -> None:
    settings = deployment.priced(ledger_url=memory, budget_url=memory if is_split else "")
    async with deployment.opened(settings) as gateway, deployment.opened(settings) as worker:
        for priced in (gateway, worker):
            await asyncio.wait_for(priced.until_open(), 100)
        await credit(gateway, "team-a", 1_000_000, "first")
        assert await worker.budget.balance("team-a") == 1_000_000
        assert (await worker.ledger.read(lambda tx: tx.modes.get())) is (
            BudgetMode.SPLIT if is_split else BudgetMode.JOINT
        )
        if is_split:
            assert gateway.idempotency_locks is not None
            assert worker.idempotency_locks is not None
            assert await gateway.idempotency_locks.lock("team-a", "key", "one")
            assert not await worker.idempotency_locks.lock("team-a", "key", "two")
    async with deployment.opened(settings) as again:
        assert await again.budget.balance("team-a") == 1_000_000
    assert not [each for each in threading.enumerate() if each.name.startswith("ledger-")]


async def test_a_command_that_would_lose_its_ledger_refuses(memory: str) -> None:
    with pytest.raises(UsageError, match="in memory"):
        wiring_priced.make_named_ledger(PricedConfig(ledger_url=memory))


async def test_a_worker_makes_no_ledger_of_its_own_and_waits_for_one(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another directory it would know none of the runs. It waits quietly at first: all may have started together."""
    caplog.set_level("INFO", "pyoco_server.wiring.priced")
    async with deployment.opened(deployment.priced()) as priced:
        assert not await is_open(priced)
        await eventually(lambda: "does not answer yet" in caplog.text)
        assert [each for each in caplog.records if each.levelname == "WARNING"] == []
        monkeypatch.setattr(wiring_priced, "_QUIET_SECONDS", 0.0)
        await eventually(lambda: any(each.levelname == "WARNING" for each in caplog.records))
        assert not (tmp_path / "ledger.db").exists()
        with pytest.raises(DependencyUnavailable):
            await priced.ledger.ping()
        sqlite_url(tmp_path)  # a gateway starts
        await asyncio.wait_for(priced.until_open(), 100)
        await priced.ledger.ping()


async def test_a_ledger_of_a_newer_version_is_an_error_at_once(deployment: Deployment, tmp_path: Path) -> None:
    set_version(sqlite_url(tmp_path), "9999")
    for makes_file in (True, False):
        with pytest.raises(LedgerOutdated, match="newer than this program"):
            async with deployment.opened(deployment.priced(), makes_file=makes_file):
                pytest.fail("opened")
    with pytest.raises(LedgerOutdated, match="newer than this program"):
        async with open_money(deployment.config, deployment.priced(), AwsSettings()):
            pytest.fail("opened")


async def test_a_newer_version_that_is_found_later_stops_nobody_and_may_heal(
    deployment: Deployment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flows are served by then."""
    async with deployment.opened(deployment.priced()) as priced:
        newest = migrate.status(deployment.ledger_url).wanted
        other = tmp_path / "other"
        other.mkdir()
        set_version(sqlite_url(other), "9999")
        (other / "ledger.db").rename(tmp_path / "ledger.db")
        await eventually(lambda: "priced runs wait for a migration" in caplog.text)
        assert not await is_open(priced)
        set_version(deployment.ledger_url, newest)
        await asyncio.wait_for(priced.until_open(), 100)


async def test_a_ledger_is_started_once_however_long_another_store_is_away(
    deployment: Deployment,
    tmp_path: Path,
    unused_port: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each start would bring threads and connections of its own, and only the last ones would ever be closed."""
    started: list[SqlLedger] = []
    start = SqlLedger.start

    async def counted(self: SqlLedger) -> None:
        started.append(self)
        await start(self)

    monkeypatch.setattr(SqlLedger, "start", counted)
    away = deployment.priced(budget_url=f"redis://127.0.0.1:{unused_port}/0", ledger_url=sqlite_url(tmp_path))
    async with deployment.opened(away) as priced:
        await eventually(lambda: caplog.text.count("does not answer yet") >= 4)
        assert not await is_open(priced)
        await priced.ledger.ping()
    assert [each for each in started if each is priced.ledger] == [priced.ledger]
    assert len(started) == 2  # the other one has agreed on where budgets are, once, and was closed


@pytest.mark.parametrize("first", ["joint", "split"])
async def test_a_process_that_looks_for_budgets_elsewhere_does_not_start(
    deployment: Deployment, tmp_path: Path, redis_url: str, first: str
) -> None:
    """Two places would spend each tenant's money twice."""
    modes = {"joint": {}, "split": {"budget_url": redis_url}}
    second = "split" if first == "joint" else "joint"
    url = sqlite_url(tmp_path)
    async with deployment.opened(deployment.priced(ledger_url=url, **modes[first])) as priced:
        await asyncio.wait_for(priced.until_open(), 100)
    other = deployment.priced(ledger_url=url, **modes[second])
    with pytest.raises(SettingError, match=f"ledger mode --to {second}"):
        async with deployment.opened(other):
            pytest.fail("opened")
    with pytest.raises(SettingError, match=f"ledger mode --to {second}"):
        async with open_money(deployment.config, other, AwsSettings()):
            pytest.fail("opened")


async def test_a_ledger_that_answers_late_and_has_its_budgets_elsewhere_is_told_again_and_again(
    deployment: Deployment, tmp_path: Path, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Flows go on meanwhile; and nobody spends from the other place."""
    async with deployment.opened(deployment.priced(budget_url=redis_url)) as priced:
        other = tmp_path / "other"
        other.mkdir()
        async with open_ledger(sqlite_url(other)) as ledger:
            await ledger.transact(lambda tx: tx.modes.begin(BudgetMode.JOINT))
        (other / "ledger.db").rename(tmp_path / "ledger.db")
        await eventually(lambda: "priced runs wait for other settings" in caplog.text)
        assert not await is_open(priced)
        with pytest.raises(DependencyUnavailable):
            await credit(priced, "team-a", 1_000_000, "first")


EXTRAS = [
    ("psycopg", {"ledger_url": "postgresql://postgres@127.0.0.1:1/none"}, "PYOCO_LEDGER_URL", "postgres"),
    ("redis", {"budget_url": "redis://127.0.0.1:1/0"}, "PYOCO_BUDGET_URL", "redis"),
    ("aiobotocore", {"pack_queue_url": "sqs://dpp-runs"}, "PYOCO_PACK_QUEUE_URL", "aws"),
    ("aiobotocore", {"results_url": "s3://dpp-results"}, "PYOCO_RESULTS_URL", "aws"),
]


@pytest.mark.parametrize(("module", "settings", "variable", "extra"), EXTRAS)
async def test_a_store_whose_package_is_missing_says_which_to_install(
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    settings: dict[str, Any],
    variable: str,
    extra: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # an import of it fails from now on
    with pytest.raises(UsageError, match=rf"{variable} needs more packages.*pyoco-server\[{extra}\]"):
        async with deployment.opened(deployment.priced(**settings), makes_file=True):
            pytest.fail("opened")


async def test_a_command_about_money_needs_neither_queue_nor_results(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    sqlite_url(tmp_path)
    elsewhere = deployment.priced(pack_queue_url="sqs://dpp-runs", results_url="s3://dpp-results")
    async with open_money(deployment.config, elsewhere, AwsSettings()) as priced:
        assert (await credit(priced, "team-a", 1_000_000, "first")).balance_usd_micros == 1_000_000


async def test_a_command_about_money_without_a_ledger_says_who_makes_it(deployment: Deployment) -> None:
    with pytest.raises(DependencyUnavailable, match=r"there is no ledger at .*`pyoco-server up` makes it"):
        async with open_money(deployment.config, deployment.priced(), AwsSettings()):
            pytest.fail("opened")


async def test_whoever_is_told_so_opens_no_ledger(deployment: Deployment, tmp_path: Path) -> None:
    off = PricedConfig(priced_enabled=False), AwsSettings()
    async with wiring.open_gateway_backend(deployment.config, off) as gateway:
        assert gateway.priced is None
    async with wiring.open_backend(deployment.config, "tests", priced=off) as backend:
        assert backend.priced is None
    assert not (tmp_path / "ledger.db").exists()


async def test_a_worker_that_can_execute_no_pack_ends_and_says_why(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        restarts = 0

        def __init__(self, *_: object) -> None:
            pass

        async def start(self) -> None:
            raise UsageError("no pack here")

        async def stop(self) -> None:
            pass

    monkeypatch.setattr(wiring_offer, "PackHosts", Broken)
    sqlite_url(tmp_path)
    settings = deployment.priced(), AwsSettings()
    with pytest.raises(UsageError, match="no pack here"):
        await asyncio.wait_for(worker_command._work(deployment.config, settings, None, "anna", ["default"], None), 100)


async def test_a_pack_that_is_not_installed_stops_gateway_and_worker_and_no_command_about_money(
    deployment: Deployment, tmp_path: Path
) -> None:
    sqlite_url(tmp_path)
    priced = deployment.priced(packs=("decision", "wrods"))
    settings = priced, AwsSettings()
    with pytest.raises(SettingError, match="PYOCO_PACKS='decision,wrods' has wrods, which is not installed here"):
        async with wiring.open_gateway_backend(deployment.config, settings):
            pytest.fail("opened")
    with pytest.raises(SettingError, match="wrods"):
        await asyncio.wait_for(worker_command._work(deployment.config, settings, None, "anna", ["default"], None), 100)
    async with open_money(deployment.config, priced, AwsSettings()) as opened:
        assert await opened.budget.balance("nobody") == 0


async def test_a_gateway_offers_what_the_settings_name(deployment: Deployment, tmp_path: Path) -> None:
    priced = deployment.priced(packs=("decision",))
    async with wiring.open_gateway_backend(deployment.config, (priced, AwsSettings())) as gateway:
        assert gateway.priced is not None
        assert [*gateway.priced.packs] == ["decision"]


def test_the_version_a_ledger_needs_is_that_of_the_newest_step(tmp_path: Path) -> None:
    """It is read from the names of the files, since Alembic takes long to import."""
    script = ScriptDirectory(str(migrate._STEPS))
    assert migrate.status(f"sqlite:///{tmp_path / 'none.db'}").wanted == script.get_current_head()


def test_a_ledger_that_is_up_to_date_costs_no_import_of_alembic(tmp_path: Path) -> None:
    look = (
        "import sys, pyoco_server.wiring.priced\n"
        "from pyoco_server.ports.ledger import migrate\n"
        "assert migrate.status(sys.argv[1]).is_current\n"
        "assert 'alembic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", look, sqlite_url(tmp_path)], check=True, timeout=60)


@pytest.mark.parametrize(("signs", "threads"), [(True, 8), (False, 4)])
def test_a_gateway_has_more_connections_than_a_worker_or_a_keeper(signs: bool, threads: int) -> None:
    known = PricedSettings(
        config=NatsBackendConfig(),
        priced=PricedConfig(ledger_url="postgresql://anna@127.0.0.1:1/none"),
        aws=AwsSettings(),
        new_id=lambda: "",
        signs=signs,
    )
    assert wiring_priced._ledger(known)._threads == threads


async def test_a_gateway_knows_the_workers_that_are_alive(tmp_path: Path) -> None:
    """SAFE-3: what they say about packs reaches it by the registry, wherever they run"""
    settings = {"PYOCO_LOAD_DOTENV": "0", "PYOCO_NATS_URL": "memory://living", "PYOCO_DATA_DIR": str(tmp_path)}
    stores = {"PYOCO_LEDGER_URL": "memory://living", "PYOCO_BUDGET_URL": "memory://living"}
    config = NatsBackendConfig.from_env(settings)
    async with wiring.open_gateway_backend(config, priced_from_env(settings | stores)) as backend:
        priced = backend.priced
        assert priced is not None
        here = a_worker(packs=("decision",), packs_missing={"ocr": "no engine"}, packs_provide={"decision": ["x"]})
        for record in (here, a_worker(worker_id="gone", last_seen_at=1.0)):
            await backend.registry.announce(record)
        found: list[WorkerRecord] = []

        async def is_known() -> bool:
            found[:] = await living(priced)
            return len(await backend.registry.all()) == 2

        await eventually(is_known)
    assert [(each.worker_id, each.packs_missing) for each in found] == [("anna", {"ocr": "no engine"})]
