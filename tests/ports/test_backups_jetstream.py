"""Streams copied out of JetStream and back: the contract, and what only a real server does."""

from __future__ import annotations

import asyncio
import json
import os
import time
import tracemalloc
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from contracts.backups import HookedArchive, StreamsContract, back_up, put_back
from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.backup_mark import dated, mark_of, restored_at
from pyoco_server.errors import BackupFailed, Unavailable
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.backups.jetstream import JetStreamStreams
from pyoco_server.ports.nats.access import Access
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.grid_resources import all_resources
from pyoco_server.ports.nats.link import Link, NotPermitted, Patience, open_link
from pyoco_server.ports.nats.permissions import Role, inbox_prefix, rights_of
from pyoco_server.ports.nats.resources import resources_of
from pyoco_server.ports.pack_queue.jetstream import JetStreamPackQueue
from pyoco_server.wiring import backend as wiring
from support.configured_nats import configured_nats
from support.servers import NatsServer, unique
from support.stream_backups import JetStreamStore, store, streams

__all__ = ["store", "streams"]

T = TypeVar("T")


class TestJetStreamStreams(StreamsContract):
    """FLOW-277 to FLOW-283"""


async def test_everything_of_ours_is_found_and_nothing_else(
    link: Link, prepared: NatsBackendConfig, streams: JetStreamStreams
) -> None:
    assert [found.name for found in await streams.found()] == [
        item.name for item in resources_of(prepared, {prepared.clock_stream})
    ]
    await link.api(f"STREAM.DELETE.{prepared.dlq_stream}", {}, dict[str, Any])
    assert prepared.dlq_stream not in [found.name for found in await streams.found()]


async def pulled(link: Link, stream: str, consumer: str) -> Raw:
    """The next message that the consumer gives out."""
    inbox, heard = link.nc.new_inbox(), asyncio.Queue[Raw]()
    await link.nc.listen(inbox, heard.put_nowait)
    await link.nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", b"1", inbox)
    async with asyncio.timeout(200):
        return await heard.get()


async def test_a_queues_consumers_come_back_and_begin_with_what_is_left(
    link: Link, prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path
) -> None:
    """FLOW-288, FLOW-292: with their settings; and a delivered job is redelivered at once."""
    config = {
        "durable_name": "pyoco_worker_default",
        "ack_policy": "explicit",
        "ack_wait": 777_000_000_000,
        "max_deliver": 5,
        "filter_subject": f"{prepared.work_subject_prefix}.default",
    }
    where = f"CONSUMER.DURABLE.CREATE.{prepared.work_stream}.pyoco_worker_default"
    await link.api(where, {"stream_name": prepared.work_stream, "config": config}, dict[str, Any])
    await store.put_job("in hand")
    assert b"in hand" in (await pulled(link, prepared.work_stream, "pyoco_worker_default")).data
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    await put_back(prepared, streams, archive, may_replace=True)
    info = await link.api(f"CONSUMER.INFO.{prepared.work_stream}.pyoco_worker_default", {}, dict[str, Any])
    assert (info["config"]["ack_wait"], info["config"]["max_deliver"]) == (777_000_000_000, 5)
    again = await pulled(link, prepared.work_stream, "pyoco_worker_default")
    assert b"in hand" in again.data
    assert again.reply.split(".")[4] == "1"  # a first delivery


async def test_another_durable_consumer_goes_on_where_it_was(
    link: Link, prepared: NatsBackendConfig, streams: JetStreamStreams, tmp_path: Path
) -> None:
    """Of a stream that is no queue: somebody's own reader of dead letters, for instance."""
    dlq = prepared.dlq_stream
    for number in range(3):
        await link.store(f"{prepared.dlq_subject_prefix}.default", str(number).encode())
    config = {"durable_name": "mailer", "ack_policy": "explicit"}
    await link.api(f"CONSUMER.DURABLE.CREATE.{dlq}.mailer", {"stream_name": dlq, "config": config}, dict[str, Any])
    first = await pulled(link, dlq, "mailer")
    await link.ask(first.reply, b"+ACK")
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    await put_back(prepared, streams, archive, only=[dlq], may_replace=True)
    assert (await pulled(link, dlq, "mailer")).data == b"1"


async def test_somebody_who_listens_is_noticed(
    link: Link, prepared: NatsBackendConfig, streams: JetStreamStreams, tmp_path: Path
) -> None:
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    async with wiring.open_backend(prepared, "tests") as backend, aclosing(backend.runs.changes()) as changes:
        await anext(changes)
        with pytest.raises(BackupFailed, match=rf"somebody uses KV_{prepared.runs_kv_bucket} .* --force"):
            await put_back(prepared, streams, archive, may_replace=True)
        await put_back(prepared, streams, archive, may_replace=True, may_disturb=True)


async def test_the_queue_of_priced_runs_begins_anew_with_its_restore(
    link: Link, prepared: NatsBackendConfig, tmp_path: Path
) -> None:
    """PRICED-158: whatever date the server gives it; the word for it stays when the marks are taken away"""
    name = unique("packs")
    priced = PricedConfig(pack_stream=name, pack_subject=name.replace("_", "."))
    queue = JetStreamPackQueue(link, priced, 1)
    await queue.start()
    streams, archive = JetStreamStreams(link, prepared, priced), FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    before = time.time_ns() // 1000
    await put_back(prepared, streams, archive, may_replace=True)
    found = await streams.find(name)
    assert found is not None
    assert mark_of(found.config) is None
    assert before <= (restored_at(found.config) or 0) <= (await queue.begun_at() or 0)
    later = dated(found.config, before + 3_600_000_000)
    await link.api(f"STREAM.UPDATE.{name}", later, dict[str, Any])
    assert await queue.begun_at() == before + 3_600_000_000
    others = [each for each in await streams.found() if each.name != name]
    assert {restored_at(each.config) for each in others} == {None}
    await queue.close()
    for found in await streams.found():
        if found.name.startswith(name):
            await streams.remove(found.name)


@pytest.mark.parametrize("said", ["", "soon", "-1", "1" * 19, "²"])
def test_a_date_that_is_none_is_passed_over(said: str) -> None:
    assert restored_at({"metadata": {"pyoco.restored_at": said}}) is None


async def test_a_large_stream_takes_no_memory(
    prepared: NatsBackendConfig, streams: JetStreamStreams, link: Link, tmp_path: Path
) -> None:
    for _ in range(120):  # 60 MB
        await link.store(f"$O.{prepared.wheel_object_store_bucket}.C.one", os.urandom(500_000))
    archive = FolderArchive(tmp_path / "backup")
    tracemalloc.start()
    try:
        await back_up(prepared, streams, archive)
        await put_back(prepared, streams, archive, may_replace=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24_000_000, peak


async def test_a_server_that_dies_in_the_middle_is_told_and_leaves_nothing(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    config = NatsBackendConfig(nats_url=own_nats_server.url)
    link = await open_link(own_nats_server.url, "tests")
    await ensure(link, resources_of(config))

    async def die() -> None:
        await asyncio.to_thread(own_nats_server.kill)

    archive = HookedArchive(tmp_path / "backup", {("PYOCO_DLQ", "stream.tar.s2", 0): die})
    with pytest.raises(Unavailable):
        await back_up(config, JetStreamStreams(link, config), archive)
    assert list(tmp_path.iterdir()) == []
    await link.close()


async def test_jobs_that_may_have_been_missed_make_no_backup(own_nats_server: NatsServer, tmp_path: Path) -> None:
    """The connection was away for a moment, so a job may have come and gone unheard."""
    config = NatsBackendConfig(nats_url=own_nats_server.url)
    link = await open_link(own_nats_server.url, "tests")
    await ensure(link, resources_of(config))
    streams = JetStreamStreams(link, config)
    async with streams.new_jobs(config.work_stream) as jobs:
        await asyncio.to_thread(own_nats_server.restart)
        await link.until_up(60)
        await jobs.end()
        with pytest.raises(Unavailable, match="may have been missed"):
            async for _ in jobs.arrivals():
                pass
    await link.close()


async def test_whoever_may_not_hear_new_jobs_makes_no_backup(tmp_path: Path) -> None:
    """A job that is put and taken meanwhile would be nowhere in it, and NATS says no beside the answers."""
    config, priced, grid = NatsBackendConfig(), PricedConfig(), GridConfig()
    rights = rights_of(Role.ADMIN, config, priced, grid)
    inbox = inbox_prefix(Role.ADMIN)
    users = [
        {"user": user, "password": "secret", "permissions": {"publish": [">"], "subscribe": hears}}
        for user, hears in (("admin", rights.subscribe), ("old", [f"{inbox}.>"]))
    ]
    (tmp_path / "password").write_text("secret")
    with configured_nats(tmp_path, f"authorization: {json.dumps({'users': users})}") as server:
        for user in ("admin", "old"):
            access = Access(url=server.url, user=user, password_file=str(tmp_path / "password"), inbox_prefix=inbox)
            link = await open_link(access, user, connect_seconds=60.0)
            streams, archive = JetStreamStreams(link, config, priced, grid), FolderArchive(tmp_path / f"of-{user}")
            if user == "admin":
                await ensure(link, all_resources(config, priced, replace(grid, exec_queue_max_bytes=65_536)))
                assert await back_up(config, streams, archive)
            else:
                with pytest.raises(NotPermitted, match=r"subscribe to pyoco\.work\.>"):
                    await back_up(config, streams, archive)
                assert not (tmp_path / "of-old").exists()
            await link.close()
        assert "user:admin" not in (tmp_path / "log.txt").read_text()


class Behind(Link):
    """In a cluster, and so many of the nodes whose copies are read have nothing yet, as after a restore."""

    nodes = 1

    async def insist(self, subject: str, request: Any, answer: type[T]) -> T:
        if subject.startswith("CONSUMER.CREATE.") and self.nodes:
            self.nodes -= 1
            request["config"]["opt_start_seq"] = 1_000_000
        return await super().insist(subject, request, answer)


async def test_a_node_that_lacks_what_changed_does_not_shorten_a_backup(
    nats_url: str, prepared: NatsBackendConfig, store: JetStreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-279: another node is read; when none has it, there is no backup. What has gone is waited for by nobody."""
    monkeypatch.setattr("pyoco_server.ports.backups.reader._LAG_SECONDS", 0.05)
    behind = Behind(Patience())
    await behind.open(nats_url, "backup", 60.0)
    streams, name = JetStreamStreams(behind, prepared), f"KV_{prepared.runs_kv_bucket}"
    for key in ("one", "two"):
        await store.write(key, b"value")
    assert [change.subject.rpartition(".")[2] async for change in streams.changes(name, 0)] == ["one", "two"]
    behind.nodes = 1_000
    with pytest.raises(Unavailable, match="lacks what others have"):
        _ = [change async for change in streams.changes(name, 0)]
    await behind.api(f"STREAM.PURGE.{name}", {}, dict[str, Any])
    assert [change async for change in streams.changes(name, 0)] == []
    await behind.close()


async def test_a_copy_that_the_server_breaks_off_is_none(
    streams: JetStreamStreams, store: JetStreamStore, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does not say that it has read is given up after five seconds."""
    for number in range(200):
        await store.write(f"key{number}", os.urandom(100_000))
    monkeypatch.setattr(streams._link.nc, "publish", _say_nothing)
    async with asyncio.timeout(200), streams.copy(f"KV_{prepared.runs_kv_bucket}", with_consumers=False) as copying:
        with pytest.raises(BackupFailed, match="broke off the copy"):
            _ = [chunk async for chunk in copying.chunks]


async def _say_nothing(*_: object) -> None:
    """As if it got lost."""
