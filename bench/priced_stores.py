"""The stores that priced runs are measured on: each durable, as an operator would have them, and on a disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # whose servers these are, made durable

from support.priced.servers import PostgresServer, ValkeyServer

__all__ = ["STORES", "DurablePostgres", "DurableValkey", "Stores"]

#: The servers of the tests do without these. Of a setting that is given twice the last counts.
_POSTGRES = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
}
_VALKEY = {"appendonly": "yes", "appendfsync": "everysec"}


@dataclass(frozen=True)
class Stores:
    """A ledger and a budget, and the variables by which processes find them."""

    ledger_url: str
    more: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"PYOCO_LEDGER_URL": self.ledger_url, **self.more}


class DurablePostgres(PostgresServer):
    def __init__(self) -> None:
        super().__init__()
        shutil.rmtree(self.folder)  # perhaps in memory, where a sync costs nothing
        name = f"{self.folder.name.rpartition('-')[0]}-"
        self.folder = Path(tempfile.mkdtemp(prefix=name, dir=tempfile.gettempdir()))

    def _command(self) -> list[str | Path]:
        return [*super()._command(), *(f"--{name}={value}" for name, value in _POSTGRES.items())]


class DurableValkey(ValkeyServer):
    def _command(self) -> list[str | Path]:
        return [*super()._command(), *(word for name, value in _VALKEY.items() for word in (f"--{name}", value))]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"pyoco-bench-stores-{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _sqlite() -> Iterator[Stores]:
    with _folder() as folder:
        yield Stores(f"sqlite:///{folder / 'ledger.db'}")


@contextlib.contextmanager
def _postgres() -> Iterator[Stores]:
    server = DurablePostgres()
    server.start()
    try:
        yield Stores(server.new_database())
    finally:
        server.end()


@contextlib.contextmanager
def _split() -> Iterator[Stores]:
    with _folder() as folder, _postgres() as found:
        server = DurableValkey(folder)
        server.start()
        try:
            yield Stores(found.ledger_url, {"PYOCO_BUDGET_URL": server.url})
        finally:
            server.kill()


#: By the name under which figures are shown.
STORES: dict[str, Callable[[], AbstractContextManager[Stores]]] = {
    "SQLite": _sqlite,
    "PostgreSQL": _postgres,
    "PostgreSQL + Valkey": _split,
}
