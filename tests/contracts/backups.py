"""The contract of stores of streams for backups: what every adapter promises."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions.backup import BackupProgress, backup
from pyoco_server.actions.restore import plan_restore, restore
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import Manifest, StoredFile
from pyoco_server.core.backup_change import LateChange
from pyoco_server.core.backup_mark import BackupMark, mark_of
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.backups.port import LedgerFile, Streams

__all__ = ["HookedArchive", "Store", "StreamsContract", "back_up", "put_back"]


async def back_up(
    config: NatsBackendConfig, streams: Streams, archive: FolderArchive, ledger: LedgerFile | None = None
) -> Manifest:
    facts = {"backup_id": str(uuid.uuid4()), "made_by": "tests"}
    async with asyncio.timeout(200):
        return await backup(config, streams, archive, facts, time.time, _nobody, ledger)


async def put_back(
    config: NatsBackendConfig,
    streams: Streams,
    archive: FolderArchive,
    *,
    only: Iterable[str] = (),
    may_replace: bool = False,
    may_disturb: bool = False,
    replicas: int | None = None,
    ledger: LedgerFile | None = None,
) -> None:
    async with asyncio.timeout(200):
        plan = await plan_restore(
            config, streams, archive, tuple(only), may_replace=may_replace, may_disturb=may_disturb, ledger=ledger
        )
        await restore(streams, archive, plan, replicas, _nobody, ledger)


def _nobody(_: BackupProgress) -> None:
    """Progress is not shown."""


@dataclass
class HookedArchive(FolderArchive):
    """A folder during whose writing something happens: before the chunk of that number of a file is taken."""

    path: Path
    hooks: dict[tuple[str, str, int], Callable[[], Awaitable[object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.path)

    async def keep(self, stream: str, name: str, chunks: Any) -> StoredFile:
        async def hooked() -> AsyncIterator[bytes]:
            number = 0
            async for chunk in chunks:
                happening = self.hooks.pop((stream, name, number), None)
                if happening is not None:
                    await happening()
                yield chunk
                number += 1

        return await super().keep(stream, name, hooked())


class Store:
    """How a test writes and reads what is backed up. One for each adapter."""

    async def write(self, key: str, value: bytes) -> int:
        """A key of the bucket of runs. Returns its place."""
        raise NotImplementedError

    async def delete(self, key: str) -> None:
        raise NotImplementedError

    async def contents(self) -> dict[str, tuple[int, bytes | None]]:
        """Every key of that bucket, with its place; None: deleted."""
        raise NotImplementedError

    async def put_job(self, job_id: str) -> None:
        raise NotImplementedError

    async def take_job(self) -> str:
        """Take the oldest job and have done with it."""
        raise NotImplementedError

    async def jobs(self) -> list[str]:
        """Those in the queue, oldest first."""
        raise NotImplementedError


class StreamsContract:
    """`config`: names of its own. `streams`, `store`: one server. Both are empty at first, but made."""

    async def test_everything_comes_back_at_its_old_place(
        self, config: NatsBackendConfig, streams: Streams, store: Store, tmp_path: Path
    ) -> None:
        for number in (1, 2, 3, 2, 1):
            await store.write(f"key{number}", os.urandom(100))
        await store.delete("key3")
        for number in range(3):
            await store.put_job(f"job{number}")
        await store.take_job()
        before = await store.contents()
        archive = FolderArchive(tmp_path / "backup")
        await back_up(config, streams, archive)
        await store.write("later", b"gone with the restore")
        await put_back(config, streams, archive, may_replace=True, may_disturb=True)
        assert await store.contents() == before
        assert await store.jobs() == ["job1", "job2"]
        assert await store.write("new", b"") > max(place for place, _ in before.values())

    async def test_a_bucket_that_is_written_all_the_time_is_as_it_was_at_one_moment(
        self, config: NatsBackendConfig, streams: Streams, store: Store, tmp_path: Path
    ) -> None:
        """The copy alone misses a key whose value is replaced before the copy gets to it."""
        runs = f"KV_{config.runs_kv_bucket}"
        for number in range(200):  # more than is under way at once, or the copy would be done before
            await store.write(f"key{number}", b"old" + os.urandom(100_000))

        async def write() -> None:
            for number in range(200):
                await store.write(f"key{number}", b"new")
            for number in range(10):
                await store.delete(f"key{number}")
            await store.write("fresh", b"new")

        archive = HookedArchive(tmp_path / "backup", {(runs, "stream.tar.s2", 1): write})
        manifest = await back_up(config, streams, archive)
        before = await store.contents()
        (copy,) = manifest.only([runs])
        assert copy.changes > 0
        await put_back(config, streams, archive, may_replace=True, may_disturb=True)
        assert await store.contents() == before
        assert {value for _, value in before.values()} == {b"new", None}

    async def test_a_job_that_is_put_and_taken_meanwhile_is_not_lost(
        self, config: NatsBackendConfig, streams: Streams, store: Store, tmp_path: Path
    ) -> None:
        """Its run may still be unfinished in the copy of the runs."""
        await store.put_job("before")

        async def put_and_take() -> None:
            await store.put_job("meanwhile")
            assert [await store.take_job(), await store.take_job()] == ["before", "meanwhile"]

        runs = f"KV_{config.runs_kv_bucket}"
        archive = HookedArchive(tmp_path / "backup", {(runs, "stream.tar.s2", 0): put_and_take})
        await back_up(config, streams, archive)
        assert await store.jobs() == []
        await put_back(config, streams, archive, may_replace=True, may_disturb=True)
        assert await store.jobs() == ["before", "meanwhile"]

    async def test_changes_end_when_nothing_is_left(
        self, streams: Streams, store: Store, config: NatsBackendConfig
    ) -> None:
        places = [await store.write(f"key{number}", b"x") for number in range(40)]
        runs = f"KV_{config.runs_kv_bucket}"

        async def places_after(place: int) -> list[int]:
            async with asyncio.timeout(200), aclosing(streams.changes(runs, place)) as changes:
                return [change.sequence async for change in changes]

        assert await places_after(0) == places
        assert await places_after(places[30]) == places[31:]
        assert await places_after(places[-1]) == []

    async def test_new_jobs_are_told_from_the_moment_on_somebody_listens(
        self, config: NatsBackendConfig, streams: Streams, store: Store
    ) -> None:
        await store.put_job("before")
        told: list[LateChange] = []
        async with asyncio.timeout(200), streams.new_jobs(config.work_stream) as jobs:
            await store.put_job("one")
            await store.put_job("two")
            await jobs.end()
            told = [change async for change in jobs.arrivals()]
        assert [change.subject.rsplit(".", 1)[-1] for change in told] == ["default", "default"]
        assert [b"one" in told[0].data, b"two" in told[1].data] == [True, True]

    async def test_a_stream_that_is_not_there_is_not_found_and_need_not_be_removed(self, streams: Streams) -> None:
        assert await streams.find("NOT_THERE") is None
        await streams.remove("NOT_THERE")

    async def test_a_trial_leaves_nothing(
        self, config: NatsBackendConfig, streams: Streams, store: Store, tmp_path: Path
    ) -> None:
        await store.write("key", b"value")
        archive = FolderArchive(tmp_path / "backup")
        manifest = await back_up(config, streams, archive)
        (runs,) = manifest.only([f"KV_{config.runs_kv_bucket}"])
        await streams.try_restore(runs, None, archive.chunks(runs.name, runs.files[0]))
        assert await streams.find("PYOCO_RESTORE_TRIAL") is None

    @pytest.mark.parametrize("replicas", [None, 1])
    async def test_a_stream_says_where_it_comes_from_until_the_restore_is_over(
        self, config: NatsBackendConfig, streams: Streams, store: Store, tmp_path: Path, replicas: int | None
    ) -> None:
        await store.put_job("job")
        archive = FolderArchive(tmp_path / "backup")
        manifest = await back_up(config, streams, archive)
        (work,) = manifest.only([config.work_stream])
        await streams.remove(work.name)
        await streams.restore(work, manifest.backup_id, replicas, archive.chunks(work.name, work.files[0]), _nothing())
        restored = await streams.find(work.name)
        assert restored is not None
        assert mark_of(restored.config) == BackupMark(manifest.backup_id, (restored.last_sequence, 1))
        await streams.unmark(work.name)
        after = await streams.find(work.name)
        assert after is not None
        assert mark_of(after.config) is None
        assert await store.jobs() == ["job"]


async def _nothing() -> AsyncIterator[LateChange]:
    none: tuple[LateChange, ...] = ()
    for change in none:
        yield change
