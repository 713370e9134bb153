"""Put a backup back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from pyoco_server.actions.backup import Progress
from pyoco_server.actions.verify_backup import verify_backup
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import CHANGES, DATA, Manifest, StoredFile, StreamCopy
from pyoco_server.core.backup_change import Change, read_changes
from pyoco_server.core.backup_mark import Mark, mark_of
from pyoco_server.errors import BackupFailed, PyocoError
from pyoco_server.ports.backups.port import Archive, Found, Streams

__all__ = ["Restoration", "plan_restore", "restore"]


@dataclass(frozen=True)
class Restoration:
    """What a restore would do. Nothing has been touched yet."""

    manifest: Manifest
    #: In this order.
    streams: tuple[StreamCopy, ...]
    #: What is there under those names, and is removed first.
    removed: tuple[Found, ...]
    #: What an earlier, interrupted restore of this very backup has put back already, and nobody has touched since.
    already: tuple[str, ...]

    @property
    def lost(self) -> tuple[Found, ...]:
        """Of what is removed, that which holds something: all but the leftovers of an interrupted restore."""
        return tuple(found for found in self.removed if mark_of(found.config) != Mark(self.manifest.backup_id))


async def plan_restore(
    config: NatsBackendConfig,
    streams: Streams,
    archive: Archive,
    only: Collection[str],
    *,
    may_replace: bool,
    may_disturb: bool,
) -> Restoration:
    """Check the backup, every byte of it, and look at what is there. Changes nothing.

    Raises BackupFailed: the backup is damaged; or a stream is there and `may_replace` is not set; or somebody listens
    to one and `may_disturb` is not set: a keeper that looks between two streams ends runs for want of their jobs.
    """
    manifest = await verify_backup(archive, only)
    chosen = sorted(manifest.only(only), key=lambda stream: _place(config, stream.name))
    there = [found for stream in chosen if (found := await streams.find(stream.name)) is not None]
    already = [found.name for found in there if _is_as_restored(manifest, found)]
    plan = Restoration(
        manifest,
        streams=tuple(stream for stream in chosen if stream.name not in already),
        removed=tuple(found for found in there if found.name not in already),
        already=tuple(already),
    )
    if plan.lost and not may_replace:
        names = ", ".join(found.name for found in plan.lost)
        raise BackupFailed(f"on this NATS server there is already {names}; --replace removes that first, for good")
    if any(found.listeners for found in there) and not may_disturb:
        names = ", ".join(found.name for found in there if found.listeners)
        raise BackupFailed(
            f"somebody uses {names} at this moment: stop gateways, keepers and workers first, or say --force"
        )
    return plan


def _is_as_restored(manifest: Manifest, found: Found) -> bool:
    """Its mark alone is not enough: somebody may have written to it since, or taken jobs from it. Only of a queue are
    messages counted; elsewhere some go when their time is up."""
    mark = mark_of(found.config)
    if mark is None or mark.backup_id != manifest.backup_id or mark.end is None:
        return False
    last_sequence, messages = mark.end
    return found.last_sequence == last_sequence and (not found.is_queue or found.messages == messages)


def _place(config: NatsBackendConfig, name: str) -> int:
    """The queue next to last and the runs last: between those two a worker can begin nothing, since there is no record
    to write, and a keeper can end nothing, since there is no run to see. The other way round it would find runs without
    jobs, and end them."""
    return {config.work_stream: 1, f"KV_{config.runs_kv_bucket}": 2}.get(name, 0)


async def restore(
    streams: Streams,
    archive: Archive,
    plan: Restoration,
    replicas: int | None,
    report: Callable[[Progress], None],
) -> None:
    """Remove what is in the way and put the backup's streams there, one after the other.

    When something is to be removed, the smallest stream is first restored under another name, and removed again: so a
    server that cannot take the backup, because it is too old or has too few nodes for `replicas`, is found out before
    anything is lost.

    What a crash leaves behind: streams that are whole and marked with how they are, then perhaps one that is marked as
    unfinished, then what was there before. The same restore, once more, goes on from there, and neither restores nor
    removes again what is still as it was marked. Until then nothing should be started: a keeper would end runs whose
    jobs are not back yet. At the end the marks are taken away: from then on the streams are like any others.

    Raises BackupFailed, Unavailable; their notes say how far it came.
    """
    if plan.lost:
        smallest = min(plan.streams, key=lambda stream: stream.size_bytes)
        async with contextlib.aclosing(archive.chunks(smallest.name, _file(smallest, DATA))) as chunks:
            await streams.try_restore(smallest, replicas, chunks)
    done: list[str] = list(plan.already)
    in_the_way = {found.name for found in plan.removed}
    try:
        for stream in plan.streams:
            if stream.name in in_the_way:
                await streams.remove(stream.name)
            told = _told(archive, stream, report)
            await streams.restore(stream, plan.manifest.backup_id, replicas, told, _changes(archive, stream))
            report(Progress(stream.name, stream.size_bytes, stream.size_bytes, is_done=True))
            done.append(stream.name)
    except BaseException as error:
        left = [stream.name for stream in plan.streams if stream.name not in done]
        error.add_note(
            f"restored: {', '.join(done) or 'nothing'}; not restored: {', '.join(left)}. "
            "Start nothing yet: the same restore, run again, goes on from here."
        )
        raise
    with contextlib.suppress(PyocoError):  # a mark that stays does no harm: it says how the stream was
        for name in done:
            await streams.unmark(name)


async def _told(archive: Archive, stream: StreamCopy, report: Callable[[Progress], None]) -> AsyncIterator[bytes]:
    file, done = _file(stream, DATA), 0
    report(Progress(stream.name, done, file.size_bytes))
    async with contextlib.aclosing(archive.chunks(stream.name, file)) as chunks:
        async for chunk in chunks:
            yield chunk
            done += len(chunk)
            report(Progress(stream.name, done, file.size_bytes))


async def _changes(archive: Archive, stream: StreamCopy) -> AsyncIterator[Change]:
    for file in stream.files:
        if file.name == CHANGES:
            async with contextlib.aclosing(archive.chunks(stream.name, file)) as chunks:
                async for change in read_changes(chunks):
                    yield change


def _file(stream: StreamCopy, name: str) -> StoredFile:
    for file in stream.files:
        if file.name == name:
            return file
    raise BackupFailed(f"the backup of {stream.name} has no {name}")
