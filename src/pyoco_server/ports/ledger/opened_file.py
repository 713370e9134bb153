"""Detects that the ledger's file was deleted or replaced while it is open: SQLite does not notice that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event

from pyoco_server.errors import DependencyUnavailable, OtherLedger

__all__ = ["OpenedFile"]


class OpenedFile:
    """SQLite keeps writing to a deleted file, and every commit to it would be lost (SAFE-12)."""

    def __init__(self, path: Path) -> None:
        """Raises DependencyUnavailable."""
        self._path = path
        try:
            self._opened = self._now()
        except OSError as error:
            raise DependencyUnavailable(f"the ledger cannot be opened ({error.strerror})") from error

    def check(self) -> None:
        """One `stat`. Raises OtherLedger if the file was deleted, moved away or replaced."""
        try:
            now: tuple[int, int] | None = self._now()
        except FileNotFoundError:
            now = None
        except OSError as error:
            raise DependencyUnavailable(f"cannot check the ledger's file ({error.strerror})") from error
        if now != self._opened:
            what = "deleted or moved away" if now is None else "replaced by another file"
            raise OtherLedger(
                f"the ledger's file {self._path} was {what} while this process used it: put it back, "
                "or restart every process to use what is there now"
            )

    def guard(self, engine: Engine) -> None:
        """Allow new connections only to the same file. Otherwise SQLite would create an empty one in its place."""

        @event.listens_for(engine, "do_connect")
        def before(*_: Any) -> None:
            self.check()

        @event.listens_for(engine, "connect")
        def after(*_: Any) -> None:
            self.check()

    def checked(
        self, begin: Callable[[Connection], AbstractContextManager[object]]
    ) -> Callable[[Connection], AbstractContextManager[object]]:
        """A transaction that succeeds only if the file still exists after the commit."""

        @contextlib.contextmanager
        def transaction(connection: Connection) -> Iterator[None]:
            with begin(connection):
                yield
            self.check()

        return transaction

    def _now(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino
