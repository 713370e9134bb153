"""Copy the ledger's SQLite file while it is in use, and restore it while it is not."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sqlite3
from collections.abc import AsyncIterable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from pyoco_server.errors import BackupFailed, NoRoom
from pyoco_server.ports.backups.port import FoundLedger
from pyoco_server.ports.backups.troubles import disk_troubles

__all__ = ["SqliteLedgerFile"]

#: Pages between two checks whether the copy is still wanted: about 16 MB.
_PAGES = 4096
_BUSY_SECONDS = 10.0
#: SQLite's files beside a database. Those of an older file would be taken for part of the new one.
_BESIDE = ("-wal", "-shm", "-journal")
_FULL = "SQLITE_FULL"


@contextlib.contextmanager
def _troubles(doing: str) -> Iterator[None]:
    """The only place that translates errors of SQLite into ours. Drops their text, which may quote a row."""
    try:
        with disk_troubles(doing):
            yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        raise (NoRoom if name == _FULL else BackupFailed)(f"cannot {doing}: {name}") from error


class SqliteLedgerFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> str:
        return str(self._path)

    async def exists(self) -> bool:
        return await asyncio.to_thread(self._path.exists)

    async def find(self) -> FoundLedger | None:
        return await asyncio.to_thread(self._find)

    def _find(self) -> FoundLedger | None:
        with _troubles(f"read {self._path}"):
            if not self._path.exists():
                return None
            size, log = self._path.stat().st_size, self._beside("-wal")
            is_whole = not log.exists() or log.stat().st_size == 0
            with self._path.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest() if is_whole else ""
        return FoundLedger(size, digest, self._is_used())

    def _is_used(self) -> bool:
        """Return whether any process has the database open.

        An open connection holds a lock, idle or not, so an exclusive lock fails.
        """
        with contextlib.closing(self._open("rw", timeout=0)) as connection:
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError as error:
                return error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
            except sqlite3.DatabaseError:  # not a database, so no process can be using it
                return False
        return False

    def copy(self, path: Path) -> None:
        def is_wanted(*_: int) -> None:
            if not path.exists():
                raise BackupFailed("the backup has been given up")

        with (
            _troubles(f"copy {self._path}"),
            contextlib.closing(self._open("ro", timeout=_BUSY_SECONDS)) as source,
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as target,
        ):
            # An incomplete copy is discarded, so no journal and no sync are needed; the archive syncs the file.
            target.execute("PRAGMA journal_mode = OFF")
            target.execute("PRAGMA synchronous = OFF")
            # One read transaction for the complete copy: otherwise every write in between restarts it.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(target, pages=_PAGES, progress=is_wanted)

    async def put(self, chunks: AsyncIterable[bytes]) -> None:
        part = self._beside(".restoring")
        output = await asyncio.to_thread(self._begin, part)
        try:
            async for chunk in chunks:
                await asyncio.to_thread(self._write, output, chunk)
            await asyncio.to_thread(self._end, output, part)
        except BaseException:
            with contextlib.suppress(OSError):
                output.close()
                part.unlink(missing_ok=True)
            raise

    def _begin(self, part: Path) -> BinaryIO:
        with _troubles(f"write {part}"):
            part.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)  # left over from an interrupted restore
            return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")

    def _write(self, output: BinaryIO, chunk: bytes) -> None:
        with _troubles(f"write {self._path}"):
            output.write(chunk)

    def _end(self, output: BinaryIO, part: Path) -> None:
        with _troubles(f"write {self._path}"):
            output.flush()
            os.fsync(output.fileno())
            output.close()
            for ending in _BESIDE:  # before the rename: these files would corrupt the new database
                self._beside(ending).unlink(missing_ok=True)
            part.rename(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _open(self, mode: str, timeout: float) -> sqlite3.Connection:
        address = f"file:{quote(str(self._path.absolute()))}?mode={mode}"
        return sqlite3.connect(address, uri=True, isolation_level=None, timeout=timeout)

    def _beside(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)
