"""The file of a ledger as it was when it was opened: SQLite does not notice that it was deleted or replaced."""

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
    """SQLite goes on writing to a file that has no name any more, and every commit to it would be lost (SAFE-12)."""

    def __init__(self, path: Path) -> None:
        """Raises DependencyUnavailable."""
        self._path = path
        try:
            self._opened = self._now()
        except OSError as error:
            raise DependencyUnavailable(f"the ledger cannot be opened ({error.strerror})") from error

    def check(self) -> None:
        """One `stat`. Raises OtherLedger when the file was deleted, moved away or replaced."""
        try:
            now: tuple[int, int] | None = self._now()
        except FileNotFoundError:
            now = None
        except OSError as error:
            raise DependencyUnavailable(f"the ledger cannot be looked at ({error.strerror})") from error
        if now != self._opened:
            what = "deleted or moved away" if now is None else "replaced by another file"
            raise OtherLedger(
                f"the ledger's file {self._path} was {what} while this process used it: put it back, "
                "or restart every process to use what is there now"
            )

    def guard(self, engine: Engine) -> None:
        """New connections are to this file alone. Without it, SQLite would create an empty one in its place."""

        @event.listens_for(engine, "do_connect")
        def before(*_: Any) -> None:
            self.check()

        @event.listens_for(engine, "connect")
        def after(*_: Any) -> None:
            self.check()

    def checked(
        self, begin: Callable[[Connection], AbstractContextManager[object]]
    ) -> Callable[[Connection], AbstractContextManager[object]]:
        """A transaction that is only known to be kept when the file is still there after the commit."""

        @contextlib.contextmanager
        def transaction(connection: Connection) -> Iterator[None]:
            with begin(connection):
                yield
            self.check()

        return transaction

    def _now(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino
