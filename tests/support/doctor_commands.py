"""`pyoco-server doctor` as a process, and deployments for it to check."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord, encode_worker
from pyoco_server.doors.cli import server
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.ensuring import ensure
from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.nats.resources import resources_of
from support.surroundings import own_variables

__all__ = ["CONFIG", "Doctor", "Said", "a_worker", "announced", "doctor", "nothing", "on"]

CONFIG = NatsBackendConfig()


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    def levels(self, check: str) -> set[str]:
        return {each["level"] for each in self.document["findings"] if each["id"] == check}

    def about(self, check: str) -> dict[str, Any]:
        """The one finding of this check that is not well."""
        (found,) = [each for each in self.document["findings"] if each["id"] == check and each["level"] != "ok"]
        return dict(found)


Doctor = Callable[..., Said]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """The command in this process, in a folder of its own and without a setting of ours."""
    for name in own_variables():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Said:
        code = outcome(server.cli, "pyoco-server", ["doctor", *arguments])
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return run


def on(url: str, change: Callable[[Link], Awaitable[object]]) -> None:
    """Make everything, then change something."""

    async def do() -> None:
        link = await open_link(url, "tests")
        try:
            await ensure(link, resources_of(CONFIG))
            await change(link)
        finally:
            await link.close()

    asyncio.run(do())


async def nothing(link: Link) -> None:
    """Everything as it was made."""


def a_worker(**more: Any) -> WorkerRecord:
    now = time.time()
    facts: dict[str, Any] = {
        "worker_id": "anna",
        "instance_id": "a1",
        "state": WorkerState.IDLE,
        "tags": ("default",),
        "last_seen_at": now,
        "last_heartbeat_at": now,
        "last_pull_at": now,
    }
    return WorkerRecord(**facts | more)


def announced(record: WorkerRecord) -> Callable[[Link], Awaitable[object]]:
    async def announce(link: Link) -> None:
        await Bucket(link, CONFIG.workers_kv_bucket).write(record.worker_id, encode_worker(record), 0)

    return announce
