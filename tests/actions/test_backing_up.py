"""The order of a backup and of a restore, on which what they promise hangs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contracts.backups import back_up, put_back
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup_change import LateChange
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.backups.jetstream import JetStreamStreams
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import resources_of

pytestmark = pytest.mark.usefixtures("real_nats")  # JetStream copies and restores its streams


class Watched(JetStreamStreams):
    """Notes who is called, and when."""

    def __init__(self, link: Link, config: NatsBackendConfig) -> None:
        super().__init__(link, config)
        self.calls: list[str] = []

    @contextlib.asynccontextmanager
    async def copy(self, name: str, *, with_consumers: bool) -> AsyncIterator[Any]:
        self.calls.append(f"copy {name}")
        async with super().copy(name, with_consumers=with_consumers) as copying:
            yield copying

    async def changes(self, name: str, after: int) -> AsyncGenerator[LateChange, None]:
        self.calls.append(f"changes {name}")
        async for change in super().changes(name, after):
            yield change

    @contextlib.asynccontextmanager
    async def new_jobs(self, queue: str) -> AsyncIterator[Any]:
        self.calls.append("listen")
        async with super().new_jobs(queue) as jobs:
            yield jobs
        self.calls.append("stop listening")

    async def restore(self, stream: Any, *more: Any) -> None:
        self.calls.append(f"restore {stream.name}")
        await super().restore(stream, *more)


@pytest.fixture
def streams(link: Link, prepared: NatsBackendConfig) -> Watched:
    return Watched(link, prepared)


async def test_runs_are_read_after_their_jobs_and_before_what_refers_to_them(
    prepared: NatsBackendConfig, streams: Watched, tmp_path: Path
) -> None:
    """A run that is unfinished in the backup has its job there; a receipt's run may be missing, a run's receipt not."""
    await back_up(prepared, streams, FolderArchive(tmp_path / "backup"))
    calls = streams.calls
    assert (calls[0], calls[-1]) == ("listen", "stop listening")
    runs = calls.index(f"changes KV_{prepared.runs_kv_bucket}")
    files = {prepared.wheel_object_store_bucket, prepared.workflow_object_store_bucket, prepared.outputs_bucket}
    assert set(calls[runs + 1 : -2]) == {f"changes OBJ_{name}" for name in files}
    assert calls[-2] == f"changes KV_{prepared.receipts_kv_bucket}"
    assert max(at for at, call in enumerate(calls) if call.startswith("copy")) < min(
        at for at, call in enumerate(calls) if call.startswith("changes")
    )
    assert not {f"changes {prepared.work_stream}", f"changes {prepared.advisory_stream}"} & set(calls)  # queues


async def test_jobs_are_back_before_their_runs_and_both_come_last(
    prepared: NatsBackendConfig, streams: Watched, tmp_path: Path
) -> None:
    """A keeper that looks in between would end runs without jobs."""
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    streams.calls.clear()
    await put_back(prepared, streams, archive, may_replace=True)
    assert streams.calls[-2:] == [f"restore {prepared.work_stream}", f"restore KV_{prepared.runs_kv_bucket}"]
    assert len(streams.calls) == len(resources_of(prepared, {prepared.clock_stream}))


async def test_what_is_not_there_is_named_and_the_rest_is_kept(
    prepared: NatsBackendConfig, streams: Watched, tmp_path: Path, link: Link
) -> None:
    """The queue, too, without which there are no new jobs to listen for."""
    await streams.remove(prepared.work_stream)
    await link.store(f"$KV.{prepared.runs_kv_bucket}.key", b"value")
    archive = FolderArchive(tmp_path / "backup")
    manifest = await back_up(prepared, streams, archive)
    assert manifest.missing == (prepared.work_stream,)
    assert await archive.manifest() == manifest
    assert len(manifest.streams) == len(resources_of(prepared, {prepared.clock_stream})) - 1
    await put_back(prepared, streams, archive, may_replace=True)
    assert await streams.find(prepared.work_stream) is None


async def test_a_failure_at_the_very_beginning_leaves_nothing_either(
    prepared: NatsBackendConfig, streams: Watched, tmp_path: Path
) -> None:
    """Ctrl-C while the folder is made: the thread that makes it is not stopped by that."""

    class Slow(FolderArchive):
        def _begin(self) -> None:
            begun.set()
            go_on.wait(60)
            super()._begin()

    begun, go_on = threading.Event(), threading.Event()
    work = asyncio.create_task(back_up(prepared, streams, Slow(tmp_path / "new" / "backup")))
    await asyncio.to_thread(begun.wait, 60)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(tmp_path.iterdir()) == []
