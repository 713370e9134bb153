"""The mark of a withdrawn submission expires, and nothing that was withdrawn or ended comes back to life."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.runs import SNAPSHOT_BYTES_MAX, a_run
from pyoco_server.actions.claim import FlowAttempt, Spent, claim_run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.job import Job
from pyoco_server.loops.feeder import IndexFeeder
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.index.port import RunFilter
from pyoco_server.ports.index.sqlite import SqliteIndex
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import Resource, resources_of
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.runs.port import ABSENT, Removed, Runs, Stored, Withdrawn
from support.backends import ANNA, Clock, a_submission, opened_backend, recorded
from support.waiting import eventually


async def prepare(link: Link, config: NatsBackendConfig, **settings: object) -> None:
    """A bucket of runs with other settings."""
    [bucket] = [each for each in resources_of(config) if each.name == f"KV_{config.runs_kv_bucket}"]
    await ensure(link, [Resource(bucket.name, bucket.config | settings)])


async def withdrawn(runs: Runs) -> str:
    stored = await runs.create(a_run())
    assert isinstance(stored, Stored)
    assert await runs.withdraw(stored.run.run_id, stored.revision)
    return stored.run.run_id


def runs_of(link: Link, config: NatsBackendConfig, retention_seconds: float) -> JetStreamRuns:
    return JetStreamRuns(link, config.runs_kv_bucket, SNAPSHOT_BYTES_MAX, retention_seconds)


class TestTheMarkOfAWithdrawal:
    async def test_leaves_in_the_end(self, link: Link, config: NatsBackendConfig) -> None:
        """After the retention the server puts its own mark in its place, for a day; here, for a second."""
        await prepare(link, config, subject_delete_marker_ttl=1_000_000_000)
        runs = runs_of(link, config, 1.0)
        run_id = await withdrawn(runs)
        assert isinstance(await runs.find(run_id), Withdrawn)

        async def has_gone() -> bool:
            return await runs.find(run_id) is ABSENT

        await eventually(has_gone)

    async def test_stays_where_runs_are_kept_for_ever(self, link: Link, config: NatsBackendConfig) -> None:
        await prepare(link, config)
        kept, expires = runs_of(link, config, 0.0), runs_of(link, config, 1.0)
        forever, soon = await withdrawn(kept), await withdrawn(expires)
        mark = await kept.find(soon)

        async def has_expired() -> bool:
            return await kept.find(soon) != mark

        await eventually(has_expired)
        assert isinstance(await kept.find(forever), Withdrawn)

    async def test_is_left_in_a_bucket_without_expiry_too(self, link: Link, config: NatsBackendConfig) -> None:
        """FLOW-285: somebody else has made it."""
        await prepare(link, config, allow_msg_ttl=False, subject_delete_marker_ttl=0)
        runs = runs_of(link, config, 1.0)
        for _ in range(2):
            assert isinstance(await runs.find(await withdrawn(runs)), Withdrawn)

    async def test_is_lost_to_whoever_was_faster(self, link: Link, prepared: NatsBackendConfig) -> None:
        runs = runs_of(link, prepared, 60.0)
        stored = await runs.create(a_run())
        assert isinstance(stored, Stored)
        assert not await runs.withdraw(stored.run.run_id, stored.revision - 1)
        assert await runs.find(stored.run.run_id) == stored

    async def test_and_its_expiry_only_remove_what_lists_do_not_show(
        self, link: Link, config: NatsBackendConfig, tmp_path: Path
    ) -> None:
        await prepare(link, config, subject_delete_marker_ttl=1_000_000_000)
        runs = runs_of(link, config, 1.0)
        index = SqliteIndex(tmp_path / "index.sqlite")
        feeder = IndexFeeder(runs, index)
        await feeder.start()
        run_id = await withdrawn(runs)
        heard: list[Stored | Removed] = []
        async with aclosing(runs.changes()) as changes:
            async for change in changes:
                heard.extend(change.items)
                if sum(isinstance(item, Removed) for item in heard) == 2:  # the mark, and its expiry
                    break
        assert {item.run_id for item in heard if isinstance(item, Removed)} == {run_id}
        other = await runs.create(a_run())
        assert isinstance(other, Stored)

        async def shows_the_other() -> bool:
            return [line.run_id for line in (await index.page(RunFilter(), 50)).items] == [other.run.run_id]

        await eventually(shows_the_other)
        await feeder.stop()


class TestAJobWithoutARecord:
    """FLOW-310, FLOW-184: a job may wait for longer than anything is remembered of its run."""

    @pytest.fixture
    async def backend(self, config: NatsBackendConfig) -> AsyncIterator[Backend]:
        async with opened_backend(replace(config, runs_retention_sec=1000.0)) as backend:
            yield replace(backend, clock=Clock(time.time()))

    async def job_of_nobody(self, backend: Backend, seconds_ago: float, revision: int | None) -> Job:
        _, job = await recorded(backend, a_submission())
        submitted_at = backend.clock() - seconds_ago
        return replace(job, run_id=backend.new_id(), submitted_at=submitted_at, revision=revision)

    @pytest.mark.parametrize("first", [True, False])
    async def test_that_is_older_than_the_memory_of_runs_is_not_executed(self, backend: Backend, first: bool) -> None:
        job = await self.job_of_nobody(backend, 1001, 7)
        assert await claim_run(backend, job, ANNA, first_delivery=first) == Spent("forgotten")
        assert await backend.runs.find(job.run_id) is ABSENT

    async def test_that_is_younger_is_executed(self, backend: Backend) -> None:
        """An accepted run whose record got lost is not lost."""
        job = await self.job_of_nobody(backend, 999, 7)
        assert isinstance(await claim_run(backend, job, ANNA, first_delivery=True), FlowAttempt)

    async def test_of_a_foreign_producer_is_executed_however_old(self, backend: Backend) -> None:
        job = await self.job_of_nobody(backend, 100_000, None)
        assert isinstance(await claim_run(backend, job, ANNA, first_delivery=True), FlowAttempt)

    async def test_is_executed_however_old_where_nothing_is_forgotten(self, backend: Backend) -> None:
        forever = replace(backend, config=replace(backend.config, runs_retention_sec=0.0))
        job = await self.job_of_nobody(backend, 100_000, 7)
        assert isinstance(await claim_run(forever, job, ANNA, first_delivery=True), FlowAttempt)
