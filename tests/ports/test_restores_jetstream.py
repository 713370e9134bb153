"""Streams restored into JetStream: interrupted, repeated, and refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contracts.backups import back_up, put_back
from pyoco_server.actions.restore import plan_restore
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import StreamCopy
from pyoco_server.core.backup_change import LateChange
from pyoco_server.core.backup_mark import BackupMark, mark_of
from pyoco_server.errors import BackupFailed, Unavailable
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.backups.jetstream import JetStreamStreams
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.nats.resources import resources_of
from support.stream_backups import JetStreamStore, store, streams

__all__ = ["store", "streams"]


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
    assert mark_of(unfinished.config) == BackupMark(manifest.backup_id)
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
    assert {mark_of(found.config) for found in await streams.found()} == {None}
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
    assert {mark_of(found.config) for found in await streams.found()} == {None}


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
    assert [found.name for found in await streams.found()] == [
        item.name for item in resources_of(prepared, {prepared.clock_stream})
    ]
    assert (await store.contents()).keys() == {"key"}


async def test_a_message_beyond_the_end_of_its_copy_is_put_when_the_copy_has_it_not(
    prepared: NatsBackendConfig, streams: JetStreamStreams, store: JetStreamStore, tmp_path: Path
) -> None:
    """As copies of older servers may be: they go further than they say, and not with every key."""
    places = [await store.write(f"key{number}", b"old") for number in range(4)]
    archive = FolderArchive(tmp_path / "backup")
    manifest = await back_up(prepared, streams, archive)
    (runs,) = manifest.only([f"KV_{prepared.runs_kv_bucket}"])

    async def changes() -> AsyncIterator[LateChange]:
        prefix = f"$KV.{prepared.runs_kv_bucket}."
        yield LateChange(places[2], prefix + "key2", b"not this")  # the copy has it
        yield LateChange(places[1], prefix + "missing", b"this")
        yield LateChange(places[3] + 5, prefix + "key3", b"new")

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

    async def changes() -> AsyncIterator[LateChange]:
        prefix = f"$KV.{prepared.runs_kv_bucket}."
        yield LateChange(place + 1, prefix + "sent", b"new", {"Nats-Rollup": "all"})
        marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "86400s", "Nats-Rollup": "sub"}
        yield LateChange(place + 2, prefix + "key1", b"", marker)

    await streams.remove(runs.name)
    await streams.restore(runs, manifest.backup_id, None, archive.chunks(runs.name, runs.files[0]), changes())
    contents = {key: value for key, (_, value) in (await store.contents()).items()}
    assert contents == {"key0": b"old", "key1": b"", "key2": b"old", "sent": b"new"}
