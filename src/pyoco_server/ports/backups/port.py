"""Ports to copy out and restore everything an installation has stored, and to the folder of the copies."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyoco_server.core.backup import Manifest, StoredFile, StreamCopy
from pyoco_server.core.backup_change import LateChange

__all__ = ["Archive", "Copying", "FoundLedger", "FoundStream", "LedgerFile", "NewJobs", "Streams"]


@dataclass(frozen=True)
class FoundStream:
    """An existing stream."""

    name: str
    config: Mapping[str, Any]
    messages: int
    last_sequence: int
    size_bytes: int
    #: A queue: messages are removed when they are consumed.
    is_queue: bool
    #: The configurations of its durable consumers, as created.
    consumers: tuple[Mapping[str, Any], ...]
    #: How many consumers have a listener right now: workers, gateways, keepers.
    listeners: int


@dataclass(frozen=True)
class Copying:
    """A running copy of a stream: its state at the start of the copy, and its bytes."""

    config: Mapping[str, Any]
    state: Mapping[str, Any]
    chunks: AsyncIterator[bytes]


class NewJobs(Protocol):
    """The jobs published to the queue since listening began."""

    def arrivals(self) -> AsyncGenerator[LateChange, None]:
        """Yield jobs as they arrive, until `end`. Raises Unavailable if some may have been missed."""

    async def end(self) -> None:
        """Stop after the jobs that were published before this call have been yielded."""


class Streams(Protocol):
    """The complete streams and buckets of one installation.

    An outage raises Unavailable; a refusal or an unexpected answer of the server raises BackupFailed.
    """

    @property
    def nats_version(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]:
        """All our streams, existing or not, in the order in which they are always listed."""

    @property
    def parts(self) -> tuple[frozenset[str], ...]:
        """Groups of `names` that are only required together: not every installation has priced runs, and one from
        before programs has none of their streams."""

    async def found(self) -> tuple[FoundStream, ...]:
        """Return the streams of `names` that exist, in their order."""

    async def find(self, name: str) -> FoundStream | None: ...

    def copy(self, name: str, *, with_consumers: bool) -> AbstractAsyncContextManager[Copying]:
        """Copy the messages up to the current last one, in the server's own format.

        The stream may be written meanwhile, but messages replaced or removed before the copy reaches them are missing
        from it: see `changes`.
        """

    def changes(self, name: str, after: int) -> AsyncGenerator[LateChange, None]:
        """Yield every existing message after `after`, until none is left.

        A copy up to `after` together with these is the stream as of that last moment, even for a bucket whose keys were
        rewritten repeatedly. Not for queues.
        """

    @property
    def queues(self) -> tuple[str, ...]:
        """The streams of `names` that jobs are published to."""

    def new_jobs(self, queue: str) -> AbstractAsyncContextManager[NewJobs]:
        """Receive every job published to this queue from now on, even if a worker takes it immediately.

        Raises Unavailable if our subscription may not receive them.
        """

    async def remove(self, name: str) -> None:
        """Delete the stream with its contents. Does nothing if it does not exist."""

    async def try_restore(self, stream: StreamCopy, replicas: int | None, chunks: AsyncIterable[bytes]) -> None:
        """Check that this server accepts the stream: restore it under another name, and remove it again."""

    async def restore(
        self,
        stream: StreamCopy,
        backup_id: str,
        replicas: int | None,
        chunks: AsyncIterable[bytes],
        changes: AsyncIterable[LateChange],
    ) -> None:
        """Create the stream, every message at its original sequence. It must not exist. `replicas` None: as before.

        The stream is marked with the id of its backup: as incomplete at first, and with its final state once everything
        has arrived (`core.backup_mark`). After a failure there may be an incomplete stream, or none.
        """

    async def unmark(self, name: str) -> None:
        """Remove the mark: the restore has finished."""


@dataclass(frozen=True)
class FoundLedger:
    """An existing ledger."""

    size_bytes: int
    #: Digest of the file if it contains all data; empty if the newest data are only in the write-ahead log.
    sha256_hex: str
    #: Some process has it open.
    is_used: bool


class LedgerFile(Protocol):
    """The ledger of priced runs as a file. Disk or SQLite errors raise BackupFailed, a full disk NoRoom."""

    @property
    def path(self) -> str:
        """The path, for display."""

    async def exists(self) -> bool: ...

    async def find(self) -> FoundLedger | None:
        """Return size, digest and use of the ledger. Reads the complete file. None: it does not exist."""

    def copy(self, path: Path) -> None:
        """Copy its current state into an existing empty file. No process has to stop for it.

        Blocks for as long as the copy takes, so run it in a thread. Aborts if the target file is deleted.
        """

    async def put(self, chunks: AsyncIterable[bytes]) -> None:
        """Replace the ledger, completely or not at all. The previous one is lost.

        No process may have it open: it would continue to use the deleted file.
        """


class Archive(Protocol):
    """A folder that holds one backup. A full disk raises NoRoom, any other disk error BackupFailed."""

    async def begin(self) -> None:
        """Create the folder, readable for its owner only.

        Raises BackupFailed if it is not empty; of two backups that begin at the same time, one is refused.
        """

    async def keep(self, stream: str, name: str, chunks: AsyncIterable[bytes]) -> StoredFile:
        """Write a file. It gets its name once it is complete and synced. Memory use does not grow with its size."""

    async def keep_file(self, stream: str, name: str, write: Callable[[Path], None]) -> StoredFile:
        """Like `keep`, for a file that `write` fills, in a thread, at the given path."""

    async def finish(self, manifest: Manifest) -> None:
        """Write the manifest: from here on the folder is a valid backup."""

    async def discard(self) -> None:
        """Remove everything that this backup created, and nothing else.

        The folder is then as before `begin`, or deleted if it did not exist. Call it after any failure, including one
        of `begin`; nothing is written afterwards.
        """

    async def manifest(self) -> Manifest:
        """Raises BackupFailed if the manifest is missing or cannot be read."""

    async def check(self, stream: str, file: StoredFile) -> None:
        """Read the complete file. Raises BackupFailed if it is missing, shorter, longer or altered."""

    def chunks(self, stream: str, file: StoredFile) -> AsyncGenerator[bytes, None]: ...
