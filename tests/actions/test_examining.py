"""The facts of a deployment: what is read, what is read twice, and what is left out."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from pyoco_server.actions.claim import claim_run
from pyoco_server.actions.examine import Surroundings, examine
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.diagnosis import diagnose
from pyoco_server.core.diagnosis.facts import Facts, MachineFacts, Packs, Unknown, Unreachable, Workers
from pyoco_server.core.diagnosis.priced_facts import Absent, LedgerFacts, PricedFacts
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker
from pyoco_server.ports.deployment import jetstream
from pyoco_server.ports.deployment.port import Deployment
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link
from pyoco_server.wiring.operating import open_deployment
from support.backends import BERT, opened_backend, recorded, run_now, submitted

HERE = Surroundings(MachineFacts())


def a_worker(worker_id: str, **more: Any) -> WorkerRecord:
    now = time.time()
    record = WorkerRecord(
        worker_id=worker_id,
        instance_id="i",
        state=WorkerState.IDLE,
        tags=("default",),
        last_seen_at=now,
        last_heartbeat_at=now,
        last_pull_at=now,
    )
    return replace(record, **more)


async def announce(link: Link, config: NatsBackendConfig, record: WorkerRecord) -> None:
    bucket = Bucket(link, config.workers_kv_bucket)
    entry = await bucket.get(record.worker_id)
    await bucket.write(record.worker_id, encode_worker(record), entry.revision if entry is not None else 0)


def remarked(facts: Facts, check: str) -> list[str]:
    return [finding.about for finding in diagnose(facts) if finding.check == check and finding.level != "ok"]


class Meanwhile:
    """A deployment in which a worker's heartbeat comes after the first look at the workers."""

    def __init__(
        self, deployment: Deployment, link: Link, config: NatsBackendConfig, packs: tuple[str, ...] | None = None
    ) -> None:
        self._deployment, self._link, self._config, self._packs = deployment, link, config, packs
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._deployment, name)

    async def workers(self) -> Workers | Unknown:
        seen = await self._deployment.workers()
        self.looks += 1
        await announce(self._link, self._config, a_worker("anna", packs=self._packs))
        return seen


@pytest.mark.virtual_time
async def test_a_worker_that_seems_deaf_is_looked_at_again_after_its_next_heartbeat(
    prepared: NatsBackendConfig, link: Link
) -> None:
    """One that was busy for an hour, and got a free slot a moment ago, seems so."""
    config = replace(prepared, worker_heartbeat_interval_sec=0.1)
    await announce(link, config, a_worker("anna", last_pull_at=time.time() - 3600))
    async with open_deployment(config) as deployment:
        meanwhile = Meanwhile(deployment, link, config)
        facts = await examine(meanwhile, config, HERE)
    assert meanwhile.looks == 2
    assert remarked(facts, "worker.hearing") == remarked(facts, "worker.alive") == []
    async with open_deployment(config) as deployment:
        meanwhile = Meanwhile(deployment, link, config)
        await examine(meanwhile, config, HERE)
    assert meanwhile.looks == 1


@pytest.mark.virtual_time
async def test_a_worker_that_is_loading_its_packs_is_looked_at_again(prepared: NatsBackendConfig, link: Link) -> None:
    config = replace(prepared, worker_heartbeat_interval_sec=0.1)
    offered = MachineFacts(packs=Packs(offered=("decision",), known=("decision",)))
    ledger = LedgerFacts(where="l.db", version="1", wanted="1")
    around = Surroundings(offered, priced=PricedFacts(ledger=ledger))
    for packs, remarks in ((("decision",), []), ((), [""])):
        await announce(link, config, a_worker("anna", packs=()))
        async with open_deployment(config) as deployment:
            meanwhile = Meanwhile(deployment, link, config, packs)
            facts = await examine(meanwhile, config, around)
        assert (meanwhile.looks, remarked(facts, "packs.executed")) == (2, remarks)
    without = replace(around, priced=PricedFacts(ledger=Absent("l.db")))
    async with open_deployment(config) as deployment:
        meanwhile = Meanwhile(deployment, link, config, ())
        await examine(meanwhile, config, without)
    assert meanwhile.looks == 1


async def test_a_run_that_a_silent_worker_left_behind_is_found_and_no_other(
    prepared: NatsBackendConfig, link: Link
) -> None:
    async with opened_backend(prepared) as backend:
        stored, job = await recorded(backend)
        left, waits = stored.run.run_id, await submitted(backend, "f")
        await claim_run(backend, job, BERT, first_delivery=False)
        assert (await run_now(backend, left)).worker_id == "bert"
    await announce(link, prepared, a_worker("bert", last_seen_at=time.time() - 7200, running=(left, waits, "none")))
    async with open_deployment(prepared) as deployment:
        facts = await examine(deployment, prepared, HERE)
    assert not isinstance(facts.left_behind, Unknown)
    assert [run.run_id for run in facts.left_behind] == [left]
    assert remarked(facts, "runs.stuck") == []  # its last heartbeat was a moment ago
    assert remarked(replace(facts, now=facts.now + 3600), "runs.stuck") == [left]


async def test_without_nats_nothing_else_is_asked(unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "_CONNECT_SECONDS", 1.0)
    config = NatsBackendConfig(nats_url=f"nats://u:p@127.0.0.1:{unused_port}")
    steps: list[str] = []
    async with open_deployment(config) as deployment:
        facts = await examine(deployment, config, HERE, steps.append)
    assert isinstance(facts.server, Unreachable)
    assert isinstance(facts.workers, Unknown)
    assert steps == ["NATS"]
    assert "u:p" not in repr(facts)


@pytest.mark.usefixtures("real_nats")  # its address is shown
async def test_every_address_counts_and_the_password_does_not(nats_url: str, prepared: NatsBackendConfig) -> None:
    config = replace(prepared, nats_url=f"{nats_url}, nats://n2.example.com:4223")
    async with open_deployment(prepared) as deployment:
        facts = await examine(deployment, config, HERE)
    assert facts.wishes.nats_hosts == ("127.0.0.1", "n2.example.com")
    assert remarked(facts, "nats.login") == [""]
