"""Everything an installation has stored, copied out and put back; and where the copies lie."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyoco_server.core.backup import Manifest, StoredFile, StreamCopy
from pyoco_server.core.backup_change import Change

__all__ = ["Archive", "Copying", "Found", "FoundLedger", "LedgerFile", "NewJobs", "Streams"]


@dataclass(frozen=True)
class Found:
    """A stream that is there."""

    name: str
    config: Mapping[str, Any]
    messages: int
    last_sequence: int
    size_bytes: int
    #: What is taken from it is gone: a queue.
    is_queue: bool
    #: Its durable consumers, as they were made.
    consumers: tuple[Mapping[str, Any], ...]
    #: How many consumers somebody listens to at this moment: workers, gateways, keepers.
    listeners: int


@dataclass(frozen=True)
class Copying:
    """A stream on its way out: what it was when the copy began, and its bytes."""

    config: Mapping[str, Any]
    state: Mapping[str, Any]
    chunks: AsyncIterator[bytes]


class NewJobs(Protocol):
    """The jobs that were put on the queue since somebody began to listen."""

    def told(self) -> AsyncGenerator[Change, None]:
        """As they come, until `end`. Raises Unavailable when some may have been missed."""

    async def end(self) -> None:
        """What was published before this call is still told; then nothing more."""


class Streams(Protocol):
    """The streams and buckets of one installation, whole. An outage raises Unavailable; a server that will not, or
    that says something nobody expected, raises BackupFailed."""

    @property
    def nats_version(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]:
        """All of ours, there or not, in the order in which they are told of everywhere."""

    @property
    def parts(self) -> tuple[frozenset[str], ...]:
        """Of `names`, those that are missed only where others of their part are: not everybody has priced runs, and an
        installation from before programs has nothing of those."""

    async def found(self) -> tuple[Found, ...]:
        """Those of `names` that are there, in their order."""

    async def find(self, name: str) -> Found | None: ...

    def copy(self, name: str, *, with_consumers: bool) -> AbstractAsyncContextManager[Copying]:
        """Its messages up to the last one there is now, in the server's own form. It need not stand still meanwhile,
        but what is replaced or removed before the copy gets to it is not in the copy: see `changes`."""

    def changes(self, name: str, after: int) -> AsyncGenerator[Change, None]:
        """Every message behind `after` that is there, until nothing is left. A copy up to `after` together with these
        is the stream as it was at that last moment, even of a bucket whose keys were written again and again. Not for
        queues."""

    @property
    def queues(self) -> tuple[str, ...]:
        """Of `names`, those that jobs are put on."""

    def new_jobs(self, queue: str) -> AbstractAsyncContextManager[NewJobs]:
        """Every job that is put on this queue from now on, whether or not somebody takes it at once. Raises Unavailable
        when we may not hear them."""

    async def remove(self, name: str) -> None:
        """With everything in it. Nothing happens when it is not there."""

    async def try_restore(self, stream: StreamCopy, replicas: int | None, chunks: AsyncIterable[bytes]) -> None:
        """Whether this server would take it: it is restored under another name, and removed again."""

    async def restore(
        self,
        stream: StreamCopy,
        backup_id: str,
        replicas: int | None,
        chunks: AsyncIterable[bytes],
        changes: AsyncIterable[Change],
    ) -> None:
        """Make the stream anew, with everything at its old place; it must not exist. `replicas`: None, as before.

        It is marked with the backup it comes from: as unfinished at first, and with how it is when all of it has
        arrived (`core.backup_mark`). After a failure an unfinished stream may be there, or none."""

    async def unmark(self, name: str) -> None:
        """The restore is over: nothing is said of it any more."""


@dataclass(frozen=True)
class FoundLedger:
    """A ledger that is there."""

    size_bytes: int
    #: Of its file, if all of it is in there; empty: the newest of it is not.
    sha256_hex: str
    #: Some process has it open.
    is_used: bool


class LedgerFile(Protocol):
    """The ledger of priced runs, when it is a file. Trouble raises BackupFailed, a full disk NoRoom."""

    @property
    def path(self) -> str:
        """Where it lies, for the eye."""

    async def exists(self) -> bool: ...

    async def find(self) -> FoundLedger | None:
        """Reads all of it."""

    def copy(self, path: Path) -> None:
        """All of it as it is at this moment, into a file that is there and empty. Nobody has to stop for it.

        Takes as long as it takes, and so belongs into a thread; ends early when the file is gone."""

    async def put(self, chunks: AsyncIterable[bytes]) -> None:
        """This is the ledger from now on; the one that was there is gone. Whole, or not at all. Nobody may have it
        open: such a process would go on with what is gone."""


class Archive(Protocol):
    """A folder that holds one backup. No room on its disk raises NoRoom, other trouble BackupFailed."""

    async def begin(self) -> None:
        """Make the folder, for us alone. Raises BackupFailed when there is something in it; of two who begin at the
        same time, one is refused."""

    async def keep(self, stream: str, name: str, chunks: AsyncIterable[bytes]) -> StoredFile:
        """Write a file; it has its name only when it is whole and on the disk. Memory does not grow with its size."""

    async def keep_file(self, stream: str, name: str, write: Callable[[Path], None]) -> StoredFile:
        """The same for a file that `write` fills, in a thread, at the path it is given."""

    async def finish(self, manifest: Manifest) -> None:
        """From here on it is a backup."""

    async def discard(self) -> None:
        """Take away what this one has made, and nothing else; the folder is as it was before `begin`, or gone if there
        was none. After any failure, one of `begin` included; nothing is written afterwards."""

    async def manifest(self) -> Manifest:
        """Raises BackupFailed: there is none, or it cannot be read."""

    async def check(self, stream: str, file: StoredFile) -> None:
        """Read all of it. Raises BackupFailed when it is missing, shorter, longer or altered."""

    def chunks(self, stream: str, file: StoredFile) -> AsyncGenerator[bytes, None]: ...
