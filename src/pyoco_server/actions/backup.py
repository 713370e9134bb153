"""Copy everything that is stored into a folder, while it is used."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.backup import CHANGES, DATA, LEDGER, LEDGER_FILE, Manifest, StoredFile, StreamCopy
from pyoco_server.core.backup_change import Change, encode_change
from pyoco_server.errors import BackupFailed, PyocoError
from pyoco_server.ports.backups.port import Archive, Found, LedgerFile, Streams

__all__ = ["Progress", "backup"]

#: Beside a stream's messages: what the `nats` command wants to know.
_NATS_CLI = "backup.json"
#: A gateway puts a job within milliseconds of its run's record.
_SETTLE_SECONDS = 1.0
_GATHERED_BYTES = 256 * 1024


@dataclass(frozen=True)
class Progress:
    """How far a stream has come. The total is what it takes in NATS; its file may be smaller."""

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
    report: Callable[[Progress], None],
    ledger: LedgerFile | None = None,
) -> Manifest:
    """Copy every stream and bucket that is there; then what changed while that went on; then say that it is whole.

    `facts`: `backup_id` and `made_by`. Nobody has to stop for it. Copying takes as long as it takes; what changed is
    short, and read in an order that makes the backup one that a crash could have left behind, only better:

      1. listen for new jobs, from before the first copy until after the last change: a job that is put and taken
         meanwhile is heard, though it is in no copy;
      2. copy the queues, then everything else;
      3. the changes of dead letters, workers and keys;
      4. the changes of runs. This moment is the backup's: a run is in it as it was then. It has its end, or a job in
         the copy of the queue (a job leaves the queue after its run's end is written), or a job that was heard. So
         nothing is ended for want of a job, and what had ended does not run again;
      5. the ledger, if it is a file: priced runs and their money are in it as they are then. One that waits has its
         message in the copy of its queue, or it was heard;
      6. the changes of wheels, flow files, results and receipts, so that every file that a run names is there, and a
         repeated submission finds its receipt. A receipt whose run is not there makes that run, under the promised id;
      7. a second more of new jobs. One whose record came too late is there without a run: the worker that takes it
         makes the record from the job.

    So a run that was submitted in the very last second may begin again from its job; none is lost. Only a submission
    that took longer than that second between record and job ends as abandoned.

    A stream that is not there is named in the manifest as missing; what is there is worth keeping all the more.

    What a crash leaves behind: a folder without backup.json, which is no backup. After any failure the folder is as it
    was. Memory does not grow with what is stored. Raises BackupFailed, NoRoom, Unavailable.
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
        with contextlib.suppress(PyocoError):  # what went wrong first is what matters
            await archive.discard()
        raise
    return manifest


def _unmissed(streams: Streams, names: set[str]) -> frozenset[str]:
    """What need not be there."""
    return frozenset().union(*(part for part in streams.parts if not names & part))


@dataclass(frozen=True)
class _Work:
    """What is copied, where to, and who hears of it."""

    config: NatsBackendConfig
    streams: Streams
    archive: Archive
    found: tuple[Found, ...]
    report: Callable[[Progress], None]
    ledger: LedgerFile | None

    @property
    def queues(self) -> list[str]:
        """Those that are there."""
        return [each.name for each in self.found if each.name in self.streams.queues]


async def _copies(work: _Work) -> tuple[tuple[StreamCopy, ...], StoredFile | None]:
    async with contextlib.AsyncExitStack() as ears:
        jobs = {queue: await ears.enter_async_context(work.streams.new_jobs(queue)) for queue in work.queues}
        hearing = {
            queue: asyncio.create_task(_keep_changes(work.archive, queue, told.told())) for queue, told in jobs.items()
        }
        try:
            copies, ledger = await _copied(work)
            if any(copy.changes for copy in copies.values()):
                await asyncio.sleep(_SETTLE_SECONDS)
            for queue, told in jobs.items():
                await told.end()
                copies[queue] = _with(copies[queue], await hearing[queue])
        finally:
            for task in hearing.values():
                task.cancel()
            if hearing:
                await asyncio.wait(hearing.values())
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


def _order_of_changes(config: NatsBackendConfig, found: tuple[Found, ...]) -> tuple[list[str], list[str]]:
    """Before the ledger and after it; the docstring of `backup` says why."""
    runs, receipts = f"KV_{config.runs_kv_bucket}", f"KV_{config.receipts_kv_bucket}"
    names = [each.name for each in found if not each.is_queue]
    files = [name for name in names if name.startswith("OBJ_")]
    others = [name for name in names if name not in {runs, receipts, *files}]
    return others + [name for name in names if name == runs], files + [name for name in names if name == receipts]


async def _copy_ledger(work: _Work) -> StoredFile | None:
    if work.ledger is None or not await work.ledger.exists():
        return None
    work.report(Progress(LEDGER, 0, 0))
    file = await work.archive.keep_file(LEDGER, LEDGER_FILE, work.ledger.copy)
    work.report(Progress(LEDGER, file.size_bytes, file.size_bytes, is_done=True))
    return file


async def _copy(streams: Streams, archive: Archive, found: Found, report: Callable[[Progress], None]) -> StreamCopy:
    """A queue's consumers are noted and made anew at a restore, where they begin with whatever is left: a cluster tells
    a snapshot how many jobs they have in hand, not which, and those would never be delivered again."""
    is_tracked = not found.is_queue and bool(found.consumers)
    async with streams.copy(found.name, with_consumers=is_tracked) as copying:
        told = _told(found, copying.chunks, report)
        data = await archive.keep(found.name, DATA, told)
    report(Progress(found.name, data.size_bytes, found.size_bytes, is_done=True))
    about = await archive.keep(found.name, _NATS_CLI, _once(copying.config, copying.state))
    return StreamCopy(
        name=found.name,
        config=copying.config,
        state=copying.state,
        consumers=found.consumers if found.is_queue else (),
        files=(data, about),
    )


async def _told(found: Found, chunks: AsyncIterable[bytes], report: Callable[[Progress], None]) -> AsyncIterator[bytes]:
    done = 0
    report(Progress(found.name, done, found.size_bytes))
    async for chunk in chunks:
        yield chunk
        done += len(chunk)
        report(Progress(found.name, done, found.size_bytes))


async def _once(config: Mapping[str, Any], state: Mapping[str, Any]) -> AsyncIterator[bytes]:
    yield json.dumps({"config": config, "state": state}, indent=1, ensure_ascii=False).encode() + b"\n"


async def _keep_changes(
    archive: Archive, stream: str, changes: AsyncGenerator[Change, None]
) -> tuple[StoredFile | None, int]:
    """No file for no changes."""
    count = 0

    async def lines(first: Change) -> AsyncIterator[bytes]:
        nonlocal count
        count, gathered = 1, bytearray(encode_change(first))
        async for change in changes:
            count += 1
            gathered += encode_change(change)
            if len(gathered) > _GATHERED_BYTES:  # a write for each could not keep up with a busy queue
                yield bytes(gathered)
                gathered.clear()
        yield bytes(gathered)

    async with contextlib.aclosing(changes):
        first = await anext(changes, None)
        return (await archive.keep(stream, CHANGES, lines(first)) if first is not None else None), count


def _with(copy: StreamCopy, changes: tuple[StoredFile | None, int]) -> StreamCopy:
    file, count = changes
    return copy if file is None else replace(copy, files=(*copy.files, file), changes=count)
