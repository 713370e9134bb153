"""Runs in JetStream: the contract, and what this store does when the network does not."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.runs import NOW, SNAPSHOT_BYTES_MAX, RunsContract, a_run, stored
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import Owner
from pyoco_server.core.snapshot import encode, to_snapshot
from pyoco_server.errors import Corrupt, NotStored, SnapshotTooLargeError, Unavailable
from pyoco_server.ports.nats import watch as watching
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Patience, Rejected, open_link
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.runs.port import ABSENT, LOST, Changes, Removed, Runs, Stored, Withdrawn
from support.faults import FaultyLink, open_faulty_link
from support.nats_clients import network_client
from support.servers import NatsServer, config_for, unique
from support.waiting import eventually


def runs_of(link: Link, config: NatsBackendConfig) -> JetStreamRuns:
    return JetStreamRuns(link, config.runs_kv_bucket, SNAPSHOT_BYTES_MAX)


class TestJetStreamRuns(RunsContract):
    @pytest.fixture
    def runs(self, link: Link, prepared: NatsBackendConfig) -> Runs:
        return runs_of(link, prepared)


@pytest.fixture
async def faulty(nats_url: str) -> AsyncIterator[FaultyLink]:
    link = await open_faulty_link(nats_url)
    yield link
    await link.close()


class TestAWriteWithoutAnAnswer:
    """A timeout says nothing about the write. The adapter finds out before it speaks."""

    @pytest.mark.parametrize("fault", ["before", "after", "unheard"])
    async def test_is_a_success_when_it_is_repeated_or_had_happened(
        self, faulty: FaultyLink, prepared: NatsBackendConfig, fault: str
    ) -> None:
        runs = runs_of(faulty, prepared)
        run = a_run()
        faulty.faults.append(fault)
        made = await runs.create(run)
        assert isinstance(made, Stored)
        faulty.faults.append(fault)
        claimed = await runs.replace(claim(run, Owner("w", "i"), "1", NOW), made.revision)
        assert isinstance(claimed, Stored)
        assert await runs.find(run.run_id) == claimed
        faulty.faults.append(fault)
        assert await runs.withdraw(run.run_id, claimed.revision)
        assert isinstance(await runs.find(run.run_id), Withdrawn)

    async def test_is_lost_when_somebody_else_was_faster(
        self, faulty: FaultyLink, link: Link, prepared: NatsBackendConfig
    ) -> None:
        mine, theirs = runs_of(faulty, prepared), runs_of(link, prepared)
        made = await stored(mine)
        won = await theirs.replace(claim(made.run, Owner("anna", ""), "a", NOW), made.revision)
        faulty.faults.append("before")
        assert await mine.replace(claim(made.run, Owner("bert", ""), "b", NOW), made.revision) is LOST
        assert await mine.find(made.run.run_id) == won

    async def test_is_told_as_ambiguous_when_it_cannot_be_found_out(
        self, nats_url: str, prepared: NatsBackendConfig
    ) -> None:
        link = await open_faulty_link(nats_url, Patience(unanswered_seconds=0.2))
        link.faults.extend(["before"] + ["unheard"] * 20)
        with pytest.raises(Unavailable) as raised:
            await runs_of(link, prepared).create(a_run())
        assert not isinstance(raised.value, NotStored)
        await link.close()

    async def test_is_told_as_not_stored_when_nobody_listened(self, nats_url: str, prepared: NatsBackendConfig) -> None:
        link = await open_faulty_link(nats_url, Patience(unanswered_seconds=0.2))
        link.faults.extend(["unheard"] * 20)
        run = a_run()
        with pytest.raises(NotStored):
            await runs_of(link, prepared).create(run)
        assert await runs_of(link, prepared).find(run.run_id) is ABSENT
        await link.close()

    async def test_a_message_nats_will_never_take_is_refused_at_once(
        self, nats_url: str, prepared: NatsBackendConfig
    ) -> None:
        link = await open_link(nats_url, "patient", Patience(down_seconds=300.0, unanswered_seconds=300.0))
        runs = JetStreamRuns(link, prepared.runs_kv_bucket, 8 * 1024 * 1024)
        began = time.monotonic()
        with pytest.raises(NotStored):
            await runs.create(a_run(params={"big": "x" * 2 * 1024 * 1024}))
        assert time.monotonic() - began < 100
        await link.close()


class TestARunNobodyCanRead:
    async def test_is_corrupt_when_asked_for_and_counts_as_removed_in_changes(
        self, link: Link, prepared: NatsBackendConfig
    ) -> None:
        """What it replaced is not true any more; and one odd record must not stop the feed."""
        runs = runs_of(link, prepared)
        made = await stored(runs)
        strange = [
            b"not json",
            encode(to_snapshot(made.run)),  # of another run
            encode(to_snapshot(made.run) | {"run_id": [1]}),
            encode(to_snapshot(made.run) | {"run_id": "odd3", "updated_at": 10**400}),
        ]
        for number, data in enumerate(strange):
            await link.store(f"$KV.{prepared.runs_kv_bucket}.odd{number}", data)
        with pytest.raises(Corrupt):
            await runs.find("odd0")
        async with asyncio.timeout(200), aclosing(runs.changes()) as batches:
            items = (await anext(batches)).items
        removed = [
            Removed(f"odd{number}", made.revision + 1 + number, is_corrupt=True) for number in range(len(strange))
        ]
        assert items == (made, *removed)


async def test_whoever_follows_changes_sees_what_whoever_reads_sees(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-551: fields that a newer version wrote, too; one of them may be called as a member of ours."""
    runs = runs_of(link, prepared)
    plain = await stored(runs)
    newer = await stored(runs, replace(a_run(), extra={"priority": 5, "extra": {"a": 1}, "größe": None}))
    past = {"attempt": 1, "worker_id": None, "ended_at": 5, "of a newer version": [1]}
    more = await stored(runs, replace(a_run(), graph={"a": [], "b": ["a"]}, earlier_attempts=(past,)))
    async with asyncio.timeout(200), aclosing(runs.changes()) as batches:
        items = (await anext(batches)).items
    assert items == (plain, newer, more)
    assert items == tuple([await runs.find(each.run.run_id) for each in (plain, newer, more)])


async def test_a_feed_gives_a_sign_of_life_every_second_once_all_is_told(
    link: Link, prepared: NatsBackendConfig
) -> None:
    runs = runs_of(link, prepared)
    made = await stored(runs)
    heard: list[int] = []
    told = 0

    async def follow() -> None:
        nonlocal told
        async with aclosing(runs.changes(on_heard=lambda: heard.append(told))) as batches:
            async for batch in batches:
                told += len(batch.items)

    following = asyncio.create_task(follow())
    await eventually(lambda: len(heard) >= 3)
    assert set(heard) == {1}, made
    following.cancel()
    await asyncio.wait({following})


class Follower:
    """Collects changes in the background."""

    def __init__(self, runs: JetStreamRuns) -> None:
        self.batches: list[Changes] = []
        self._task = asyncio.create_task(self._run(runs))

    async def _run(self, runs: JetStreamRuns) -> None:
        async with aclosing(runs.changes()) as batches:
            async for batch in batches:
                self.batches.append(batch)

    def revisions(self, epoch: str | None = None) -> list[int]:
        return [item.revision for batch in self.batches if epoch in {None, batch.epoch} for item in batch.items]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


class TestAStoreThatGoesAway:
    @pytest.fixture
    async def own(self, own_nats_server: NatsServer) -> AsyncIterator[tuple[Link, NatsBackendConfig]]:
        link = await open_link(own_nats_server.url, "tests", Patience(down_seconds=0.5))
        config = config_for(own_nats_server.url)
        await ensure(link, resources_of(config))
        yield link, config
        await link.close()

    async def test_answers_not_stored_within_the_budget_while_there_is_no_connection(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer
    ) -> None:
        """FLOW-48"""
        runs = runs_of(*own)
        own_nats_server.kill()
        await eventually(lambda: not own[0].is_up and own[0].connection > 0)  # all has been told of the loss
        began = time.monotonic()
        with pytest.raises(NotStored):
            await runs.create(a_run())
        with pytest.raises(Unavailable):
            await runs.find("any")
        assert time.monotonic() - began < 60

    async def test_a_write_waits_for_a_server_that_comes_back_soon(
        self, own_nats_server: NatsServer, own: tuple[Link, NatsBackendConfig]
    ) -> None:
        patient = await open_link(own_nats_server.url, "tests", Patience(down_seconds=100))
        own_nats_server.kill()
        await eventually(lambda: not patient.is_up)
        write = asyncio.create_task(runs_of(patient, own[1]).create(a_run()))
        await asyncio.to_thread(own_nats_server.start)
        assert isinstance(await write, Stored)
        await patient.close()

    async def test_changes_survive_a_kill_and_skip_nothing(
        self, own: tuple[Link, NatsBackendConfig], own_nats_server: NatsServer
    ) -> None:
        runs = runs_of(*own)
        follower = Follower(runs)
        before = await stored(runs)
        await eventually(lambda: before.revision in follower.revisions())
        await asyncio.to_thread(own_nats_server.restart)
        await eventually(lambda: own[0].is_up)
        after = await stored(runs)
        await eventually(lambda: after.revision in follower.revisions())
        assert follower.revisions() == [before.revision, after.revision]
        await follower.stop()

    async def test_changes_notice_a_store_that_was_made_anew(self, own: tuple[Link, NatsBackendConfig]) -> None:
        link, config = own
        runs = runs_of(link, config)
        follower = Follower(runs)
        old = [await stored(runs) for _ in range(3)]
        await eventually(lambda: len(follower.revisions()) == 3)
        epoch = follower.batches[-1].epoch
        await link.api(f"STREAM.DELETE.KV_{config.runs_kv_bucket}", {}, dict[str, Any])
        await ensure(link, resources_of(config))
        new = await stored(runs, replace(old[0].run, flow_name="new"))
        await eventually(lambda: follower.batches[-1].epoch != epoch and follower.batches[-1].items == (new,))
        await follower.stop()

    async def test_a_missing_store_is_an_outage_and_not_an_absent_run(
        self, own: tuple[Link, NatsBackendConfig]
    ) -> None:
        link, config = own
        await link.api(f"STREAM.DELETE.KV_{config.runs_kv_bucket}", {}, dict[str, Any])
        with pytest.raises(Unavailable):
            await runs_of(link, config).find("any")


@pytest.mark.usefixtures("abandoned_consumers_stay")
async def test_a_closed_watch_leaves_no_consumer_behind(link: Link, prepared: NatsBackendConfig) -> None:
    runs = runs_of(link, prepared)
    async with aclosing(runs.changes()) as batches:
        await anext(batches)
    stream = f"KV_{prepared.runs_kv_bucket}"

    async def no_consumers() -> bool:
        return not (await link.api(f"CONSUMER.LIST.{stream}", {}, dict[str, Any]))["consumers"]

    await eventually(no_consumers)


async def test_an_open_link_to_nowhere_says_so_in_time(unused_port: int) -> None:
    began = time.monotonic()
    with pytest.raises(NotStored, match="no NATS server answers"):
        await open_link(f"nats://user:secret@127.0.0.1:{unused_port}", "tests", connect_seconds=1.0)
    assert time.monotonic() - began < 60


async def test_a_refusal_carries_the_code_of_jetstream(link: Link, prepared: NatsBackendConfig) -> None:
    with pytest.raises(Rejected) as raised:
        await link.api(f"CONSUMER.INFO.{prepared.work_stream}.nothing", {}, dict[str, Any])
    assert raised.value.code == 10014


async def test_a_terminal_record_leaves_after_its_retention_and_says_so(
    link: Link, prepared: NatsBackendConfig
) -> None:
    """PYOCO_RUNS_RETENTION_SEC: only what has ended expires, and whoever follows the changes hears of it."""
    runs = JetStreamRuns(link, prepared.runs_kv_bucket, 262_144, retention_seconds=1)
    ends, goes_on = await stored(runs), await stored(runs)
    claimed = await runs.replace(claim(ends.run, Owner("w", "i"), "1", 1.0), ends.revision)
    assert isinstance(claimed, Stored)
    async with asyncio.timeout(200), aclosing(runs.changes()) as batches:
        ended = await runs.replace(conclude(claimed.run, Completed(), 2.0), claimed.revision)
        assert isinstance(ended, Stored)
        async for batch in batches:
            if any(isinstance(item, Removed) and item.run_id == ends.run.run_id for item in batch.items):
                break
    assert isinstance(await runs.find(ends.run.run_id), Withdrawn)
    assert isinstance(await runs.find(goes_on.run.run_id), Stored)


async def test_a_bucket_made_without_expiry_keeps_its_runs(link: Link, prepared: NatsBackendConfig) -> None:
    """FLOW-285: an existing bucket is left as it is; the run ends all the same."""
    bucket = unique("old")
    await link.api(
        f"STREAM.CREATE.KV_{bucket}",
        {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "max_msgs_per_subject": 1, "storage": "memory"},
        dict[str, Any],
    )
    runs = JetStreamRuns(link, bucket, 262_144, retention_seconds=1)
    for _ in range(2):
        made = await stored(runs)
        ended = await runs.replace(conclude(made.run, Failed(message="x"), 2.0), made.revision)
        assert isinstance(ended, Stored)
    await link.api(f"STREAM.DELETE.KV_{bucket}", {}, dict[str, Any])


async def test_a_stream_with_an_earlier_end_is_another_store(link: Link, prepared: NatsBackendConfig) -> None:
    """A power cut or a restored backup takes the tail: whoever resumes beyond it has to begin again."""
    runs = runs_of(link, prepared)
    made = await stored(runs)
    async with asyncio.timeout(200), aclosing(runs.changes()) as batches:
        epoch = (await anext(batches)).epoch
    async with asyncio.timeout(200), aclosing(runs.changes(made.revision + 100, epoch)) as batches:
        batch = await anext(batches)
    assert batch.items == (made,)
    assert batch.epoch != epoch


async def test_a_lost_tail_is_noticed_though_others_have_written_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes what was not on the disk yet. Its places are given to others, faster than we are back."""
    monkeypatch.setattr(watching, "_SKEW_SECONDS", 0.0)
    server, data, synced = NatsServer(tmp_path / "nats"), tmp_path / "nats" / "data", tmp_path / "synced"
    server.start()
    config = config_for(server.url)
    link = await open_link(server.url, "a watcher")
    await ensure(link, resources_of(config))
    runs = runs_of(link, config)
    kept = await stored(runs)
    server.stop()
    shutil.copytree(data, synced)
    server.start()
    async with asyncio.timeout(200), aclosing(runs.changes()) as batches:
        lost = [await stored(runs) for _ in range(2)]
        seen: set[str] = set()
        while len(seen) < 3:
            batch = await anext(batches)
            seen |= {item.run.run_id for item in batch.items if isinstance(item, Stored)}
        server.kill()
        shutil.rmtree(data)
        shutil.copytree(synced, data)
        server.start()
        new = [await stored(runs) for _ in range(3)]
        assert new[-1].revision > lost[-1].revision > new[0].revision
        again = await anext(batches)
        items = again.items
        while len(items) < 4:  # they may come in several batches
            items += (await anext(batches)).items
    assert again.epoch != batch.epoch
    assert items[:4] == (kept, *new)
    await link.close()
    server.stop()


async def test_an_error_of_the_server_is_no_farewell(link: Link, prepared: NatsBackendConfig) -> None:
    """The library hangs up for good; we connect again."""
    before = link.connection
    await network_client(link)._process_err("'User Authentication Expired'")
    runs = runs_of(link, prepared)
    await stored(runs)
    assert link.connection > before


async def test_a_run_that_could_not_be_claimed_is_not_accepted(link: Link, prepared: NatsBackendConfig) -> None:
    runs = runs_of(link, prepared)
    full = a_run(params={"x": "x" * (SNAPSHOT_BYTES_MAX - 600)})
    with pytest.raises(SnapshotTooLargeError):
        await runs.create(full)
