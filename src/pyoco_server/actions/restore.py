"""Put a backup back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from pyoco_server.actions.backup import CHANGES, DATA, Progress
from pyoco_server.actions.verify_backup import verify_backup
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import Manifest, StoredFile, StreamCopy, mark_of
from pyoco_server.core.backup_change import Change, read_changes
from pyoco_server.errors import BackupFailed
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
    #: What an earlier, interrupted restore of this very backup has put back already.
    already: tuple[str, ...]

    @property
    def lost(self) -> tuple[Found, ...]:
        """Of what is removed, that which holds something: all but the leftovers of an interrupted restore."""
        return tuple(found for found in self.removed if mark_of(found.config) != (self.manifest.backup_id, False))


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
    looked = [(stream, await streams.find(stream.name)) for stream in chosen]
    already = [stream.name for stream, found in looked if found and _is_restored(manifest, found) and not may_replace]
    left = [(stream, found) for stream, found in looked if stream.name not in already]
    removed = [found for _, found in left if found is not None]
    plan = Restoration(manifest, tuple(stream for stream, _ in left), tuple(removed), tuple(already))
    if not plan.streams:
        raise BackupFailed("all of it has been restored from this backup before; --replace does it once more")
    if plan.lost and not may_replace:
        names = ", ".join(found.name for found in plan.lost)
        raise BackupFailed(f"on this NATS server there is already {names}; --replace removes that first, for good")
    if any(found.listeners for found in removed) and not may_disturb:
        names = ", ".join(found.name for found in removed if found.listeners)
        raise BackupFailed(
            f"somebody uses {names} at this moment: stop gateways, keepers and workers first, or say --force"
        )
    return plan


def _is_restored(manifest: Manifest, found: Found) -> bool:
    return mark_of(found.config) == (manifest.backup_id, True)


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

    What a crash leaves behind: streams that are whole, then perhaps one that is marked as unfinished, then what was
    there before. The same restore, once more, goes on from there. Until then nothing should be started: a keeper would
    end runs whose jobs are not back yet. Raises BackupFailed, Unavailable; their notes say how far it came.
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
