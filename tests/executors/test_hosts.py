"""Hosts: whatever a task does, it costs its own run and nothing else."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from pyoco_server.core.outcome import Cancelled, Completed, DeadReason, Died, Failed, TimedOut
from pyoco_server.executors.host import wire
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.executors.port import Execution
from support.host_scenes import (
    begun,
    children_of_this_process,
    helpers_on_path,
    hosts,
    is_gone,
    is_host,
    next_of,
    outcome_of,
    output_text,
    pool,
    still_works,
    work,
)
from support.waiting import eventually

__all__ = ["helpers_on_path", "hosts", "pool"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("warm_hosts_of_module")]


def _done(body: bytes) -> asyncio.Future[bytes | None]:
    answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    answer.set_result(body)
    return answer


class TestATask:
    @pytest.mark.parametrize(
        ("flow", "how"),
        [
            ("leaves", "it ended with exit status 3"),
            ("crashes", "killed by SIGSEGV"),
            ("is_killed", "killed by SIGKILL"),
        ],
    )
    async def test_that_takes_its_host_with_it_costs_its_own_run(
        self, hosts: HostExecutor, flow: str, how: str
    ) -> None:
        outcome = await outcome_of(hosts, work(flow))
        assert isinstance(outcome, Died)
        assert outcome.how.startswith(how)
        assert outcome.reason is DeadReason.HOST_KILLED
        await still_works(hosts)
        assert hosts.restarts == 1

    async def test_that_fails_in_any_way_keeps_its_host(self, hosts: HostExecutor) -> None:
        """FLOW-327, FLOW-382"""
        host = await outcome_of(hosts, work("who"))
        failures = {
            "fails": "ValueError: on purpose",
            "exits": "SystemExit: 4",
            "interrupts": "KeyboardInterrupt",
            "raises_the_unprintable": "",
            "raises_with_problems": "WithProblems: told",
        }
        for flow, message in failures.items():
            outcome = await outcome_of(hosts, work(flow))
            assert isinstance(outcome, Failed), (flow, outcome)
            assert outcome.reason is DeadReason.EXECUTION_ERROR
            assert message in outcome.message
            assert outcome.message
        await still_works(hosts)
        assert isinstance(host, Completed)
        assert hosts.restarts == 0

    async def test_that_eats_memory_meets_its_limit(self, hosts: HostExecutor) -> None:
        outcome = await outcome_of(hosts, work("eats_memory"))
        assert isinstance(outcome, Failed)
        assert "MemoryError" in outcome.message
        await still_works(hosts)

    async def test_that_returns_the_impossible_is_completed_and_its_record_is_strict_json(
        self, hosts: HostExecutor
    ) -> None:
        """FLOW-345"""
        shown = {
            "nan": {"a": "nan", "b": ["inf", "-inf"]},
            "bad key": "<dict that cannot be shown>",
            "bad value": ["<BadKey that cannot be shown>"],
            "large number": "<int that cannot be shown>",
            "surrogate": "\ud800",
            "ordered": {"a": [1, 2]},
            "bytes": "b'\\xff'",
        }
        for what in (*shown, "deep", "itself", "generator"):
            outcome = await outcome_of(hosts, work("returns", what=what))
            assert isinstance(outcome, Completed), (what, outcome)
            output = outcome.progress.task_records["returns"]["output"]
            json.dumps(output, allow_nan=False)
            assert output == shown.get(what, output)
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_with_a_huge_output_is_completed_and_its_record_is_cut(self, hosts: HostExecutor) -> None:
        """FLOW-359, FLOW-360, RES-4"""
        outcome = await outcome_of(hosts, work("speaks_at_length"))
        assert isinstance(outcome, Completed)
        assert outcome.progress.truncated
        assert outcome.progress.tasks == {"speaks_at_length": "SUCCEEDED"}
        record = outcome.progress.task_records["speaks_at_length"]
        assert (len(record["output"]), record["output_truncated"]) == (1024, True)
        assert outcome.kept is not None
        assert outcome.kept.file is not None
        outcome.kept.file.close()

    @pytest.mark.parametrize("flow", ["prints", "closes_everything"])
    async def test_may_do_what_it_likes_with_the_standard_streams(self, hosts: HostExecutor, flow: str) -> None:
        for each in (flow, "prints"):  # the next run may do so, too
            outcome = await outcome_of(hosts, work(each))
            assert isinstance(outcome, Completed), (each, outcome)
        await still_works(hosts)

    @pytest.mark.parametrize("flow", ["goes_away", "sets_an_alarm"])
    async def test_leaves_to_the_next_run_what_it_found(self, hosts: HostExecutor, flow: str) -> None:
        found = [await outcome_of(hosts, work(each)) for each in ("finds", flow, "finds")]
        assert all(isinstance(outcome, Completed) for outcome in found), found
        assert output_text(found[0], "finds") == output_text(found[2], "finds") == [str(Path.cwd()), 0.0]
        assert hosts.restarts == 0

    async def test_that_writes_on_the_worker_s_own_lines_costs_its_own_run(self, hosts: HostExecutor) -> None:
        outcome = await outcome_of(hosts, work("scribbles"))
        assert isinstance(outcome, Died)
        await still_works(hosts)

    @pytest.mark.parametrize(
        "text", ["{}", "[]", "no JSON", '{"end":"what","tasks":{},"records":{},"truncated":false}']
    )
    async def test_that_forges_an_answer_nobody_can_read_costs_its_own_run(
        self, hosts: HostExecutor, text: str
    ) -> None:
        outcome = await outcome_of(hosts, work("forges", text=text))
        assert isinstance(outcome, Died)
        await still_works(hosts)

    @pytest.mark.parametrize("text", ["junk", "[]", "{}", '{"end": "completed", "tasks": 1}', "[" * 65_789, "NaN"])
    async def test_that_forges_its_own_answer_costs_its_own_run(self, hosts: HostExecutor, text: str) -> None:
        """What only looks like the answer to this very run is none, and its host gets no other run."""
        number = wire.number(next_of(hosts).runs + 1).decode()
        outcome = await outcome_of(hosts, work("forges", text=number + wire.MORE.decode() + text))
        assert isinstance(outcome, Died)
        assert "it sent an unexpected or invalid message" in outcome.how
        assert hosts.restarts == 1
        await still_works(hosts)

    async def test_that_forges_its_progress_costs_its_own_run(
        self, hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = next_of(hosts)
        execution = await begun(hosts, work("sleeps"))
        monkeypatch.setattr(host._control_reader, "next", lambda: _done(b'{"tasks": [], "records": {}}'))
        assert await execution.progress() is None
        outcome = await execution.outcome()
        assert isinstance(outcome, Died)
        assert "it sent an unexpected or invalid message" in outcome.how
        await still_works(hosts)

    async def test_that_forges_an_answer_does_not_answer_for_the_next_run(self, hosts: HostExecutor) -> None:
        forged = json.dumps({"end": "completed", "tasks": {"forged": "SUCCEEDED"}, "records": {}, "truncated": False})
        await outcome_of(hosts, work("forges", text=forged))
        for _ in range(3):
            outcome = await outcome_of(hosts, work("fine"))
            assert isinstance(outcome, Completed)
            assert set(outcome.progress.tasks) == {"fine"}

    @pytest.mark.parametrize("fork", [False, True], ids=["started", "forked"])
    async def test_that_dies_takes_with_it_what_it_has_started(
        self, hosts: HostExecutor, tmp_path: Path, fork: bool
    ) -> None:
        """What it has started holds the host's sockets open; the end of the host is seen all the same."""
        note = tmp_path / "pid"
        outcome = await outcome_of(hosts, work("dies_with_others_left", path=str(note), fork=fork))
        assert isinstance(outcome, Died)
        left = int(note.read_text().split()[0])
        await eventually(lambda: is_gone(left))
        await still_works(hosts)


class TestARunThatTakesTooLong:
    @pytest.mark.parametrize("flow", ["spins", "sleeps", "ignores_the_polite_word"])
    async def test_is_stopped_with_everything_it_has_started(
        self, hosts: HostExecutor, monkeypatch: pytest.MonkeyPatch, flow: str
    ) -> None:
        before, host = children_of_this_process(), next_of(hosts)
        monkeypatch.setattr(hosts, "_timeout", 0.5)
        began = time.monotonic()
        outcome = await outcome_of(hosts, work(flow))
        assert outcome == TimedOut(seconds=0.5)
        assert outcome.reason is DeadReason.TIMEOUT
        assert time.monotonic() - began < 50  # by itself none ends within a minute
        monkeypatch.undo()  # also on a busy machine
        await still_works(hosts)
        assert hosts.restarts == 1
        await eventually(lambda: is_gone(host.pid))
        await eventually(lambda: {pid for pid in children_of_this_process() if not is_host(pid)} <= before)


class TestACancelledRun:
    async def test_that_looks_stops_by_itself(self, hosts: HostExecutor) -> None:
        """FLOW-180, FLOW-181"""
        execution = await begun(hosts, work("watches_for_a_cancel"))
        await eventually(lambda: _runs(execution, "watches_for_a_cancel"))
        execution.ask_cancel()
        execution.ask_cancel()
        async with asyncio.timeout(50):
            outcome = await execution.outcome()
        assert isinstance(outcome, Cancelled)
        assert outcome.progress.task_records["watches_for_a_cancel"]["output"] == "stopped"
        await still_works(hosts)
        assert hosts.restarts == 0

    async def test_that_does_not_look_is_killed(self, hosts: HostExecutor) -> None:
        """DESIGN 9.3"""
        execution = await begun(hosts, work("spins"))
        await eventually(lambda: _runs(execution, "spins"))
        execution.ask_cancel()
        assert execution.kill()
        async with asyncio.timeout(100):
            outcome = await execution.outcome()
        assert isinstance(outcome, Cancelled)
        assert (outcome.error or "").startswith("ERR-PYOCO-0021")
        await still_works(hosts)

    async def test_that_is_over_gives_its_fate_to_nobody(self, hosts: HostExecutor) -> None:
        """A cancel or a kill that comes too late must not meet the next run of the same host."""
        over = await begun(hosts, work("who"))
        assert isinstance(await over.outcome(), Completed)
        for _ in range(4):  # on each of the two hosts
            following = await begun(hosts, work("watches_for_a_cancel", seconds=0.3))
            over.ask_cancel()
            over.kill()
            assert await over.progress() is None
            assert output_text(await following.outcome(), "watches_for_a_cancel") == "not asked"
        assert hosts.restarts == 0


async def _runs(execution: Execution, task: str) -> bool:
    progress = await execution.progress()
    return progress is not None and progress.tasks.get(task) == "RUNNING"
