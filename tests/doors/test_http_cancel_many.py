"""`POST /runs/cancel`: which runs it stops, which it must not, and how it counts them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions import cancel_many as action
from pyoco_server.actions.cancel_many import RunSelection, cancel_many
from pyoco_server.core.api_key import make_key
from pyoco_server.core.flow_moves import claim
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Caller, Run
from pyoco_server.errors import RunNotFound
from pyoco_server.ports.nats.link import Link
from support.backends import ANNA
from support.cancel_many import ZEROS, backend_with, status_of, stop
from support.doors_support import check_refusal
from support.gateways import Gateway, claimed, ended, fresh_gateway, ids, stored, submit, submit_yaml
from support.grid.shown_programs import a_program
from support.waiting import eventually


class TestAFilter:
    async def test_stops_what_fits_and_nothing_else(self, gateway: Gateway) -> None:
        """FLOW-16, FLOW-99"""
        cases: list[tuple[dict[str, Any], str]] = [
            ({"all": True}, "abcde"),
            ({"flow": "hello"}, "acde"),
            ({"flow": "other"}, "b"),
            ({"flow": "nothing"}, ""),
            ({"tag": "gpu"}, "bc"),
            ({"tag": "label"}, "d"),
            ({"status": "PENDING"}, "abcd"),
            ({"status": "RUNNING"}, "e"),
            ({"kind": "flow"}, "abcde"),
            ({"kind": "exec"}, ""),
            ({"tag": "gpu", "flow": "hello"}, "c"),
            ({"tag": "gpu", "all": True}, "bc"),
            ({"status": "RUNNING", "tag": "gpu"}, ""),
        ]
        ended_before: list[str] = []
        for body, hit in cases:
            runs = {
                "a": await submit(gateway),
                "b": await submit(gateway, flow_name="other", tag="gpu"),
                "c": await submit(gateway, tag="gpu"),
                "d": await submit(gateway, tags=["label"]),
                "e": await submit(gateway),
            }
            await claimed(gateway, runs["e"])
            done = await submit(gateway, tag="gpu")
            await ended(gateway, done, Completed())
            ended_before.append(done)
            await eventually(partial(_lists, gateway, "RUNNING", [runs["e"]]))
            await eventually(partial(_lists, gateway, "COMPLETED", ended_before))
            counts = await stop(gateway, **body)
            assert counts == ({"matched": len(hit), "asked": len(hit)} if hit else {}), body
            found = {name: await status_of(gateway, run_id) for name, run_id in runs.items()}
            before = dict.fromkeys("abcd", "PENDING") | {"e": "RUNNING"}
            assert found == {name: "CANCELLING" if name in hit else before[name] for name in runs}, body
            assert await status_of(gateway, done) == "COMPLETED", body
            await stop(gateway, all=True)  # none of them is left for the next case

    async def test_by_flow_yaml_stops_its_runs(self, gateway: Gateway) -> None:
        one = (await submit_yaml(gateway)).json()["run_id"]
        other = (await submit_yaml(gateway, "flow:\n  graph: a >> b\n")).json()["run_id"]
        sha256 = (await stored(gateway, one)).run.workflow_yaml_sha256
        assert sha256 is not None
        assert await stop(gateway, workflow_yaml_sha256=sha256.upper()) == {"matched": 1, "asked": 1}
        assert (await status_of(gateway, one), await status_of(gateway, other)) == ("CANCELLING", "PENDING")

    async def test_by_time_stops_what_is_older(self, gateway: Gateway) -> None:
        old = await submit(gateway)
        await asyncio.sleep(0.02)
        moment = time.time()
        await asyncio.sleep(0.02)
        young = await submit(gateway)
        assert await stop(gateway, submitted_before=moment) == {"matched": 1, "asked": 1}
        assert (await status_of(gateway, old), await status_of(gateway, young)) == ("CANCELLING", "PENDING")

    async def test_reads_no_line_of_those_that_were_submitted_later(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many they are, the earlier ones are reached in time. Those that have changed since are, too: a run
        that is under way, and a job that was put back."""
        monkeypatch.setattr(action, "_PAGE", 2)
        moment = time.time()
        waits = [_submitted(moment - n) for n in range(1, 4)]
        runs = claim(_submitted(moment - 9), ANNA, "attempt-1", moment + 9)
        again = a_program(submitted_at=moment - 9, updated_at=moment + 9)
        later = [_submitted(moment + n) for n in range(20)]
        for run in (*waits, again, *later, runs):
            await gateway.backend.runs.create(run)
        await eventually(partial(_lists, gateway, "RUNNING", [runs.run_id]))
        index = _Counting(gateway.backend.index)
        asked: list[str] = []

        async def cancel_if(_: Any, __: Any, run_id: str, *___: Any) -> Any:
            asked.append(run_id)
            raise RunNotFound

        monkeypatch.setattr(action, "cancel_if", cancel_if)
        counts = await cancel_many(
            backend_with(gateway, index=index), Caller(), RunSelection(submitted_before=moment, limit=100), None
        )
        meant = [run.run_id for run in (*waits, again, runs)]
        assert (sorted(asked), counts.more) == (sorted(meant), False)
        assert sorted(index.shown) == sorted(meant)

    async def test_keeps_the_reason_and_the_first_request(self, gateway: Gateway) -> None:
        """FLOW-115, FLOW-177"""
        first, second = await submit(gateway), await submit(gateway)
        await gateway.client.post(f"/runs/{first}/cancel", json={"reason": "first"})
        assert await stop(gateway, flow="hello", reason="理由") == {"matched": 1, "asked": 1}
        assert (await stored(gateway, first)).run.cancel_reason == "first"
        assert (await stored(gateway, second)).run.cancel_reason == "理由"

    async def test_means_runs_that_were_submitted_a_moment_ago_and_shows_in_the_next_list(
        self, gateway: Gateway
    ) -> None:
        """Read your writes, in and out."""
        for _ in range(10):
            run_id = await submit(gateway, tag="mine")
            assert await stop(gateway, tag="mine") == {"matched": 1, "asked": 1}
            assert run_id in await ids(gateway, status="CANCELLING")

    async def test_stops_at_its_limit_and_says_that_there_is_more(self, gateway: Gateway) -> None:
        for _ in range(5):
            await submit(gateway)
        assert await stop(gateway, flow="hello", limit=2) == {"matched": 2, "asked": 2, "more": True}
        assert await stop(gateway, flow="hello", limit=2) == {"matched": 2, "asked": 2, "more": True}
        assert await stop(gateway, flow="hello", limit=2) == {"matched": 1, "asked": 1}
        assert await stop(gateway, flow="hello", limit=2) == {}

    async def test_exactly_at_its_limit_says_that_there_is_no_more(self, gateway: Gateway) -> None:
        for _ in range(2):
            await submit(gateway)
        assert await stop(gateway, all=True, limit=2) == {"matched": 2, "asked": 2}

    async def test_walks_over_many_pages_of_both_states(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(action, "_PAGE", 3)
        run_ids = [await submit(gateway) for _ in range(11)]
        for run_id in run_ids[:4]:
            await claimed(gateway, run_id)
        await eventually(lambda: _lists(gateway, "RUNNING", run_ids[:4]))
        assert await stop(gateway, all=True, limit=9) == {"matched": 9, "asked": 9, "more": True}
        assert await stop(gateway, all=True) == {"matched": 2, "asked": 2}


async def _lists(gateway: Gateway, status: str, run_ids: list[str]) -> bool:
    return sorted(await ids(gateway, status=status)) == sorted(run_ids)


class TestAListOfIds:
    async def test_is_counted_one_by_one(self, gateway: Gateway) -> None:
        """FLOW-176, FLOW-177"""
        fresh, running, asked, done = [await submit(gateway) for _ in range(4)]
        await claimed(gateway, running)
        await gateway.client.post(f"/runs/{asked}/cancel")
        await ended(gateway, done, Completed())
        others = [str(uuid.uuid4()), "no-id", ""]
        counts = await stop(gateway, run_ids=[fresh, running, asked, done, fresh, *others])
        assert counts == {"matched": 4, "asked": 2, "already_cancelling": 1, "already_ended": 1, "not_found": 3}
        assert await status_of(gateway, done) == "COMPLETED"

    async def test_that_is_empty_stops_nothing(self, gateway: Gateway) -> None:
        run_id = await submit(gateway)
        assert await stop(gateway, run_ids=[]) == {}
        assert await status_of(gateway, run_id) == "PENDING"

    async def test_has_a_limit_too(self, gateway: Gateway) -> None:
        run_ids = [await submit(gateway) for _ in range(3)]
        assert await stop(gateway, run_ids=run_ids, limit=2) == {"matched": 2, "asked": 2, "more": True}
        assert await status_of(gateway, run_ids[2]) == "PENDING"


class TestABadRequest:
    async def test_is_refused_and_stops_nothing(self, gateway: Gateway) -> None:
        cases: list[tuple[bytes, list[str | int]]] = [
            (b"", ["body"]),
            (b"{", ["body"]),
            (b"[]", ["body"]),
            (b"null", ["body"]),
            (b"{}", ["body"]),
            (b'{"reason": "all of them"}', ["body"]),
            (b'{"limit": 5}', ["body"]),
            (b'{"all": false}', ["body"]),
            (b'{"tag": null}', ["body"]),
            (b'{"tagg": "gpu"}', ["body", "tagg"]),  # a slip of the pen must not stop everything
            (b'{"tag": "gpu", "Flow": "x"}', ["body", "Flow"]),
            (b'{"tag": ""}', ["body", "tag"]),
            (b'{"flow": ""}', ["body", "flow"]),
            (b'{"flow": 1}', ["body", "flow"]),
            (b'{"tag": "%s"}' % (b"x" * 513), ["body", "tag"]),
            (b'{"status": "COMPLETED"}', ["body", "status"]),
            (b'{"status": "CANCELLING"}', ["body", "status"]),
            (b'{"status": "pending"}', ["body", "status"]),
            (b'{"kind": "program"}', ["body", "kind"]),
            (b'{"workflow_yaml_sha256": "abc"}', ["body", "workflow_yaml_sha256"]),
            (b'{"submitted_before": "now"}', ["body", "submitted_before"]),
            (b'{"submitted_before": NaN}', ["body"]),
            (b'{"all": 1}', ["body", "all"]),
            (b'{"all": true, "limit": 0}', ["body", "limit"]),
            (b'{"all": true, "limit": 10001}', ["body", "limit"]),
            (b'{"all": true, "limit": 1.5}', ["body", "limit"]),
            (b'{"all": true, "reason": 1}', ["body", "reason"]),
            (b'{"all": true, "reason": "%s"}' % (b"x" * 4097), ["body", "reason"]),
            (b'{"run_ids": "x"}', ["body", "run_ids"]),
            (b'{"run_ids": [1]}', ["body", "run_ids", 0]),
            (b'{"run_ids": ["%s"]}' % (b"x" * 129), ["body", "run_ids", 0]),
            (json.dumps({"run_ids": ["x"] * 1001}).encode(), ["body", "run_ids"]),
            (b'{"run_ids": ["x"], "tag": "gpu"}', ["body", "run_ids"]),
            (b'{"run_ids": ["x"], "all": true}', ["body", "run_ids"]),
        ]
        run_id = await submit(gateway, tag="gpu")
        for body, loc in cases:
            answer = await gateway.client.post("/runs/cancel", content=body)
            assert answer.status_code == 422, body[:80]
            problems = check_refusal(answer)
            assert [problem["loc"] for problem in problems] == [loc], body[:80]
            assert await status_of(gateway, run_id) == "PENDING", body[:80]

    async def test_is_too_large_above_a_megabyte(self, gateway: Gateway) -> None:
        answer = await gateway.client.post("/runs/cancel", content=b" " * (1024 * 1024 + 1))
        assert answer.status_code == 413

    async def test_does_not_meet_a_run_of_that_name(self, gateway: Gateway) -> None:
        """`cancel` is a path here, and no run id."""
        assert (await gateway.client.get("/runs/cancel")).status_code == 404
        assert (await gateway.client.post("/runs/cancel/cancel")).status_code == 404
        assert (await gateway.client.request("DELETE", "/runs/cancel")).status_code == 405


@pytest.fixture
async def guarded(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path, http_auth_mode="api_key", auth_pepper="pepper") as gateway:
        yield gateway


async def a_key(gateway: Gateway, tenant: str) -> dict[str, str]:
    plain, record = make_key(tenant, gateway.config.auth_pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
    assert await gateway.backend.keys.add(record)
    return {"X-API-Key": plain}


async def test_only_the_caller_s_own_runs_are_stopped(guarded: Gateway) -> None:
    """FLOW-188, FLOW-273: others are neither stopped nor counted, and their ids are unknown."""
    mine, yours = await a_key(guarded, "team-a"), await a_key(guarded, "team-b")
    run_ids = []
    for headers in (mine, yours, mine, yours):
        answer = await guarded.client.post("/runs", json={"flow_name": "hello"}, headers=headers)
        run_ids.append(answer.json()["run_id"])
    nobody_s = Run(run_id=str(uuid.uuid4()), flow_name="hello", tag="t", submitted_at=1, updated_at=1, heartbeat_at=1)
    await guarded.backend.runs.create(nobody_s)
    everything = {"run_ids": [*run_ids, nobody_s.run_id]}
    for more in (True, False):  # another's runs do not count towards the limit
        asked = await guarded.client.post("/runs/cancel", json={"flow": "hello", "limit": 1}, headers=mine)
        assert asked.json() == ZEROS | {"matched": 1, "asked": 1, "more": more}
    counts = (await guarded.client.post("/runs/cancel", json={"all": True}, headers=mine)).json()
    assert counts == ZEROS
    counts = (await guarded.client.post("/runs/cancel", json=everything, headers=mine)).json()
    assert counts == ZEROS | {"matched": 2, "already_cancelling": 2, "not_found": 3}
    for run_id in (run_ids[1], run_ids[3], nobody_s.run_id):
        assert await status_of(guarded, run_id) == "PENDING"


class _Counting:
    """An index that knows which lines it has shown."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.shown: list[str] = []

    async def page(self, *asked: Any) -> Any:
        page = await self._index.page(*asked)
        self.shown += [line.run_id for line in page.items]
        return page


def _submitted(at: float) -> Run:
    return Run(run_id=str(uuid.uuid4()), flow_name="hello", tag="t", submitted_at=at, updated_at=at, heartbeat_at=at)


async def test_without_nats_it_says_so(gateway: Gateway) -> None:
    """DESIGN 9.16"""
    run_id = await submit(gateway)
    backend = gateway.backend
    gateway.app.state.gateway.backend = backend_with(gateway, is_up=lambda: False)
    for body in ({"all": True}, {"run_ids": [run_id]}):
        answer = await gateway.client.post("/runs/cancel", json=body)
        assert (answer.status_code, answer.json()["err_id"]) == (503, "ERR-PYOCO-0003")
    gateway.app.state.gateway.backend = backend
