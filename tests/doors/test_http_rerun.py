"""`POST /runs/{run_id}/rerun`: the same again, by name and by file, up to the worker that runs it."""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server import PyocoNatsWorker
from pyoco_server.core.outcome import Completed
from pyoco_server.doors.http.state import State
from pyoco_server.ports.nats.link import Link
from support import naughty
from support.backends import messages_of
from support.doors_support import check_refusal
from support.gateways import (
    FLOW_YAML,
    Gateway,
    ended,
    error,
    fresh_gateway,
    ids,
    job_of,
    stock_of,
    stored,
    submit,
    submit_yaml,
)

GONE = error(28, "run cannot be repeated")
YAML = """\
tasks:
  say: {callable: "support.naughty:fine", inputs: {n: 41}}
flow:
  defaults: {word: from the file}
  graph: say
"""


async def rerun(gateway: Gateway, run_id: str, body: Any = None, **headers: str) -> httpx.Response:
    content = None if body is None else json.dumps(body)
    return await gateway.client.post(f"/runs/{run_id}/rerun", content=content, headers=headers)


class TestRerun:
    async def test_a_named_run_is_submitted_again(self, gateway: Gateway, link: Link) -> None:
        """FLOW-69"""
        old = await submit(gateway, params={"a": 1, "b": 2}, tag="gpu", tags=["x"])
        answer = await rerun(gateway, old)
        assert answer.status_code == 200, answer.text
        new = answer.json()["run_id"]
        assert answer.json() == {"run_id": new, "status": "PENDING", "rerun_of": old}
        state: State = gateway.app.state.gateway
        assert state._revision == (await stored(gateway, new)).revision  # lists wait for it
        assert await ids(gateway) == [new, old]
        one, two = [(await gateway.client.get(f"/runs/{run_id}")).json() for run_id in (old, new)]
        same = ("flow_name", "kind", "tag", "tags", "params", "status")
        assert {name: one[name] for name in same} == {name: two[name] for name in same}
        assert (one.get("rerun_of"), two["rerun_of"]) == (None, old)
        assert (await job_of(link, gateway, "gpu"))[0]["rerun_of"] == old

    async def test_no_change_can_be_said_in_many_ways(self, gateway: Gateway) -> None:
        old = await submit(gateway, params={"a": 1}, tags=["x"])
        for body in [b"", b"  ", b"{}", b'{"params": null, "tag": null, "tags": null}']:
            answer = await gateway.client.post(f"/runs/{old}/rerun", content=body)
            run = (await stored(gateway, answer.json()["run_id"])).run
            assert (run.params, run.tag, run.tags) == ({"a": 1}, "default", ("x",)), body

    async def test_params_tag_and_labels_may_be_others(self, gateway: Gateway) -> None:
        old = await submit(gateway, params={"a": 1, "b": {"c": 1}})
        answer = await rerun(gateway, old, {"params": {"b": {"d": 2}}, "tag": "gpu", "tags": ["y"]})
        run = (await stored(gateway, answer.json()["run_id"])).run
        assert (run.params, run.tag, run.tags) == ({"a": 1, "b": {"d": 2}}, "gpu", ("y",))

    async def test_a_body_of_another_shape_is_422(self, gateway: Gateway, link: Link) -> None:
        """FLOW-50, FLOW-70: nothing is written, whether the run exists or not."""
        cases: list[tuple[bytes, list[str | int]]] = [
            (b"{", ["body"]),
            (b"[]", ["body"]),
            (b"5", ["body"]),
            (b'"x"', ["body"]),
            (b"\xff", ["body"]),
            (b'{"params": []}', ["body", "params"]),
            (b'{"params": "x"}', ["body", "params"]),
            (b'{"params": {"x": ' + b"[" * 100 + b"]" * 100 + b"}}", ["body", "params"]),
            (b'{"tag": ""}', ["body", "tag"]),
            (b'{"tag": "a.b"}', ["body", "tag"]),
            (b'{"tag": 5}', ["body", "tag"]),
            (b'{"tags": "x"}', ["body", "tags"]),
            (b'{"tags": [1]}', ["body", "tags", 0]),
            (json.dumps({"tags": ["x"] * 101}).encode(), ["body", "tags"]),
            (json.dumps({"tags": ["x" * 513]}).encode(), ["body", "tags", 0]),
        ]
        old = await submit(gateway)
        before = await stock_of(gateway.config, link)
        for body, loc in cases:
            for run_id in (old, str(uuid.uuid4())):
                answer = await gateway.client.post(f"/runs/{run_id}/rerun", content=body)
                assert answer.status_code == 422, body[:80]
                problems = check_refusal(answer)
                assert problems[0]["loc"] == loc, body[:80]
            assert await stock_of(gateway.config, link) == before, body[:80]

    async def test_a_body_too_large_is_413(self, gateway: Gateway) -> None:
        answer = await gateway.client.post(f"/runs/{uuid.uuid4()}/rerun", content=b" " * (2 << 20))
        assert (answer.status_code, answer.json()) == (413, error(2, "request body too large"))

    async def test_an_unknown_run_is_404(self, gateway: Gateway) -> None:
        """FLOW-53"""
        for run_id in [str(uuid.UUID(int=7)), "x", "*", "%2e%2e", "A" * 36]:
            answer = await rerun(gateway, run_id)
            assert (answer.status_code, answer.json()) == (404, error(5, "run not found")), run_id

    async def test_a_key_makes_it_one_run(self, gateway: Gateway) -> None:
        """DESIGN 9.4"""
        old, other = await submit(gateway), await submit(gateway)
        key = {"Idempotency-Key": "k"}
        first, again = await rerun(gateway, old, **key), await rerun(gateway, old, {}, **key)
        assert (first.status_code, again.content) == (200, first.content)
        assert again.headers["idempotency-replayed"] == "true"
        for answer in (await rerun(gateway, other, **key), await rerun(gateway, old, {"tag": "gpu"}, **key)):
            assert (answer.status_code, answer.json()) == (409, error(26, "idempotency key reused"))

    async def test_what_cannot_be_repeated_is_409_and_says_why(self, gateway: Gateway, link: Link) -> None:
        """FLOW-50"""
        answer = await submit_yaml(gateway)
        sha256 = hashlib.sha256(FLOW_YAML.encode()).hexdigest()
        assert await gateway.backend.workflows.delete(sha256)
        before = await stock_of(gateway.config, link)
        refused = await rerun(gateway, answer.json()["run_id"])
        assert refused.status_code == 409
        body = refused.json()
        [problem] = body.pop("errors")
        assert body == GONE
        assert (problem["loc"], problem["type"]) == (["path", "run_id"], "workflow_gone")
        assert await stock_of(gateway.config, link) == before


class TestFiles:
    async def test_the_file_is_kept_as_it_came(self, gateway: Gateway) -> None:
        """FLOW-173"""
        text = "\ufeff" + FLOW_YAML.replace("\n", "\r\n")
        assert (await submit_yaml(gateway, text)).status_code == 200
        info = await gateway.backend.workflows.info(hashlib.sha256(text.encode()).hexdigest())
        data = b"".join([chunk async for chunk in gateway.backend.workflows.read(info)])
        assert data == text.encode()

    async def test_a_file_is_kept_once(self, gateway: Gateway, link: Link) -> None:
        store = f"OBJ_{gateway.config.workflow_object_store_bucket}"
        await submit_yaml(gateway)
        before = await stock_of(gateway.config, link)
        for _ in range(3):
            await submit_yaml(gateway, flow_name="other", tag="gpu")
        after = await stock_of(gateway.config, link)
        assert (before[store], after[store]) == (2, 2)  # a chunk and its description

    async def test_a_refused_file_is_not_kept(self, gateway: Gateway, link: Link) -> None:
        """FLOW-70"""
        before = await stock_of(gateway.config, link)
        assert (await submit_yaml(gateway, "flow: {graph: a, flows: 1}")).status_code == 422
        assert (await submit_yaml(gateway, tag="a b")).status_code == 422
        assert await stock_of(gateway.config, link) == before

    async def test_params_cannot_be_overridden(self, gateway: Gateway) -> None:
        """FLOW-85, FLOW-171"""
        old = (await submit_yaml(gateway)).json()["run_id"]
        for params in ({}, {"mode": "x"}):
            answer = await rerun(gateway, old, {"params": params})
            [problem] = check_refusal(answer)
            assert (problem["loc"], problem["type"]) == (["body", "params"], "forbidden")
        assert (await rerun(gateway, old, {"params": None, "tag": "gpu"})).status_code == 200

    async def test_the_text_is_in_no_bucket_no_letter_and_no_log(
        self, gateway: Gateway, link: Link, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-174: it travels in the job; besides, it is stored in the object store only."""
        with caplog.at_level(logging.DEBUG):
            old = (await submit_yaml(gateway)).json()["run_id"]
            assert (await rerun(gateway, old)).status_code == 200
            await gateway.backend.workflows.delete(hashlib.sha256(FLOW_YAML.encode()).hexdigest())
            assert (await rerun(gateway, old)).status_code == 409
        assert "prepare >> finish" not in "".join(str(vars(record)) for record in caplog.records)
        holding = {
            stream
            for stream in await stock_of(gateway.config, link)
            for message in await messages_of(link, stream)
            if "prepare >> finish" in message["text"]
        }
        assert holding == {gateway.config.work_stream}


class TestEndToEnd:
    @pytest.fixture
    async def gateway(self, link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        settings: dict[str, Any] = {"run_heartbeat_interval_sec": 0.1, "callable_allow": ("support.naughty",)}
        async with fresh_gateway(link, nats_url, tmp_path, **settings) as gateway:
            yield gateway

    @pytest.fixture
    async def worker(self, gateway: Gateway) -> AsyncIterator[PyocoNatsWorker]:
        worker = await PyocoNatsWorker.connect(gateway.config, naughty.resolve)
        yield worker
        await worker.close()

    @staticmethod
    async def _ended(gateway: Gateway, worker: PyocoNatsWorker, run_id: str) -> dict[str, Any]:
        assert await worker.run_once(5) == run_id
        snapshot: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}", params={"include": "full"})).json()
        assert snapshot["status"] == "COMPLETED", snapshot
        return snapshot

    async def test_a_named_flow_runs_again_with_other_params(self, gateway: Gateway, worker: PyocoNatsWorker) -> None:
        old = await submit(gateway, flow_name="fine", params={"n": 1})
        first = await self._ended(gateway, worker, old)
        again = (await rerun(gateway, old, {"params": {"n": 5}})).json()["run_id"]
        second = await self._ended(gateway, worker, again)
        outputs = [snapshot["task_records"]["fine"]["output"] for snapshot in (first, second)]
        assert (outputs, second["rerun_of"]) == ([2, 6], old)

    async def test_an_uploaded_flow_runs_again_after_its_record_has_lost_its_params(
        self, gateway: Gateway, worker: PyocoNatsWorker
    ) -> None:
        old = (await submit_yaml(gateway, YAML)).json()["run_id"]
        first = await self._ended(gateway, worker, old)
        again = (await rerun(gateway, old)).json()["run_id"]
        second = await self._ended(gateway, worker, again)
        outputs = [snapshot["task_records"]["say"]["output"] for snapshot in (first, second)]
        assert (outputs, second["rerun_of"]) == ([42, 42], old)
        assert second["params"] == {"word": "from the file"}


async def test_the_run_that_is_repeated_may_have_ended(gateway: Gateway) -> None:
    old = await submit(gateway)
    await ended(gateway, old, Completed())
    answer = await rerun(gateway, old)
    assert (await stored(gateway, answer.json()["run_id"])).run.attempt == 0
