"""`POST /runs/cancel` while runs change their state."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pyoco_server.actions import cancel_many as action
from pyoco_server.actions.cancel_many import RunSelection, cancel_many
from pyoco_server.actions.claim import FlowAttempt, claim_run
from pyoco_server.actions.finish import Ended, finish
from pyoco_server.actions.submit import submit as submit_run
from pyoco_server.core.job import job_of
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Submission
from pyoco_server.core.states import RunState
from pyoco_server.errors import Unavailable
from pyoco_server.ports.index.port import RunFilter
from pyoco_server.worker import PyocoNatsWorker
from support.backends import ANNA
from support.cancel_many import backend_with, status_of, stop
from support.gateways import Gateway, claimed, ended, stored, submit
from support.waiting import eventually


class TestWhileRunsMoveOn:
    async def test_a_run_that_has_left_the_wanted_state_is_left_alone(self, gateway: Gateway) -> None:
        """`status: PENDING` must not kill what has begun since the list was made."""
        waits, begun, done = [await submit(gateway) for _ in range(3)]
        await gateway.app.state.gateway.settled()
        page = await gateway.backend.index.page(RunFilter(), 50)
        await claimed(gateway, begun)
        await ended(gateway, done, Completed())
        index = _Frozen(gateway.backend.index, page)
        backend = backend_with(gateway, index=index)
        counts = await cancel_many(backend, Caller(), RunSelection(wanted=RunFilter(status="PENDING"), limit=10), None)
        assert (counts.asked, counts.already_ended, counts.matched) == (1, 1, 2)
        assert await status_of(gateway, waits) == "CANCELLING"
        assert await status_of(gateway, begun) == "RUNNING"
        assert await status_of(gateway, done) == "COMPLETED"

    async def test_no_run_ends_twice_and_none_is_counted_twice(self, gateway: Gateway) -> None:
        """FLOW-19, FLOW-178: workers begin and end runs while they are being cancelled."""
        run_ids = [await submit(gateway) for _ in range(60)]
        ends: list[str] = []

        async def work(run_id: str) -> None:
            found = await stored(gateway, run_id)
            ask = Submission(flow_name="hello", tag="default", tags=("default",), params={})
            job = job_of(found.run, ask, found.revision)
            held = await claim_run(gateway.backend, job, ANNA, first_delivery=True)
            if isinstance(held, FlowAttempt):
                result = await finish(gateway.backend, held, Completed())
                assert isinstance(result, Ended)
                ends.append(result.run.status)

        counts, *_ = await asyncio.gather(stop(gateway, all=True), *(work(run_id) for run_id in run_ids[::2]))
        assert counts["matched"] <= 60
        statuses = [await status_of(gateway, run_id) for run_id in run_ids]
        assert set(statuses) <= {"CANCELLING", "CANCELLED", "COMPLETED"}
        assert statuses.count("COMPLETED") == ends.count(RunState.COMPLETED)
        assert counts["asked"] == statuses.count("CANCELLING") + statuses.count("CANCELLED")

    async def test_one_that_fails_is_counted_and_does_not_stop_the_others(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad, *good = [await submit(gateway) for _ in range(3)]
        runs = gateway.backend.runs

        class Failing:
            def __getattr__(self, name: str) -> Any:
                return getattr(runs, name)

            async def find(self, run_id: str) -> Any:
                if run_id == bad:
                    raise Unavailable("injected")
                return await runs.find(run_id)

        backend = backend_with(gateway, runs=Failing())
        await gateway.app.state.gateway.settled()
        counts = await cancel_many(backend, Caller(), RunSelection(limit=10), None)
        assert (counts.failed, counts.asked, counts.matched) == (1, 2, 3)
        assert "cancel request failed" in caplog.text
        assert [await status_of(gateway, run_id) for run_id in good] == ["CANCELLING"] * 2

    @pytest.mark.steady_time
    async def test_it_takes_no_longer_than_it_may(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was under way then has failed, for all that is known; what was not is left for the next request."""
        monkeypatch.setattr(action, "_AT_ONCE", 2)
        for _ in range(3):
            await submit(gateway)
        runs = gateway.backend.runs

        class Hanging:
            def __getattr__(self, name: str) -> Any:
                return getattr(runs, name)

            async def find(self, run_id: str) -> Any:
                await asyncio.sleep(600)

        await gateway.app.state.gateway.settled()
        began = time.monotonic()
        backend = backend_with(gateway, runs=Hanging())
        counts = await cancel_many(backend, Caller(), RunSelection(limit=10), None, seconds=0.3)
        assert time.monotonic() - began < 200
        assert (counts.more, counts.asked, counts.failed, counts.matched) == (True, 0, 2, 2)


class _Frozen:
    """An index that stands still."""

    def __init__(self, index: Any, page: Any) -> None:
        self._index, self._page = index, page

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    async def page(self, *_: Any) -> Any:
        return self._page


async def test_hundreds_of_waiting_runs_are_stopped_at_once_and_none_of_them_ever_starts(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOW-184: more of them than a page of the index holds"""
    monkeypatch.setattr(cancel_many, "__defaults__", (200.0,))  # a busy machine needs longer
    ask = Submission(flow_name="hello", tag="default", tags=("default",), params={})
    await asyncio.gather(*(submit_run(gateway.backend, Caller(), ask) for _ in range(600)))

    async def counts_are(**wanted: int) -> bool:
        return (await gateway.backend.index.counts()).by_status == wanted

    await eventually(lambda: counts_are(PENDING=600))
    assert await stop(gateway, status="PENDING", limit=10_000) == {"matched": 600, "asked": 600}
    started: list[str] = []

    def resolve(name: str) -> Any:
        started.append(name)
        raise KeyError(name)

    worker = await PyocoNatsWorker.connect(gateway.config, resolve)
    last = await submit(gateway, flow_name="last")
    while await worker.run_once(1.0) != last:
        pass
    await worker.close()
    assert started == ["last"]
    await eventually(lambda: counts_are(CANCELLED=600, FAILED=1))
