"""Handles of runs, on a gateway and a worker in memory."""

from __future__ import annotations

import asyncio
import html
import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest

from pyoco_server import (
    AsyncRunHandle,
    LogLine,
    PyocoError,
    RunCancelled,
    RunFailed,
    RunHandle,
    RunTimeout,
    aio,
    as_completed,
    gather,
)
from pyoco_server.app.failures import RequestFailed
from support.app_flows import (
    Order,
    Refused,
    Size,
    app,
    both,
    fetched,
    large,
    measure,
    measured_twice,
    next_year,
    refused,
)
from support.sites import Site

SECONDS = 100.0
DUE = datetime(2026, 5, 6, 7, 8, 9)  # noqa: DTZ001  (naive instants stay naive)
ORDER = Order(1, DUE, [Decimal("1.10"), Decimal(2)])


class TestOneRun:
    def test_a_value_comes_back_with_its_type(self, site: Site) -> None:
        """APP-5, APP-8, RES-20: dataclasses, decimals, dates, enum members and bytes, both ways."""
        runs: list[RunHandle[Any]] = [
            measure.submit(url="abc"),
            measured_twice.submit("abc"),
            fetched.submit("abc"),
            next_year.submit(ORDER),
            both.submit(ORDER, size=Size.SMALL),
        ]
        values = [run.result(SECONDS) for run in runs]
        later = Order(1, DUE.replace(year=2027), ORDER.prices)
        assert values[:4] == [3, "6", b"abc", later]
        assert values[4]["total"] == {"small": Decimal("3.10")}
        assert runs[0].result() is values[0]
        assert runs[0].status == "COMPLETED"
        snapshot = runs[3].snapshot()
        assert snapshot["params"]["order"]["due"] == {"$pyoco": "datetime", "value": "2026-05-06T07:08:09"}

    def test_a_large_value_is_fetched(self, site: Site) -> None:
        """APP-8"""
        assert large.submit(100_000).result(SECONDS) == b"\x00\xff" * 100_000

    def test_a_failure_is_raised_with_its_cause(self, site: Site) -> None:
        """APP-8"""
        run = refused.submit(code=5)
        with pytest.raises(RunFailed) as raised:
            run.result(SECONDS)
        error = raised.value
        assert (error.run_id, error.task, error.reason) == (run.id, "refuse", "execution_error")
        assert error.remote_traceback is not None
        assert "raise Refused" in error.remote_traceback
        assert isinstance(error.__cause__, Refused)
        assert error.__cause__.code == 5
        assert "https://" not in str(error)

    def test_params_are_checked_by_the_worker(self, site: Site) -> None:
        """APP-12: another client has sent them."""
        run_id = site.submitted("measure", params={"url": 5})
        with pytest.raises(RunFailed, match="param 'url' of flow measure: Expected `str`, got `int`") as raised:
            app.run(run_id).result(SECONDS)
        assert raised.value.reason == "invalid_job"

    def test_a_run_can_be_waited_for_watched_and_cancelled(self, site: Site) -> None:
        """APP-7, APP-8: a time limit is the caller's alone."""
        site.rest()
        run = measure.options(tags=["held"]).submit("abc")
        with pytest.raises(RunTimeout) as raised:
            run.result(timeout=0)
        assert isinstance(raised.value, TimeoutError)
        assert isinstance(raised.value, PyocoError)
        assert (run.status, run.snapshot()["tags"]) == ("PENDING", ["held"])
        again = run.rerun(params={"url": "abcd"})
        assert again.snapshot()["params"] == {"url": "abcd"}
        run.cancel("not needed", now=True)
        site.wake()
        assert again.result(SECONDS) == 4
        with pytest.raises(RunCancelled) as cancelled:
            run.result(SECONDS)
        assert cancelled.value.reason == "not needed"
        states = [state["status"] for state in run.watch()]
        assert states == ["CANCELLED"]
        with pytest.raises(TypeError, match="no option 'flow_name'"):
            run.rerun(flow_name="other")

    def test_lines_are_read(self, site: Site) -> None:
        """APP-7, LOG-8"""
        run = refused.submit()
        line = next(line for line in run.logs(follow=True) if line.text == "refusing")
        assert isinstance(line, LogLine)
        assert (line.stream, line["task"], line.exc) == ("stderr", "refuse", None)
        assert json.loads(json.dumps(line))["try"] == line["try"] == 1
        assert line in list(run.logs(task="refuse"))

    def test_a_card_shows_the_state_and_never_fails(self, site: Site) -> None:
        """APP-7"""
        run = refused.submit()
        run.wait(SECONDS)
        shown = run._repr_html_()
        assert "FAILED" in shown
        assert html.escape(run.id) in shown
        assert "unknown" in app.run("no-such-run")._repr_html_()

    def test_refusals_are_the_servers_words(self, site: Site) -> None:
        """APP-8"""
        handle = app.run("00000000-0000-4000-8000-000000000000")
        with pytest.raises(RequestFailed, match="ERR-PYOCO-0005: run 0") as raised:
            handle.result(SECONDS)
        assert (raised.value.err_id, raised.value.status_code) == ("ERR-PYOCO-0005", 404)
        assert "mozilla" not in str(raised.value)
        with pytest.raises(RequestFailed, match=r"body\.delay"):
            measure.options(delay=-1).submit("x")

    def test_the_same_key_is_the_same_run(self, site: Site) -> None:
        """APP-5"""
        flow = measure.options(idempotency_key="only-once")
        assert flow.submit("x").id == flow.submit("x").id


class TestManyRuns:
    def test_results_come_in_order_and_handles_as_they_end(self, site: Site) -> None:
        """APP-6"""
        texts = ["a" * number for number in range(30)]
        runs = measure.map([{"url": text} for text in texts])
        assert len(runs) == 30
        assert runs.results(SECONDS) == list(range(30))
        assert {run.id for run in runs.as_completed(SECONDS)} == {run.id for run in runs}
        assert runs[3].result() == 3
        site.rest()
        later = measure.map([{"url": "x"}, {"url": "y"}])
        with pytest.raises(RunTimeout):
            list(as_completed([runs[0], *later], timeout=0))
        later.cancel("not needed")
        site.wake()
        outcomes: list[Any] = later.results(SECONDS, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RunCancelled, RunCancelled]
        with pytest.raises(RunCancelled):
            gather(runs[0], *later, timeout=SECONDS)

    def test_refused_items_do_not_lose_the_others(self, site: Site) -> None:
        """APP-6"""
        flow = measure.options(tag="a.b")
        with pytest.raises(RequestFailed, match="item 0") as raised:
            flow.map([{"url": "x"}, {"url": "y"}])
        assert raised.value.accepted is not None
        assert len(raised.value.accepted) == 0


class TestWithAnEventLoop:
    async def test_everything_is_a_coroutine(self, site: Site) -> None:
        """APP-1, APP-6, APP-7"""
        runs = [await measure.asubmit("a" * number) for number in range(3)]
        assert isinstance(runs[0], AsyncRunHandle)
        async with asyncio.timeout(SECONDS):
            ended = [run.id async for run in aio.as_completed(runs)]
            assert await aio.gather(*runs) == [0, 1, 2]
        assert sorted(ended) == sorted(run.id for run in runs)
        assert await runs[0].status() == "COMPLETED"
        run = await refused.asubmit()
        with pytest.raises(RunFailed) as raised:
            await run.result(SECONDS)
        assert isinstance(raised.value.__cause__, Refused)
        assert [state["status"] async for state in run.watch()] == ["FAILED"]
        again = await runs[1].rerun(delay="1h")
        with pytest.raises(RunTimeout):
            await again.wait(0)
        again = await (await measure.asubmit("x")).rerun(params={"url": "xyz"})
        assert await again.result(SECONDS) == 3
        site.rest()
        again = await measure.asubmit("x")
        await again.cancel(now=True)
        site.wake()
        with pytest.raises(RunCancelled):
            await again.result(SECONDS)
        assert await (await large.asubmit(50_000)).result(SECONDS) == b"\x00\xff" * 50_000
        assert all([isinstance(line, LogLine) async for line in runs[0].logs()])
        with pytest.raises(RequestFailed):
            await measure.options(delay=-1).asubmit("x")
        await app.aclose()


def test_a_server_that_is_not_there_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """APP-8"""

    def refuse(*_: object, **__: object) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr("pyoco_server.client.sync.PyocoHttpClient.get_run", refuse)
    with pytest.raises(RequestFailed, match="the server did not answer: refused") as raised:
        _ = app.run("1").status
    assert raised.value.err_id is None
