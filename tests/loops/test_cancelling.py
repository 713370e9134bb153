"""A cancelled run with real hosts (section 8 of the contract, DESIGN 9.3): what stops, and what is killed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pyoco_server.actions.cancel import cancel
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller, Owner, Run
from pyoco_server.core.states import RunState
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.wiring import backend as wiring
from support.backends import dead_letters, has_ended, jobs_left, opened_backend, run_now, submitted
from support.flow_workers import a_worker
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("warm_hosts")

TESTS = Path(__file__).parents[1]
HEARTBEAT = 0.2


@pytest.fixture
async def backend(config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    quick = replace(config, run_heartbeat_interval_sec=HEARTBEAT, worker_heartbeat_interval_sec=0.4)
    async with opened_backend(quick) as backend:
        yield backend


class Working:
    def __init__(self, backend: Backend, slots: int = 1, **settings: Any) -> None:
        self._backend = replace(backend, config=replace(backend.config, **settings))
        executor = wiring.host_executor(self._backend.config, "support.naughty:resolve", slots)
        me = Owner("w", self._backend.new_id())
        self._worker = a_worker(self._backend, executor, me, slots=slots)

    async def __aenter__(self) -> Working:
        await self._worker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.stop("test", 0.1)


async def ended(backend: Backend, run_id: str, seconds: float = 40.0) -> Run:
    await eventually(lambda: has_ended(backend, run_id), seconds)
    return await run_now(backend, run_id)


async def shows(backend: Backend, run_id: str, task: str, state: str = "RUNNING") -> bool:
    return (await run_now(backend, run_id)).tasks.get(task) == state


async def cancel_is_seen(backend: Backend, run_id: str) -> bool:
    """Whether its worker has written a heartbeat since."""
    run = await run_now(backend, run_id)
    return run.cancel_requested_at is not None and run.heartbeat_at > run.cancel_requested_at


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def none_left(link: Link, config: NatsBackendConfig) -> bool:
    return await jobs_left(link, config) == []


async def test_what_a_task_has_started_is_killed_with_it(link: Link, backend: Backend, tmp_path: Path) -> None:
    """DESIGN 9.3: the host's whole process group."""
    note = tmp_path / "pids"
    async with Working(backend):
        run_id = await submitted(backend, "stays_with_others", path=str(note))
        await eventually(lambda: note.exists() and len(note.read_text().split()) == 2)
        grandchild, host = map(int, note.read_text().split())
        assert not is_gone(grandchild)
        await cancel(backend, Caller(), run_id, None, 0.3)
        run = await ended(backend, run_id)
        await eventually(lambda: is_gone(grandchild) and is_gone(host))
        await eventually(lambda: none_left(link, backend.config))
    assert run.status is RunState.CANCELLED
    assert (run.error or "").startswith("ERR-PYOCO-0021")
    assert await dead_letters(link, backend.config) == []


async def test_a_task_that_ignores_the_polite_word_is_killed_all_the_same(backend: Backend) -> None:
    """CLI-10: also when the grace period is shortened after the worker has seen the request."""
    async with Working(backend):
        run_id = await submitted(backend, "ignores_the_polite_word")
        await eventually(lambda: shows(backend, run_id, "ignores_the_polite_word"))
        began = time.monotonic()
        await cancel(backend, Caller(), run_id, None, 3600.0)
        await eventually(lambda: cancel_is_seen(backend, run_id))
        await cancel(backend, Caller(), run_id, None, 0.3)
        run = await ended(backend, run_id)
        assert run.status is RunState.CANCELLED
        assert run.graph == {"ignores_the_polite_word": []}  # a heartbeat told it: the killed host told nothing more
        assert time.monotonic() - began < 60  # the grace, two heartbeats, a second of politeness, and a busy machine


async def test_a_task_that_ends_by_itself_within_the_grace_period_is_waited_for(
    link: Link, backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FLOW-181, FLOW-183: it finished normally, and its run is cancelled."""
    async with Working(backend):
        run_id = await submitted(backend, "waits_for", path=str(tmp_path / "go"))
        await eventually(lambda: shows(backend, run_id, "waits_for"))
        with caplog.at_level(logging.INFO):
            await cancel(backend, Caller(), run_id, "late", 300.0)
            await eventually(lambda: "stopping a run on request" in caplog.text)
        (tmp_path / "go").touch()
        run = await ended(backend, run_id)
        await eventually(lambda: none_left(link, backend.config))
    assert (run.status, run.error, run.cancel_reason) == (RunState.CANCELLED, None, "late")
    assert run.tasks["waits_for"] == "SUCCEEDED"
    assert await dead_letters(link, backend.config) == []  # FLOW-182


async def test_no_new_task_starts(backend: Backend) -> None:
    """FLOW-181, FLOW-23: the first task ends because it has seen the cancel"""
    async with Working(backend):
        run_id = await submitted(backend, "cancelled_between_steps", seconds=300)
        await eventually(lambda: shows(backend, run_id, "watches_for_a_cancel"))
        await cancel(backend, Caller(), run_id, None, 300.0)
        run = await ended(backend, run_id)
    assert run.status is RunState.CANCELLED
    assert run.tasks["watches_for_a_cancel"] == "SUCCEEDED"
    assert run.tasks.get("afterwards") in {None, "CANCELLED"}
    assert run.graph == {"watches_for_a_cancel": [], "afterwards": ["watches_for_a_cancel"]}
    assert "RUNNING" not in run.tasks.values()


async def test_a_cancel_at_any_moment_has_one_end(link: Link, backend: Backend) -> None:
    """FLOW-19, FLOW-20, FLOW-178: before the claim, between claim and begin, while it runs, as it ends."""
    async with Working(backend, slots=2):
        run_ids: list[str] = []

        async def one(number: int) -> bool:
            # Where all of this is quick, short ones are over before anybody asks.
            run_id = await (submitted(backend, "fine") if number % 8 else submitted(backend, "steps", pause=0.3))
            run_ids.append(run_id)
            await asyncio.sleep(number * 0.0005)
            asked = await cancel(backend, Caller(), run_id, None, 0.2)
            return asked.run.status is RunState.CANCELLING

        asked = [await one(number) for number in range(80)]
        runs = [await ended(backend, run_id) for run_id in run_ids]
        await eventually(lambda: none_left(link, backend.config))
    expected = [RunState.CANCELLED if each else RunState.COMPLETED for each in asked]
    assert [run.status for run in runs] == expected
    assert any(asked)
    assert await dead_letters(link, backend.config) == []
