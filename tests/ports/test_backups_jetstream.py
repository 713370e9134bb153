"""Streams copied out of JetStream and back: the contract, and what only a real server does."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from contracts.backups import HookedArchive, Store, StreamsContract, back_up, put_back
from pyoco_server import wiring
from pyoco_server.actions.restore import plan_restore
from pyoco_server.config import GridConfig, NatsBackendConfig, PricedConfig
from pyoco_server.core.backup import StreamCopy
from pyoco_server.core.backup_change import Change
from pyoco_server.core.backup_mark import Mark, dated, mark_of, restored_at
from pyoco_server.errors import BackupFailed, Unavailable
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.backups.jetstream import JetStreamStreams
from pyoco_server.ports.nats.access import Access
from pyoco_server.ports.nats.client import Raw
from pyoco_server.ports.nats.grid_resources import all_resources
from pyoco_server.ports.nats.link import Link, NotPermitted, Patience, Rejected, open_link
from pyoco_server.ports.nats.permissions import Role, inbox_prefix, rights_of
from pyoco_server.ports.nats.resources import ensure, resources_of
from pyoco_server.ports.pack_queue.jetstream import JetStreamPackQueue
from support.configured_nats import configured_nats
from support.servers import NatsServer, unique

T = TypeVar("T")


class JetStreamStore(Store):
    def __init__(self, link: Link, config: NatsBackendConfig) -> None:
        self._link, self._config = link, config
        self._prefix = f"$KV.{config.runs_kv_bucket}."

    async def write(self, key: str, value: bytes) -> int:
        # With a condition, as everybody writes; it must not be asked again at a restore.
        found = (await self.contents_of(key))[0]
        return await self._link.store(
            self._prefix + key, value, {"Nats-Expected-Last-Subject-Sequence": str(found), "Nats-TTL": "3600"}
        )

    async def delete(self, key: str) -> None:
        await self._link.store(self._prefix + key, b"", {"KV-Operation": "DEL"})

    async def contents_of(self, key: str) -> tuple[int, bytes | None]:
        try:
            found = await self._link.api(
                f"STREAM.MSG.GET.KV_{self._config.runs_kv_bucket}", {"last_by_subj": self._prefix + key}, dict[str, Any]
            )
        except Rejected:
            return 0, None
        message = found["message"]
        gone = b"KV-Operation" in base64.b64decode(message.get("hdrs", ""))
        return message["seq"], None if gone else base64.b64decode(message.get("data", ""))

    async def contents(self) -> dict[str, tuple[int, bytes | None]]:
        name = f"STREAM.INFO.KV_{self._config.runs_kv_bucket}"
        info = await self._link.api(name, {"subjects_filter": ">"}, dict[str, Any])
        keys = [subject.removeprefix(self._prefix) for subject in info["state"].get("subjects") or {}]
        return {key: await self.contents_of(key) for key in keys}

    async def put_job(self, job_id: str) -> None:
        subject = f"{self._config.work_subject_prefix}.default"
        await self._link.store(subject, json.dumps({"run_id": job_id}).encode(), {"Nats-Msg-Id": job_id})

    async def take_job(self) -> str:
        first = (await self._messages())[0]
        await self._link.api(f"STREAM.MSG.DELETE.{self._config.work_stream}", {"seq": first["seq"]}, dict[str, Any])
        return _job_id(first)

    async def jobs(self) -> list[str]:
        return [_job_id(message) for message in await self._messages()]

    async def _messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = 0
        while True:
            request = {"seq": after + 1, "next_by_subj": ">"}
            try:
                answer = await self._link.api(f"STREAM.MSG.GET.{self._config.work_stream}", request, dict[str, Any])
            except Rejected:
                return found
            found.append(answer["message"])
            after = answer["message"]["seq"]


def _job_id(message: dict[str, Any]) -> str:
    return str(json.loads(base64.b64decode(message["data"]))["run_id"])


@pytest.fixture
def streams(link: Link, prepared: NatsBackendConfig) -> JetStreamStreams:
    return JetStreamStreams(link, prepared)


@pytest.fixture
def store(link: Link, prepared: NatsBackendConfig) -> JetStreamStore:
    return JetStreamStore(link, prepared)


class TestJetStreamStreams(StreamsContract):
    """FLOW-277 to FLOW-283"""


async def test_everything_of_ours_is_found_and_nothing_else(
    link: Link, prepared: NatsBackendConfig, streams: JetStreamStreams
) -> None:
    assert [found.name for found in await streams.found()] == [item.name for item in resources_of(prepared)]
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
    """FLOW-288, FLOW-292: with their settings; and a job that somebody had in hand is delivered again at once."""
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


class Interrupted(JetStreamStreams):
    """Breaks off in the middle of the queue: then everything but jobs and runs is back."""

    async def _put(self, stream: StreamCopy, changes: Any) -> None:
        if stream.name == self._config.work_stream:
            raise Unavailable("injected")
        await super()._put(stream, changes)


async def test_an_interrupted_restore_is_told_and_goes_on(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path, link: Link
) -> None:
    await store.write("key", b"value")
    archive = FolderArchive(tmp_path / "backup")
    manifest = await back_up(prepared, streams, archive)
    for found in await streams.found():
        await streams.remove(found.name)
    with pytest.raises(Unavailable) as caught:
        await put_back(prepared, Interrupted(link, prepared), archive)
    (note,) = caught.value.__notes__
    assert f"not restored: {prepared.work_stream}, KV_{prepared.runs_kv_bucket}. Start nothing yet" in note
    unfinished = await streams.find(prepared.work_stream)
    assert unfinished is not None
    assert mark_of(unfinished.config) == Mark(manifest.backup_id)
    created = await _created(link, prepared.dlq_stream)
    await put_back(prepared, streams, archive)
    assert await _created(link, prepared.dlq_stream) == created  # not once more
    assert (await store.contents()).keys() == {"key"}
    with pytest.raises(
        BackupFailed, match=f"there is already .*{prepared.dlq_stream}"
    ):  # it is over, and a stream is a stream
        await put_back(prepared, streams, archive)


async def test_a_restore_that_replaces_goes_on_too(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path, link: Link
) -> None:
    """What it has put back is not removed again; what was there before is."""
    await store.write("key", b"value")
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    await store.write("newer", b"value")
    with pytest.raises(Unavailable):
        await put_back(prepared, Interrupted(link, prepared), archive, may_replace=True)
    created = await _created(link, prepared.dlq_stream)
    plan = await plan_restore(prepared, streams, archive, (), may_replace=True, may_disturb=False)
    assert [found.name for found in plan.lost] == [f"KV_{prepared.runs_kv_bucket}"]  # asked about, and nothing else
    await put_back(prepared, streams, archive, may_replace=True)
    assert await _created(link, prepared.dlq_stream) == created
    assert (await store.contents()).keys() == {"key"}


async def test_what_was_used_since_it_was_restored_is_not_taken_for_the_backup(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path, link: Link
) -> None:
    """New letters and taken jobs would be mixed with old runs; so it says what is in the way, and touches nothing."""
    await store.put_job("job")
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    runs = f"KV_{prepared.runs_kv_bucket}"

    class LosesRuns(JetStreamStreams):
        async def _put(self, stream: StreamCopy, changes: Any) -> None:
            if stream.name == runs:
                raise Unavailable("injected")
            await super()._put(stream, changes)

    with pytest.raises(Unavailable):
        await put_back(prepared, LosesRuns(link, prepared), archive, may_replace=True)
    await store.take_job()  # its place in the queue stays the last one
    await link.store(f"{prepared.dlq_subject_prefix}.default", b"new")
    with pytest.raises(BackupFailed) as caught:
        await put_back(prepared, streams, archive)
    there = f"there is already {prepared.dlq_stream}, {prepared.work_stream}; --replace removes that first"
    assert there in str(caught.value)
    await put_back(prepared, streams, archive, may_replace=True)
    assert await store.jobs() == ["job"]
    assert (await _info(link, prepared.dlq_stream))["state"]["messages"] == 0


async def test_what_another_backup_has_put_back_is_in_the_way_of_this_one(
    prepared: NatsBackendConfig, streams: JetStreamStreams, tmp_path: Path, link: Link
) -> None:
    """Two restores that were begun, and neither is at its end."""
    monday, tuesday = FolderArchive(tmp_path / "monday"), FolderArchive(tmp_path / "tuesday")
    await back_up(prepared, streams, monday)
    await back_up(prepared, streams, tuesday)
    with pytest.raises(Unavailable):
        await put_back(prepared, Interrupted(link, prepared), monday, may_replace=True)
    with pytest.raises(BackupFailed, match=f"there is already {prepared.dlq_stream}, .*{prepared.work_stream}"):
        await put_back(prepared, streams, tuesday)


async def test_somebody_who_listens_to_what_is_back_already_is_noticed(
    prepared: NatsBackendConfig, streams: JetStreamStreams, tmp_path: Path, link: Link
) -> None:
    """Started too early, in the middle of a restore."""
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    with pytest.raises(Unavailable):
        await put_back(prepared, Interrupted(link, prepared), archive, may_replace=True)
    workers = f"KV_{prepared.workers_kv_bucket}"
    config = {"deliver_subject": link.nc.new_inbox(), "ack_policy": "none", "durable_name": "early"}
    await link.nc.listen(config["deliver_subject"], lambda _: None)
    where = f"CONSUMER.DURABLE.CREATE.{workers}.early"
    await link.api(where, {"stream_name": workers, "config": config}, dict[str, Any])
    with pytest.raises(BackupFailed, match=f"somebody uses {workers} at this moment"):
        await put_back(prepared, streams, archive, may_replace=True)


async def test_a_stream_lost_after_a_restore_was_over_does_not_make_it_unfinished(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path
) -> None:
    """Untouched streams, too: they belong to what went on since."""
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    await put_back(prepared, streams, archive, may_replace=True)
    assert [mark_of(found.config) for found in await streams.found()] == [None] * 10
    await streams.remove(f"KV_{prepared.runs_kv_bucket}")
    with pytest.raises(BackupFailed, match=f"there is already .*{prepared.work_stream}"):
        await put_back(prepared, streams, archive)
    assert await streams.find(f"KV_{prepared.runs_kv_bucket}") is None


async def test_a_restore_that_lacks_only_its_last_word_is_finished_by_the_next(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path, link: Link
) -> None:
    """All streams are back, and NATS goes away before the marks are: that is no failure, and harms nobody."""

    class GoesAway(JetStreamStreams):
        async def unmark(self, name: str) -> None:
            raise Unavailable("injected")

    await store.write("key", b"value")
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    await put_back(prepared, GoesAway(link, prepared), archive, may_replace=True)
    created = await _created(link, prepared.dlq_stream)
    await put_back(prepared, streams, archive)
    assert await _created(link, prepared.dlq_stream) == created
    assert [mark_of(found.config) for found in await streams.found()] == [None] * 10


async def _created(link: Link, stream: str) -> str:
    return str((await _info(link, stream))["created"])


async def _info(link: Link, stream: str) -> dict[str, Any]:
    return await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])


async def test_a_stream_that_is_there_is_not_touched(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path
) -> None:
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    await store.write("key", b"value")
    with pytest.raises(BackupFailed, match=r"there is already .*--replace"):
        await put_back(prepared, streams, archive)
    assert (await store.contents()).keys() == {"key"}


async def test_nothing_is_removed_when_the_server_would_not_take_the_backup(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path
) -> None:
    """Three copies of each message need three nodes."""
    await store.write("key", b"value")
    archive = FolderArchive(tmp_path / "backup")
    await back_up(prepared, streams, archive)
    with pytest.raises(BackupFailed, match="replicas"):
        await put_back(prepared, streams, archive, may_replace=True, replicas=3)
    assert [found.name for found in await streams.found()] == [item.name for item in resources_of(prepared)]
    assert (await store.contents()).keys() == {"key"}


async def test_a_message_beyond_the_end_of_its_copy_is_put_when_the_copy_has_it_not(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path
) -> None:
    """As copies of older servers may be: they go further than they say, and not with every key."""
    places = [await store.write(f"key{number}", b"old") for number in range(4)]
    archive = FolderArchive(tmp_path / "backup")
    manifest = await back_up(prepared, streams, archive)
    (runs,) = manifest.only([f"KV_{prepared.runs_kv_bucket}"])

    async def changes() -> AsyncIterator[Change]:
        prefix = f"$KV.{prepared.runs_kv_bucket}."
        yield Change(places[2], prefix + "key2", b"not this")  # the copy has it
        yield Change(places[1], prefix + "missing", b"this")
        yield Change(places[3] + 5, prefix + "key3", b"new")

    await streams.remove(runs.name)
    await streams.restore(runs, manifest.backup_id, None, archive.chunks(runs.name, runs.files[0]), changes())
    contents = await store.contents()
    assert {key: value for key, (_, value) in contents.items()} == {
        "key0": b"old",
        "key1": b"old",
        "key2": b"old",
        "missing": b"this",
        "key3": b"new",
    }
    assert contents["key3"][0] == places[3] + 5


async def test_a_rollup_that_was_stored_in_a_bucket_removes_nothing_that_is_restored(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path
) -> None:
    """One that somebody sent, and the server's own, in the marker of a record that expired."""
    place = [await store.write(f"key{number}", b"old") for number in range(3)][-1]
    archive = FolderArchive(tmp_path / "backup")
    manifest = await back_up(prepared, streams, archive)
    (runs,) = manifest.only([f"KV_{prepared.runs_kv_bucket}"])

    async def changes() -> AsyncIterator[Change]:
        prefix = f"$KV.{prepared.runs_kv_bucket}."
        yield Change(place + 1, prefix + "sent", b"new", {"Nats-Rollup": "all"})
        marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "86400s", "Nats-Rollup": "sub"}
        yield Change(place + 2, prefix + "key1", b"", marker)

    await streams.remove(runs.name)
    await streams.restore(runs, manifest.backup_id, None, archive.chunks(runs.name, runs.files[0]), changes())
    contents = {key: value for key, (_, value) in (await store.contents()).items()}
    assert contents == {"key0": b"old", "key1": b"", "key2": b"old", "sent": b"new"}


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
            async for _ in jobs.told():
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
