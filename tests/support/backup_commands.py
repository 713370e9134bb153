"""`pyoco-server-admin backup` and `restore` as processes, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig, PricedConfig
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, Missing, Rejected, open_link
from pyoco_server.ports.nats.resources import priced_resources, resources_of
from support.servers import NatsServer
from support.surroundings import variables_without
from support.warm_processes import WarmProcess, started

__all__ = ["NAMES", "RESOURCES", "Admin", "Ended", "admin", "write_fact"]

#: Without the alarms, which keepers set again from the records.
RESOURCES = (
    *resources_of(NatsBackendConfig(), {NatsBackendConfig().clock_stream}),
    *priced_resources(NatsBackendConfig(), PricedConfig()),
)
NAMES = [resource.name for resource in RESOURCES]


def write_fact(ledger: Path, fact: str) -> None:
    """What is in it does not matter here."""
    with contextlib.closing(sqlite3.connect(ledger, isolation_level=None)) as opened:
        opened.execute("PRAGMA journal_mode = WAL")
        opened.execute("CREATE TABLE IF NOT EXISTS facts (fact TEXT)")
        opened.execute("INSERT INTO facts VALUES (?)", (fact,))


@dataclass(frozen=True)
class Ended:
    code: int | None
    out: str
    err: str


@dataclass
class Admin:
    """The command, against a server of this test's own."""

    server: NatsServer
    link: Link
    folder: Path
    ledger: Path

    def arguments(self, *arguments: str) -> list[str]:
        return ["-m", "pyoco_server.admin_cli", "--nats-url", self.server.url, *arguments]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, *self.arguments(*arguments)]

    @property
    def environment(self) -> dict[str, str]:
        clean = variables_without("PYOCO_")
        return {**clean, "PYOCO_LOAD_DOTENV": "false", "PYOCO_LEDGER_URL": f"sqlite:///{self.ledger}"}

    async def start(self, *arguments: str, **variables: str) -> WarmProcess:
        return await started(self.arguments(*arguments), cwd=self.folder, env=self.environment | variables)

    async def __call__(self, *arguments: str, **variables: str) -> Ended:
        return await self.end(await self.start(*arguments, **variables))

    async def end(self, process: asyncio.subprocess.Process | WarmProcess) -> Ended:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
        said = (err or b"").decode()
        assert "Traceback" not in said, said  # FLOW-429
        return Ended(process.returncode, (out or b"").decode(), said)

    async def interrupt(self, process: WarmProcess, number: signal.Signals) -> Ended:
        """While the server is held, so that it cannot come to its end before."""
        server = self.server._process
        assert server is not None
        server.send_signal(signal.SIGSTOP)
        try:
            process.send_signal(number)
            return await self.end(process)
        finally:
            server.send_signal(signal.SIGCONT)

    async def write(self, key: str) -> None:
        await self.link.store(f"$KV.pyoco_runs.{key}", b"value")

    async def keys(self) -> set[str]:
        try:
            info = await self.link.api("STREAM.INFO.KV_pyoco_runs", {"subjects_filter": ">"}, dict[str, Any])
        except (Missing, Rejected):
            return set()
        return {subject.rsplit(".", 1)[-1] for subject in info["state"].get("subjects") or {}}

    async def forget(self, *, with_ledger: bool = True) -> None:
        if with_ledger:
            self.ledger.unlink()
        for name in NAMES:
            await self.link.api(f"STREAM.DELETE.{name}", {}, dict[str, Any])


@pytest.fixture
async def admin(
    own_nats_server: NatsServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Admin]:
    link = await open_link(own_nats_server.url, "tests")
    await ensure(link, RESOURCES)
    ledger = tmp_path_factory.mktemp("ledger") / "ledger.db"
    write_fact(ledger, "first")
    yield Admin(own_nats_server, link, tmp_path, ledger)
    await link.close()
