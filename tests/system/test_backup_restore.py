"""A backup taken while everything works, restored on another server: every run reaches one end, and lists are right."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyoco import Flow, task

from contracts.backups import HookedArchive, back_up, put_back
from pyoco_server import PyocoNatsWorker
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Run
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.backups.folder import FolderArchive
from pyoco_server.ports.runs.port import Stored
from pyoco_server.wiring.operating import open_backups
from support.backends import opened_backend, run_now, submitted
from support.chaos import impatient
from support.gateways import ids, open_gateway, submit
from support.keepers import keeping
from support.servers import NatsServer
from support.waiting import eventually


@pytest.fixture
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    server = NatsServer(tmp_path_factory.mktemp("other_nats"))
    server.start()
    yield server
    server.kill()


class Work:
    """What workers have done, run by run."""

    def __init__(self) -> None:
        self.executions: Counter[int] = Counter()
        self._lock = threading.Lock()

    def resolve(self, _: str) -> Flow:
        return Flow(name="count") >> task(self.count)

    def count(self, n: int) -> int:
        with self._lock:
            self.executions[n] += 1
        return n


@contextlib.asynccontextmanager
async def working(config: NatsBackendConfig, work: Work, count: int = 2) -> AsyncIterator[None]:
    async def one(number: int) -> None:
        worker = await PyocoNatsWorker.connect(config, work.resolve, worker_id=f"worker-{number}")
        try:
            while not stopping.is_set():
                with contextlib.suppress(Unavailable):  # some tests take NATS away
                    await worker.run_once(0.2)
        finally:
            await worker.close()

    stopping = asyncio.Event()
    tasks = [asyncio.create_task(one(number)) for number in range(count)]
    try:
        yield
    finally:
        stopping.set()
        await asyncio.gather(*tasks)


@contextlib.asynccontextmanager
async def submitting(backend: Backend, work: Work, given: dict[int, str]) -> AsyncIterator[None]:
    """So much that some of it always waits, until the end."""

    async def one() -> None:
        while not stopping.is_set():
            await eventually(lambda: stopping.is_set() or len(given) < len(work.executions) + 40)
            number = len(given)
            given[number] = ""
            given[number] = await submitted(backend, "count", n=number)

    stopping = asyncio.Event()
    tasks = [asyncio.create_task(one()) for _ in range(3)]
    try:
        yield
    finally:
        stopping.set()
        await asyncio.gather(*tasks)


async def all_runs(backend: Backend) -> dict[str, Run]:
    """Every run there is now."""
    found: dict[str, Run] = {}
    async with asyncio.timeout(100), contextlib.aclosing(backend.runs.changes()) as changes:
        async for change in changes:
            found |= {item.run.run_id: item.run for item in change.items if isinstance(item, Stored)}
            if change.caught_up:
                break
    return found


async def test_every_run_of_a_backup_made_under_load_reaches_one_end(
    own_nats_server: NatsServer, other_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-19, FLOW-287: no run is lost, none is given up for want of a job, none that had ended runs again."""
    config = impatient(NatsBackendConfig(nats_url=own_nats_server.url))
    work, given = Work(), dict[int, str]()

    async def more() -> None:
        """While this file is written: runs are submitted, and others are ended."""
        submitted_before, ended_before = len(given), len(work.executions)
        await eventually(lambda: len(given) > submitted_before + 15 and len(work.executions) > ended_before + 15)

    streams_of = [f"KV_{config.runs_kv_bucket}", config.work_stream, f"KV_{config.receipts_kv_bucket}"]
    archive = HookedArchive(tmp_path / "backup", {(name, "stream.tar.s2", 0): more for name in streams_of})
    async with (
        opened_backend(config) as backend,
        open_backups(config) as streams,
        working(config, work),
        submitting(backend, work, given),
    ):
        await more()
        before = [run_id for run_id in given.values() if run_id]
        ended_before = [run.run_id for run in (await all_runs(backend)).values() if run.is_terminal]
        await back_up(config, streams, archive)
        await more()
    own_nats_server.kill()

    restored = replace(config, nats_url=other_server.url)
    async with open_backups(restored) as streams:
        await put_back(restored, streams, archive)
    again = Work()
    async with opened_backend(restored) as backend:
        at_first = await all_runs(backend)
        async with keeping(backend, tmp_path), working(restored, again):

            async def is_over() -> bool:
                left = await backend.queue.stock("default")
                runs = await all_runs(backend)
                return not left.waiting and not left.in_hand and all(run.is_terminal for run in runs.values())

            await eventually(is_over, 60)
            runs = await all_runs(backend)
    assert set(before) <= set(runs)
    assert Counter(run.status for run in runs.values()) == {RunState.COMPLETED: len(runs)}
    number_of = {run_id: number for number, run_id in given.items()}
    unfinished = {run_id for run_id in runs if run_id not in at_first or not at_first[run_id].is_terminal}
    assert again.executions == Counter({number_of[run_id]: 1 for run_id in unfinished})
    assert unfinished
    assert not unfinished & set(ended_before)


@pytest.mark.parametrize("keeps_running", [True, False], ids=["keeps running", "is restarted"])
async def test_a_gateway_with_an_old_index_shows_what_was_restored(
    own_nats_server: NatsServer, tmp_path: Path, keeps_running: bool
) -> None:
    """FLOW-112: its index knows runs that the restore has taken away, and sequences that mean other runs by now."""
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    archive = FolderArchive(tmp_path / "backup")
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(open_gateway(config))
        kept = [await submit(gateway, flow_name="kept") for _ in range(5)]
        async with open_backups(config) as streams:
            await back_up(config, streams, archive)
            lost = [await submit(gateway, flow_name="lost") for _ in range(5)]
            assert sorted(await ids(gateway)) == sorted(kept + lost)
            if not keeps_running:
                await stack.aclose()
            await put_back(config, streams, archive, may_replace=True, may_disturb=keeps_running)
        if not keeps_running:
            gateway = await stack.enter_async_context(open_gateway(config))

        async def shows_what_is_there() -> bool:
            answer = await gateway.client.get("/runs")
            shown = {run["run_id"] for run in answer.json()} if answer.status_code == 200 else set()
            return shown == set(kept)

        await eventually(shows_what_is_there, 20)
        new = await submit(gateway, flow_name="new")
        assert sorted(await ids(gateway)) == sorted([*kept, new])
        assert (await gateway.client.get(f"/runs/{lost[0]}")).status_code == 404
        assert (await run_now(gateway.backend, kept[0])).flow_name == "kept"
