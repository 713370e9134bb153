"""Restore a backup."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass

from pyoco_server.actions.backup import BackupProgress
from pyoco_server.actions.verify_backup import verify_backup
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import CHANGES, DATA, LEDGER, Manifest, StoredFile, StreamCopy
from pyoco_server.core.backup_change import LateChange, read_changes
from pyoco_server.core.backup_mark import BackupMark, mark_of
from pyoco_server.errors import BackupFailed, PyocoError
from pyoco_server.ports.backups.port import Archive, FoundLedger, FoundStream, LedgerFile, Streams

__all__ = ["Restoration", "plan_restore", "restore"]


@dataclass(frozen=True)
class Restoration:
    """What a restore would do. Nothing has been changed yet."""

    manifest: Manifest
    #: In the order of the restore.
    streams: tuple[StreamCopy, ...]
    #: Existing streams under those names, which are removed first.
    removed: tuple[FoundStream, ...]
    #: Streams that an earlier, interrupted restore of this backup has already restored and that have not changed since.
    already: tuple[str, ...]
    #: The ledger's file, if it is restored, too; and whether it replaces an existing one.
    ledger: StoredFile | None = None
    replaces_ledger: bool = False

    @property
    def names(self) -> list[str]:
        """The names of everything that is restored, in that order."""
        return [*([LEDGER] if self.ledger is not None else []), *(stream.name for stream in self.streams)]

    @property
    def lost(self) -> tuple[FoundStream, ...]:
        """The removed streams that hold data: all except the leftovers of an interrupted restore."""
        return tuple(found for found in self.removed if mark_of(found.config) != BackupMark(self.manifest.backup_id))


async def plan_restore(
    config: NatsBackendConfig,
    streams: Streams,
    archive: Archive,
    only: Collection[str],
    *,
    may_replace: bool,
    may_disturb: bool,
    ledger: LedgerFile | None = None,
) -> Restoration:
    """Verify every byte of the backup and read what exists on the server. Changes nothing.

    Raises BackupFailed if the backup is damaged; if a stream exists and `may_replace` is not set; if a stream has
    consumers and `may_disturb` is not set (a keeper that scans between two restored streams ends runs because their
    jobs are missing); if the same is true of the ledger; or if the backup holds a ledger and there is no file to
    restore it to (`ledger` is None).
    """
    manifest = await verify_backup(archive, only)
    file = manifest.ledger_if(only)
    here = await ledger.find() if file is not None and ledger is not None else None
    chosen = sorted(manifest.only(only), key=lambda stream: _place(config, streams, stream.name))
    there = [found for stream in chosen if (found := await streams.find(stream.name)) is not None]
    already = [found.name for found in there if _is_as_restored(manifest, found)]
    plan = Restoration(
        manifest,
        streams=tuple(stream for stream in chosen if stream.name not in already),
        removed=tuple(found for found in there if found.name not in already),
        already=(*already, *([LEDGER] if file is not None and _is_same(file, here) else [])),
        ledger=None if _is_same(file, here) else file,
        replaces_ledger=here is not None and not _is_same(file, here),
    )
    if plan.lost and not may_replace:
        names = ", ".join(found.name for found in plan.lost)
        raise BackupFailed(f"on this NATS server there is already {names}; --replace removes that first, for good")
    if any(found.listeners for found in there) and not may_disturb:
        names = ", ".join(found.name for found in there if found.listeners)
        raise BackupFailed(
            f"somebody uses {names} at this moment: stop gateways, keepers and workers first, or say --force"
        )
    if plan.ledger is not None:
        _check_ledger(ledger, here, may_replace=may_replace, may_disturb=may_disturb)
    return plan


def _check_ledger(ledger: LedgerFile | None, here: FoundLedger | None, *, may_replace: bool, may_disturb: bool) -> None:
    """Raise BackupFailed if the ledger may not be restored."""
    if ledger is None:
        raise BackupFailed(
            "the backup holds a ledger, and PYOCO_LEDGER_URL names a database that is no file: "
            "--no-ledger restores the rest"
        )
    if here is None:
        return
    if not may_replace:
        raise BackupFailed(
            f"there is already a ledger at {ledger.path}; --no-ledger keeps it, --replace removes it first, for good"
        )
    if here.is_used and not may_disturb:
        raise BackupFailed(f"somebody uses {ledger.path} at this moment: stop that process first, or say --force")


def _is_same(file: StoredFile | None, here: FoundLedger | None) -> bool:
    return file is not None and here is not None and here.sha256_hex == file.sha256_hex


def _is_as_restored(manifest: Manifest, found: FoundStream) -> bool:
    """Whether the stream is still as this backup restored it.

    The mark alone is not enough: messages may have been written since, or jobs taken. Messages are counted only for a
    queue; elsewhere some expire.
    """
    mark = mark_of(found.config)
    if mark is None or mark.backup_id != manifest.backup_id or mark.end is None:
        return False
    last_sequence, messages = mark.end
    return found.last_sequence == last_sequence and (not found.is_queue or found.messages == messages)


def _place(config: NatsBackendConfig, streams: Streams, name: str) -> int:
    """Return the stream's position in the restore order: the queues next to last and the runs last.

    Between those two a worker can start nothing, since there is no record to write, and a keeper can end nothing, since
    there is no run to see. In the opposite order a keeper would find runs without jobs, and end them.
    """
    return 2 if name == f"KV_{config.runs_kv_bucket}" else int(name in streams.queues)


async def restore(
    streams: Streams,
    archive: Archive,
    plan: Restoration,
    replicas: int | None,
    report: Callable[[BackupProgress], None],
    ledger: LedgerFile | None = None,
) -> None:
    """Remove the existing streams and restore those of the backup, one after the other.

    The ledger comes first, because a worker drops a message whose priced run is not in the ledger.

    If something is to be removed, the smallest stream is first restored under another name and removed again: so a
    server that cannot hold the backup, because it is too old or has too few nodes for `replicas`, is detected before
    anything is lost.

    A crash leaves complete streams, each marked with its state, then possibly one marked as unfinished, then the old
    ones. Repeating the same restore continues from there, and neither restores nor removes again what is unchanged
    since it was marked. Start nothing until then: a keeper would end runs whose jobs are not restored yet. At the end
    the marks are removed: from then on the streams are like any others.

    Raises BackupFailed, Unavailable; their notes list what was restored.
    """
    if plan.lost:
        smallest = min(plan.streams, key=lambda stream: stream.size_bytes)
        async with contextlib.aclosing(archive.chunks(smallest.name, _file(smallest, DATA))) as chunks:
            await streams.try_restore(smallest, replicas, chunks)
    done: list[str] = list(plan.already)
    in_the_way = {found.name for found in plan.removed}
    try:
        if plan.ledger is not None and ledger is not None:
            async with contextlib.aclosing(archive.chunks(LEDGER, plan.ledger)) as chunks:
                await ledger.put(chunks)
            report(BackupProgress(LEDGER, plan.ledger.size_bytes, plan.ledger.size_bytes, is_done=True))
            done.append(LEDGER)
        for stream in plan.streams:
            if stream.name in in_the_way:
                await streams.remove(stream.name)
            content = _chunks(archive, stream, report)
            await streams.restore(stream, plan.manifest.backup_id, replicas, content, _changes(archive, stream))
            report(BackupProgress(stream.name, stream.size_bytes, stream.size_bytes, is_done=True))
            done.append(stream.name)
    except BaseException as error:
        left = [name for name in plan.names if name not in done]
        error.add_note(
            f"restored: {', '.join(done) or 'nothing'}; not restored: {', '.join(left)}. "
            "Start nothing yet: repeat the command to continue from here."
        )
        raise
    with contextlib.suppress(PyocoError):  # a mark that stays does no harm: it only describes the stream
        for name in done:
            if name != LEDGER:
                await streams.unmark(name)


async def _chunks(
    archive: Archive, stream: StreamCopy, report: Callable[[BackupProgress], None]
) -> AsyncIterator[bytes]:
    file, done = _file(stream, DATA), 0
    report(BackupProgress(stream.name, done, file.size_bytes))
    async with contextlib.aclosing(archive.chunks(stream.name, file)) as chunks:
        async for chunk in chunks:
            yield chunk
            done += len(chunk)
            report(BackupProgress(stream.name, done, file.size_bytes))


async def _changes(archive: Archive, stream: StreamCopy) -> AsyncIterator[LateChange]:
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
