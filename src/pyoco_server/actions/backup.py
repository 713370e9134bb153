"""Copy all stored data into a folder while the system is in use."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import CHANGES, DATA, LEDGER, LEDGER_FILE, Manifest, StoredFile, StreamCopy
from pyoco_server.core.backup_change import LateChange, encode_change
from pyoco_server.errors import BackupFailed, PyocoError
from pyoco_server.ports.backups.port import Archive, FoundStream, LedgerFile, Streams

__all__ = ["BackupProgress", "backup"]

#: Stored beside the messages of a stream: metadata that the `nats` command needs.
_NATS_CLI = "backup.json"
#: A gateway publishes a job within milliseconds of its run's record.
_SETTLE_SECONDS = 1.0
_GATHERED_BYTES = 256 * 1024


@dataclass(frozen=True)
class BackupProgress:
    """How much of a stream has been copied. The total is its size in NATS; its file may be smaller."""

    stream: str
    done_bytes: int
    total_bytes: int
    is_done: bool = False


async def backup(
    config: NatsBackendConfig,
    streams: Streams,
    archive: Archive,
    facts: Mapping[str, str],
    clock: Callable[[], float],
    report: Callable[[BackupProgress], None],
    ledger: LedgerFile | None = None,
) -> Manifest:
    """Copy every stream and bucket that exists, then the changes made meanwhile, then mark the backup as complete.

    `facts`: `backup_id` and `made_by`. Nothing has to be stopped for a backup. The copies may take long; the changes
    are short, and are read in an order that makes the backup a state that a crash could have left behind, or a better
    one:

    1. Subscribe to new jobs, from before the first copy until after the last change: a job that is published and taken
       meanwhile is recorded, although it is in no copy.
    2. Copy the queues, then everything else.
    3. Copy the changes of dead letters, workers and keys.
    4. Copy the changes of runs. This is the backup's point in time: it contains each run as it was then. Such a run has
       its terminal state, or a job in the copy of the queue (a job leaves the queue after its run's terminal state is
       written), or a job that was received in step 1. So no run is ended because its job is missing, and no run that
       had ended runs again.
    5. Copy the ledger, if it is a file: it contains priced runs and their money as they are then. A priced run that
       waits has its message in the copy of its queue, or the message was received in step 1.
    6. Copy the changes of wheels, flow files, results and receipts, so that every file that a run names exists, and a
       repeated submission finds its receipt. A receipt without a run creates that run, under the promised id.
    7. Receive new jobs for one more second. A job whose record came too late has no run in the backup: the worker that
       takes it creates the record from the job.

    So a run that was submitted in the very last second may start again from its job; none is lost. Only a submission
    that took longer than that second between record and job ends as abandoned.

    A missing stream is named in the manifest as missing; the remaining streams are backed up all the same.

    A crash leaves a folder without backup.json, which is not a backup. After any failure the folder is as it was
    before. Memory does not grow with the amount of stored data. Raises BackupFailed, NoRoom, Unavailable.
    """
    found = await streams.found()
    if not found:
        raise BackupFailed("there is nothing of pyoco-server on this NATS server")
    names = {each.name for each in found}
    work = _Work(config, streams, archive, found, report, ledger)
    try:
        await archive.begin()
        copies, ledger_copy = await _copies(work)
        manifest = Manifest(
            backup_id=facts["backup_id"],
            made_at=clock(),
            made_by=facts["made_by"],
            nats_version=streams.nats_version,
            streams=copies,
            missing=tuple(name for name in streams.names if name not in names | _unmissed(streams, names)),
            ledger=ledger_copy,
        )
        await archive.finish(manifest)
    except BaseException:
        with contextlib.suppress(PyocoError):  # keep the original error
            await archive.discard()
        raise
    return manifest


def _unmissed(streams: Streams, names: set[str]) -> frozenset[str]:
    """Return the streams that may be missing."""
    return frozenset().union(*(part for part in streams.parts if not names & part))


@dataclass(frozen=True)
class _Work:
    """What is copied, where to, and who is notified of the progress."""

    config: NatsBackendConfig
    streams: Streams
    archive: Archive
    found: tuple[FoundStream, ...]
    report: Callable[[BackupProgress], None]
    ledger: LedgerFile | None

    @property
    def queues(self) -> list[str]:
        """The queues that exist."""
        return [each.name for each in self.found if each.name in self.streams.queues]


async def _copies(work: _Work) -> tuple[tuple[StreamCopy, ...], StoredFile | None]:
    async with contextlib.AsyncExitStack() as stack:
        jobs = {queue: await stack.enter_async_context(work.streams.new_jobs(queue)) for queue in work.queues}
        recordings = {
            queue: asyncio.create_task(_keep_changes(work.archive, queue, new.arrivals()))
            for queue, new in jobs.items()
        }
        try:
            copies, ledger = await _copied(work)
            if any(copy.changes for copy in copies.values()):
                await asyncio.sleep(_SETTLE_SECONDS)
            for queue, new in jobs.items():
                await new.end()
                copies[queue] = _with(copies[queue], await recordings[queue])
        finally:
            for task in recordings.values():
                task.cancel()
            if recordings:
                await asyncio.wait(recordings.values())
    return tuple(copies[each.name] for each in work.found), ledger


async def _copied(work: _Work) -> tuple[dict[str, StreamCopy], StoredFile | None]:
    copies: dict[str, StreamCopy] = {}
    for each in sorted(work.found, key=lambda each: not each.is_queue):
        copies[each.name] = await _copy(work.streams, work.archive, each, work.report)
    first, last = _order_of_changes(work.config, work.found)
    await _follow(work, copies, first)
    ledger = await _copy_ledger(work)
    await _follow(work, copies, last)
    return copies, ledger


async def _follow(work: _Work, copies: dict[str, StreamCopy], names: list[str]) -> None:
    for name in names:
        changes = work.streams.changes(name, copies[name].last_sequence)
        copies[name] = _with(copies[name], await _keep_changes(work.archive, name, changes))


def _order_of_changes(config: NatsBackendConfig, found: tuple[FoundStream, ...]) -> tuple[list[str], list[str]]:
    """Return the streams whose changes are copied before the ledger and after it; see `backup` for the reasons."""
    runs, receipts = f"KV_{config.runs_kv_bucket}", f"KV_{config.receipts_kv_bucket}"
    names = [each.name for each in found if not each.is_queue]
    files = [name for name in names if name.startswith("OBJ_")]
    others = [name for name in names if name not in {runs, receipts, *files}]
    return others + [name for name in names if name == runs], files + [name for name in names if name == receipts]


async def _copy_ledger(work: _Work) -> StoredFile | None:
    if work.ledger is None or not await work.ledger.exists():
        return None
    work.report(BackupProgress(LEDGER, 0, 0))
    file = await work.archive.keep_file(LEDGER, LEDGER_FILE, work.ledger.copy)
    work.report(BackupProgress(LEDGER, file.size_bytes, file.size_bytes, is_done=True))
    return file


async def _copy(
    streams: Streams, archive: Archive, found: FoundStream, report: Callable[[BackupProgress], None]
) -> StreamCopy:
    """Copy one stream.

    The consumers of a queue are only noted, and created anew by a restore, where they start with the remaining jobs: in
    a cluster a snapshot contains how many jobs are in flight, not which, and those would never be delivered again.
    """
    is_tracked = not found.is_queue and bool(found.consumers)
    async with streams.copy(found.name, with_consumers=is_tracked) as copying:
        chunks = _chunks(found, copying.chunks, report)
        data = await archive.keep(found.name, DATA, chunks)
    report(BackupProgress(found.name, data.size_bytes, found.size_bytes, is_done=True))
    about = await archive.keep(found.name, _NATS_CLI, _once(copying.config, copying.state))
    return StreamCopy(
        name=found.name,
        config=copying.config,
        state=copying.state,
        consumers=found.consumers if found.is_queue else (),
        files=(data, about),
    )


async def _chunks(
    found: FoundStream, chunks: AsyncIterable[bytes], report: Callable[[BackupProgress], None]
) -> AsyncIterator[bytes]:
    done = 0
    report(BackupProgress(found.name, done, found.size_bytes))
    async for chunk in chunks:
        yield chunk
        done += len(chunk)
        report(BackupProgress(found.name, done, found.size_bytes))


async def _once(config: Mapping[str, Any], state: Mapping[str, Any]) -> AsyncIterator[bytes]:
    yield json.dumps({"config": config, "state": state}, indent=1, ensure_ascii=False).encode() + b"\n"


async def _keep_changes(
    archive: Archive, stream: str, changes: AsyncGenerator[LateChange, None]
) -> tuple[StoredFile | None, int]:
    """Store the changes of a stream. Writes no file if there are none."""
    count = 0

    async def lines(first: LateChange) -> AsyncIterator[bytes]:
        nonlocal count
        count, gathered = 1, bytearray(encode_change(first))
        async for change in changes:
            count += 1
            gathered += encode_change(change)
            if len(gathered) > _GATHERED_BYTES:  # a write per change could not keep up with a busy queue
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered)

    async with contextlib.aclosing(changes):
        first = await anext(changes, None)
        return (await archive.keep(stream, CHANGES, lines(first)) if first is not None else None), count


def _with(copy: StreamCopy, changes: tuple[StoredFile | None, int]) -> StreamCopy:
    file, count = changes
    return copy if file is None else replace(copy, files=(*copy.files, file), changes=count)
