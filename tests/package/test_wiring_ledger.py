"""A process opens the ledger that its deployment uses, or none; and notices while it runs that it is another."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import sqlite3
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.priced.check_ready import check_ready
from pyoco_server.actions.priced.credit import credit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.config.priced import AwsSettings, PricedConfig
from pyoco_server.errors import OtherLedger
from pyoco_server.loops.priced import ledger_watch
from pyoco_server.loops.priced.fitness import Fitness
from pyoco_server.loops.priced.reaper import Reaper
from pyoco_server.ports.known_ledger.jetstream import JetStreamKnownLedger
from pyoco_server.ports.ledger import migrate
from pyoco_server.ports.ledger.memory import forget_database
from pyoco_server.ports.nats.link import Link, Missing, Rejected
from pyoco_server.ports.nats.resources import priced_resources
from pyoco_server.ports.priced import Priced
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.wiring import priced as wiring_priced
from pyoco_server.wiring.ledger import find_ledger, give_ledger_id, remember_restored
from pyoco_server.wiring.priced import PricedSettings, open_priced
from support.servers import unique
from support.waiting import eventually


class Deployment:
    """One NATS, and as many folders with ledgers as a test likes."""

    def __init__(self, link: Link, config: NatsBackendConfig, folder: Path) -> None:
        self.link, self.folder = link, folder
        self.config = replace(config, data_dir=str(folder / "data"))
        self.priced = PricedConfig(
            pack_stream=unique("DPP"), pack_subject=unique("dpp"), results_bucket=unique("results")
        )
        self.known = JetStreamKnownLedger(link, self.config)

    @property
    def file(self) -> Path:
        return self.folder / "data" / "ledger.db"

    def ledger(self, name: str) -> str:
        """A ledger of its own; its address."""
        folder = self.folder / name
        folder.mkdir()
        migrate.upgrade(f"sqlite:///{folder / 'ledger.db'}")
        return f"sqlite:///{folder / 'ledger.db'}"

    @contextlib.asynccontextmanager
    async def process(self, *, is_gateway: bool = True, **settings: Any) -> AsyncIterator[Priced]:
        """From its start until it is well or has refused."""
        own = PricedSettings(
            config=self.config,
            priced=replace(self.priced, **settings),
            aws=AwsSettings(),
            new_id=lambda: str(uuid.uuid4()),
            makes_file=is_gateway,
        )
        runs = JetStreamRuns(self.link, self.config.runs_kv_bucket, 1_000_000, 0.0)
        async with open_priced(own, self.link, runs) as priced:
            yield priced

    async def remembered(self) -> str | None:
        await self.known.start()
        return (await self.known.get()).ledger_id


@pytest.fixture
async def deployment(
    link: Link, prepared: NatsBackendConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Deployment]:
    monkeypatch.setattr(wiring_priced, "_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(ledger_watch, "_EVERY_SECONDS", 0.05)
    found = Deployment(link, prepared, tmp_path)
    yield found
    for resource in priced_resources(found.config, found.priced):
        with contextlib.suppress(Missing, Rejected):  # never made
            await link.api(f"STREAM.DELETE.{resource.name}", {}, dict[str, Any])


async def is_ready(priced: Priced) -> bool:
    return (await check_ready(priced)).is_ready


async def is_foreign(priced: Priced) -> bool:
    return not (await check_ready(priced)).ledger_identity


async def test_the_ledger_of_the_first_gateway_is_the_deployments(deployment: Deployment) -> None:
    """SAFE-12"""
    async with deployment.process() as gateway, deployment.process(is_gateway=False) as worker:
        for each in (gateway, worker):
            await asyncio.wait_for(each.until_open(), 100)
            assert await is_ready(each)
        assert await deployment.remembered() == await gateway.ledger.stored_id() is not None


@pytest.mark.parametrize("is_gateway", [True, False], ids=["gateway", "worker"])
async def test_a_process_with_another_ledger_does_not_start(deployment: Deployment, is_gateway: bool) -> None:
    """SAFE-12: exit 3 with both ids"""
    async with deployment.process() as gateway:
        await asyncio.wait_for(gateway.until_open(), 100)
    other = deployment.ledger("other")
    with pytest.raises(OtherLedger) as refused:
        async with deployment.process(is_gateway=is_gateway, ledger_url=other):
            pytest.fail("opened")
    assert str(await deployment.remembered()) in str(refused.value)
    assert str(migrate.stored_id_at(other)) in str(refused.value)
    with contextlib.closing(sqlite3.connect(other.removeprefix("sqlite:///"))) as opened:
        assert opened.execute("SELECT name FROM ledger_settings").fetchall() == [("ledger_id",)], "it was not begun"


async def test_a_gateway_whose_file_is_gone_creates_no_other(deployment: Deployment) -> None:
    """SAFE-12"""
    async with deployment.process() as gateway:
        await asyncio.wait_for(gateway.until_open(), 100)
    deployment.file.unlink()
    named = deployment.folder / "named.db"
    for url in ("", f"sqlite:///{named}"):
        with pytest.raises(OtherLedger, match="no ledger with an id here"):
            async with deployment.process(ledger_url=url):
                pytest.fail("opened")
    assert not deployment.file.exists()
    assert not named.exists()


async def test_a_worker_that_is_told_of_no_ledger_waits_for_one_as_before(deployment: Deployment) -> None:
    """It executes flows meanwhile. It has no ledger, so it cannot have another one."""
    async with deployment.process() as gateway:
        await asyncio.wait_for(gateway.until_open(), 100)
        away = deployment.file.rename(deployment.folder / "away.db")
        async with deployment.process(is_gateway=False) as worker:
            ready = await check_ready(worker)
            assert not ready.can_execute
            assert not ready.ledger_identity
            away.rename(deployment.file)
            await asyncio.wait_for(worker.until_open(), 100)
            await eventually(worker.owns_ledger)


@pytest.mark.parametrize("damage", ["deleted", "replaced", "overwritten"])
async def test_a_ledger_that_is_lost_while_a_process_runs_stops_all_money(
    deployment: Deployment, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SAFE-12: submits, workers and keepers; and told once"""
    other = Path(deployment.ledger("other").removeprefix("sqlite:///"))
    async with deployment.process() as gateway, deployment.process(is_gateway=False) as worker:
        for each in (gateway, worker):
            await asyncio.wait_for(each.until_open(), 100)
        await credit(gateway, "team-a", 1_000_000, "first")
        if damage == "deleted":
            deployment.file.unlink()
        elif damage == "replaced":
            other.rename(deployment.file)
        else:
            shutil.copyfile(other, deployment.file)
        for each in (gateway, worker):
            await eventually(functools.partial(is_foreign, each))
            with pytest.raises(OtherLedger):
                await each.ledger.transact(lambda tx: tx.now_us())
            with pytest.raises(OtherLedger):
                await Reaper(each).turn()
            fitness = Fitness(each)
            assert not await fitness.is_well_now()
            await fitness.turn()
            assert not fitness.well.is_set()
        told = [each for each in caplog.records if "priced runs are stopped" in each.getMessage()]
        assert len(told) == 2, "once for each process"


async def test_a_worker_whose_ledger_is_deleted_stops_where_none_is_remembered_either(deployment: Deployment) -> None:
    """SAFE-12: after `ledger adopt` has made NATS forget the one that is gone"""
    url = deployment.ledger("own")
    async with deployment.process(is_gateway=False, ledger_url=url) as worker:
        await asyncio.wait_for(worker.until_open(), 100)
        assert await deployment.remembered() is None
        assert await is_ready(worker)
        Path(url.removeprefix("sqlite:///")).unlink()
        await eventually(functools.partial(is_foreign, worker))


async def test_a_ledger_that_is_put_back_is_used_again(deployment: Deployment) -> None:
    async with deployment.process() as gateway:
        await asyncio.wait_for(gateway.until_open(), 100)
        away = deployment.file.rename(deployment.folder / "away.db")
        await eventually(lambda: is_foreign(gateway))
        away.rename(deployment.file)
        await eventually(lambda: is_ready(gateway))
        await credit(gateway, "team-a", 1_000_000, "first")


async def test_processes_stop_when_another_ledger_is_adopted(deployment: Deployment) -> None:
    """SAFE-12"""
    async with deployment.process() as gateway:
        await asyncio.wait_for(gateway.until_open(), 100)
        before = await deployment.known.get()
        assert await deployment.known.remember("another", before)
        await eventually(lambda: is_foreign(gateway))
        assert before.ledger_id is not None
        assert await deployment.known.remember(before.ledger_id, await deployment.known.get())
        await eventually(lambda: is_ready(gateway))


async def test_what_nats_has_forgotten_a_running_gateway_says_again(deployment: Deployment) -> None:
    """NATS was restored or emptied: then this ledger is still the one that is used."""
    async with deployment.process() as gateway:
        await asyncio.wait_for(gateway.until_open(), 100)
        own = await deployment.known.get()
        assert await deployment.known.forget(own)
        await eventually(lambda: _is_remembered(deployment, own.ledger_id))
        assert await is_ready(gateway)


async def _is_remembered(deployment: Deployment, ledger_id: str | None) -> bool:
    return await deployment.remembered() == ledger_id


async def test_another_ledger_that_is_found_later_stops_nobody_and_may_heal(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """Flows are served by then."""
    await deployment.known.start()
    assert await deployment.known.remember("another", await deployment.known.get())
    async with deployment.process(is_gateway=False) as worker:
        deployment.file.parent.mkdir()
        migrate.upgrade(f"sqlite:///{deployment.file}")
        await eventually(lambda: "priced runs are stopped" in caplog.text)
        assert await is_foreign(worker)
        own = migrate.stored_id_at(f"sqlite:///{deployment.file}")
        assert own is not None
        assert await deployment.known.remember(own, await deployment.known.get())
        await asyncio.wait_for(worker.until_open(), 100)
        assert await is_ready(worker)


@pytest.mark.parametrize("nats_url", ["nats://127.0.0.1:4222", "memory://nats"])
async def test_a_ledger_in_memory_is_remembered_by_a_nats_in_memory_alone(nats_url: str) -> None:
    """SAFE-12: it is gone with the process; a server would hold every later one for the wrong one"""
    settings = PricedSettings(
        config=NatsBackendConfig(nats_url=nats_url),
        priced=PricedConfig(ledger_url="memory://ledger"),
        aws=AwsSettings(),
        new_id=lambda: "",
        makes_file=True,
    )
    assert settings.decides == nats_url.startswith("memory")


async def test_a_ledger_in_memory_is_refused_where_another_one_is_remembered(deployment: Deployment) -> None:
    """SAFE-12"""
    name = unique("memory")
    await deployment.known.start()
    assert await deployment.known.remember("another", await deployment.known.get())
    try:
        with pytest.raises(OtherLedger):
            async with deployment.process(ledger_url=f"memory://{name}"):
                pytest.fail("opened")
    finally:
        forget_database(name)


class TestOperating:
    async def test_what_is_at_the_address_is_told_without_making_it(self, deployment: Deployment) -> None:
        found = find_ledger(deployment.config, deployment.priced)
        assert (found.exists, found.ledger_id) == (False, None)
        assert not deployment.file.parent.exists()
        priced = replace(deployment.priced, ledger_url=deployment.ledger("other"))
        found = find_ledger(deployment.config, priced)
        assert (found.exists, found.ledger_id) == (True, give_ledger_id(deployment.config, priced))

    async def test_a_restored_ledger_is_the_one_that_is_used(self, deployment: Deployment) -> None:
        """SAFE-12: also one of a time before ids were remembered, which the next gateway gives one"""
        priced = replace(deployment.priced, ledger_url=deployment.ledger("other"))
        assert await remember_restored(deployment.config, priced) is None
        assert await deployment.remembered() is None
        assert await deployment.known.remember("another", await deployment.known.get())
        assert await remember_restored(deployment.config, priced) == "another"
        own = migrate.stored_id_at(priced.ledger_url)
        assert await deployment.remembered() == own
        assert await remember_restored(deployment.config, priced) is None
        with contextlib.closing(sqlite3.connect(deployment.folder / "other" / "ledger.db")) as opened, opened:
            opened.execute("DELETE FROM ledger_settings WHERE name = 'ledger_id'")
        assert await remember_restored(deployment.config, priced) == own
        assert await deployment.remembered() is None
        async with deployment.process(ledger_url=priced.ledger_url) as gateway:
            await asyncio.wait_for(gateway.until_open(), 100)
            assert await is_ready(gateway)
