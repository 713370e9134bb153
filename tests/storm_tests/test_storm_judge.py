"""The judge himself: who could not look says so; a no after a yes, a job given up, a crash, a leftover are heard of."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.priced.run import PricedRun
from pyoco_server.core.states.priced import Status
from pyoco_server.grid_client import DoorUnreachable, GridClient, JobRequest
from pyoco_server.ports.nats.link import Link
from storm import readers as readers_module
from storm import recorder as recorder_module
from storm.book import Book, Kind
from storm.frames import _run
from storm.load import Answer, Load
from storm.oracle import Judgement, _ends, _row_problems, bad_exits, children_left
from storm.port import Role, Site
from storm.readers import Readers
from storm.recorder import Recorder
from storm.site import StormProcess, StormSite, Tenant
from storm.storm import RECOVERY_SECONDS_MAX, Storm
from storm.supervisor import Supervisor
from storm_tests.test_storm_recorder import whole_history
from support.waiting import eventually

RICH = Tenant("rich", "key")
DONE = frozenset({"COMPLETED"})


class _Dice(random.Random):
    """Always asks once more, and never waits."""

    def random(self) -> float:
        return 0.95

    def uniform(self, a: float, b: float) -> float:
        return 0.0


async def _insisted(*answers: Answer, kind: Kind = Kind.PACK) -> Book:
    book, left = Book(), list(answers)
    load = Load(StormSite(nodes=1, processes=[], addresses=["here"]), 1, book)

    async def send(address: str, key: str) -> Answer:
        return left.pop(0)

    with contextlib.suppress(IndexError):
        await load._insist(send, RICH, kind, "k", DONE, _Dice())
    return book


YES: Answer = (202, {"run_id": "r1"})
LATER: Answer = (503, {"reason_code": "DEPENDENCY_UNAVAILABLE"})
BUSY: Answer = (409, {"reason_code": "IDEMPOTENCY_IN_PROGRESS"})
POOR: Answer = (402, {"reason_code": "BUDGET_DRAINED"})


@pytest.mark.parametrize("no", [POOR, BUSY, (409, {"err_id": "ERR"}), (404, {})])
async def test_a_no_after_a_yes_under_the_same_key_is_complained_about(no: Answer) -> None:
    assert (await _insisted(YES, LATER, None, YES)).wrong == []
    assert len((await _insisted(YES, LATER, no)).wrong) == 1


async def test_what_was_refused_for_good_is_kept_unless_a_try_may_still_be_on_its_way() -> None:
    assert (await _insisted(LATER, BUSY, POOR)).denied == {("rich", "k")}
    assert (await _insisted(None, POOR)).denied == set()


async def test_a_conflict_of_a_flow_is_never_a_matter_of_time() -> None:
    assert len((await _insisted((409, {"err_id": "ERR"}), YES, kind=Kind.FLOW)).wrong) == 1


@dataclass
class _Row:
    status: Status
    reason_code: str | None = None
    used_usd_micros: int = 0
    run_id: str = "r1"
    tenant_id: str = "rich"
    idempotency_key: str | None = "k"
    error_detail: str | None = None


@pytest.mark.parametrize(
    ("row", "count"),
    [
        (_Row(Status.FAILED, "WORKER_TIMEOUT", 1), 0),
        (_Row(Status.FAILED, "PACK_FAILED", 1), 1),
        (_Row(Status.FAILED, None), 1),
        (_Row(Status.COMPLETED, None, 1), 0),
        (_Row(Status.COMPLETED, None, 1, idempotency_key="no"), 1),
        (_Row(Status.FAILED, "WORKER_TIMEOUT", 1, idempotency_key="no"), 1),
    ],
    ids=repr,
)
def test_a_failure_without_a_fault_and_a_charge_after_a_no_are_found(row: _Row, count: int) -> None:
    assert len(_row_problems([cast(PricedRun, row)], {("rich", "no")})) == count


def test_a_kind_of_which_nothing_completes_and_a_run_whose_end_nobody_saw_are_found(tmp_path: Path) -> None:
    book, site = Book(), StormSite(nodes=1, processes=[], folder=tmp_path)
    for run_id, kind in (("r1", Kind.PROGRAM), ("r2", Kind.PACK), ("r3", Kind.PROGRAM)):
        book.accept(run_id, kind, "rich", run_id, {"COMPLETED", "FAILED"})
    book.saw("r1", "COMPLETED", "read", 0.0)
    book.saw("r2", "FAILED", "priced", 0.0)
    found = _ends(site, book, Judgement())
    assert len(found) == 3, found
    assert {"no flow has completed", "no pack has completed"} < set(found)


class _Client:
    def __init__(self, outcome: Any) -> None:
        self._outcome = outcome

    async def run(self, ask: JobRequest) -> Any:
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome


async def test_a_job_that_the_client_of_the_door_gives_up_is_complained_about() -> None:
    book = Book()
    ask = JobRequest(exec_name="sleepn", job_id="00000000-0000-4000-8000-000000000001")
    await _run(cast(GridClient, _Client(DoorUnreachable("gone"))), book, ask)
    assert len(book.wrong) == 1


async def test_a_result_without_an_ack_is_a_yes_and_is_judged() -> None:
    class _Result:
        class status:  # noqa: N801
            value = "FAILED"

    book = Book()
    ask = JobRequest(exec_name="sleepn", job_id="00000000-0000-4000-8000-000000000001")
    await _run(cast(GridClient, _Client(_Result)), book, ask)
    (run,) = book.runs.values()
    assert (run.end, run.wanted) == ("FAILED", {"COMPLETED"})


class _Watched:
    """A client whose watch tells something, and breaks."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    error: Exception = httpx.ReadError("cut")

    async def __aenter__(self) -> _Watched:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def watch_run(self, run_id: str, timeout_sec: float) -> AsyncIterator[dict[str, Any]]:
        for status in ("RUNNING", "COMPLETED"):
            yield {"snapshot": {"status": status}}
        raise self.error


def _status(code: int) -> Exception:
    request = httpx.Request("GET", "http://here")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(code, request=request))


@pytest.mark.parametrize(
    ("error", "complaints"),
    [(httpx.ReadError("cut"), 0), (TimeoutError(), 0), (_status(503), 0), (_status(404), 1), (_status(500), 1)],
    ids=repr,
)
async def test_what_a_watch_told_before_it_broke_counts_and_a_wrong_status_is_heard_of(
    error: Exception, complaints: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers_module, "AsyncPyocoHttpClient", _Watched)
    monkeypatch.setattr(_Watched, "error", error)
    book = Book()
    run = book.accept("r1", Kind.FLOW, "rich", "k", DONE)
    readers = Readers(StormSite(nodes=1, processes=[]), book, cast(Recorder, None), 1)
    await readers._watch_one(RICH, run, "here")
    assert (run.ends, len(book.wrong)) == ({"COMPLETED": "watch"}, complaints)


async def test_a_storm_that_strikes_nothing_is_no_storm_and_a_site_that_never_worked_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, book = StormSite(nodes=1, processes=[]), Book()

    async def works(gust: Any, since: float) -> None: ...

    storm = Storm(site, book, [], 1, lambda line: None)
    monkeypatch.setattr(storm, "_recover", works)
    await storm.blow(0.01)
    assert [problem for gust in storm.gusts for problem in gust.problems]
    monkeypatch.setattr("storm.storm.RECOVERY_SECONDS_MAX", 0.01)
    assert RECOVERY_SECONDS_MAX > 1
    calm = Storm(site, book, [], 1, lambda line: None)
    await calm.blow(10.0)
    assert "no recovery" in calm.gusts[0].problems[0]


async def test_a_recorder_that_has_ended_or_stays_behind_is_told(
    link: Link, config: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await whole_history(link, config)
    site = Site(nodes=1, processes=[], nats_url=config.nats_url)
    async with Recorder(site, config.runs_kv_bucket) as recorder:
        await recorder.history()
        await link.store(f"$KV.{config.runs_kv_bucket}.r1", b"{}")  # no record at all
        assert recorder._task is not None
        await asyncio.wait({recorder._task}, timeout=100.0)
        monkeypatch.setattr(recorder_module, "_facts", lambda value: None)
        with pytest.raises(AssertionError, match="has ended"):
            await recorder.history()


def _process(name: str, code: str, folder: Path) -> StormProcess:
    own = folder / name
    own.mkdir()
    process = StormProcess(name, Role.WORKER, [sys.executable, "-c", code], {}, folder)
    process.cwd = own
    return process


async def test_a_crash_is_a_violation_and_our_own_signals_are_none(tmp_path: Path) -> None:
    crashes = _process("crashes", "import os; os._exit(3)", tmp_path)
    tells = _process("tells", "raise SystemExit(1)", tmp_path)
    killed = _process("killed", "import time; time.sleep(600)", tmp_path)
    all_three = [crashes, tells, killed]
    for each in all_three:
        each.start()
    async with Supervisor(all_three):
        await killed.kill()
        await eventually(lambda: bool(crashes.exits and tells.exits))
        await eventually(lambda: killed.is_alive)
    assert {each.split()[0] for each in bad_exits(all_three)} == {"crashes"}
    assert killed.exits == []
    killed.end(signal.SIGSEGV)
    killed.start()
    assert killed.exits == [-signal.SIGSEGV]
    for each in all_three:
        each.end()


async def test_a_host_of_an_earlier_life_is_found_wherever_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storm.oracle._END_SECONDS", 0.2)
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    worker = _process("worker", code, tmp_path)
    worker.start()
    await eventually(lambda: not worker.is_alive)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        (left,) = await children_left([worker], tmp_path)
        assert "left behind" in left
        assert psutil.pid_exists(other.pid)
        await eventually(lambda: _none_left(worker, tmp_path))
    finally:
        other.kill()
        other.wait()


async def _none_left(worker: StormProcess, folder: Path) -> bool:
    return await children_left([worker], folder) == []
