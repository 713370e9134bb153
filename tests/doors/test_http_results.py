"""`/runs/{run_id}/result` and `/runs/{run_id}/outputs/{task}`: what a run has returned, and when there is nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

from pyoco_server.actions.priced.project import show_row
from pyoco_server.core.outcome import Completed, Failed, Progress
from pyoco_server.core.values.kept import Kept, object_name
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import open_link
from support.gateways import Gateway, claimed, ended, fresh_gateway, submit
from support.priced.gateways import PricedDoor

pytestmark = pytest.mark.asyncio(loop_scope="module")

RAW = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(RAW).hexdigest()
ENTRY = {"content_type": "application/octet-stream", "bytes": len(RAW), "sha256": SHA256, "part": 0, "offset": 10}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    link = await open_link(module_nats_url, "tests")
    async with fresh_gateway(link, module_nats_url, tmp_path_factory.mktemp("data")) as gateway:
        yield gateway
    await link.close()


def err_id(answer: httpx.Response) -> str:
    return str(answer.json()["err_id"])


def outcome(result: dict[str, Any], outputs: dict[str, Any], **values: Any) -> Completed:
    tasks = dict.fromkeys({"a", *values, *outputs}, "SUCCEEDED")
    records = {name: {"state": "SUCCEEDED", "output": values.get(name), "error": None} for name in tasks}
    for name in outputs.keys() & records.keys():
        records[name] |= {"output": "...", "output_truncated": True}
    return Completed(progress=Progress(tasks, records), kept=Kept(result, outputs))


async def a_run(gateway: Gateway, how: Completed | Failed) -> str:
    run_id = await submit(gateway)
    await ended(gateway, run_id, how)
    return run_id


async def large(gateway: Gateway) -> str:
    """A run whose result is a slice of an object."""
    run_id = await a_run(gateway, outcome({"task": "a"}, {"a": ENTRY}))

    async def chunks() -> AsyncIterator[bytes]:
        yield b"0123456789" + RAW + b"of another task"

    await gateway.backend.outputs.put(object_name(run_id, "attempt-1", 0), chunks(), len(RAW) + 25, "")
    return run_id


async def get(gateway: Gateway, run_id: str, what: str = "result", **headers: str) -> httpx.Response:
    return await gateway.client.get(f"/runs/{run_id}/{what}", headers=headers)


async def test_a_small_result_comes_from_the_record(gateway: Gateway) -> None:
    """RES-3, RES-5"""
    run_id = await a_run(gateway, outcome({"task": "a"}, {}, a={"x": "ü", "n": 1.5}))
    answer = await get(gateway, run_id)
    data = '{"x":"ü","n":1.5}'.encode()
    digest = hashlib.sha256(data)
    assert (answer.status_code, answer.content) == (200, data)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(data))
    assert answer.headers["etag"] == f'"{digest.hexdigest()}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-disposition" not in answer.headers
    shown = (await gateway.client.get(f"/runs/{run_id}")).json()["result"]
    assert shown == {
        "href": f"/runs/{run_id}/result",
        "content_type": "application/json",
        "bytes": len(data),
        "sha256": digest.hexdigest(),
        "value": {"x": "ü", "n": 1.5},
        "truncated": False,
    }
    listed = (await gateway.client.get("/runs?include=full&limit=200")).json()
    assert ["value" in run["result"] for run in listed if run["run_id"] == run_id] == [False]


async def test_a_large_result_is_streamed_from_the_store(gateway: Gateway) -> None:
    """RES-5, RES-15"""
    run_id = await large(gateway)
    for what in ("result", "outputs/a", "result"):
        answer = await get(gateway, run_id, what)
        assert (answer.status_code, answer.content == RAW) == (200, True)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment")
    again = await get(gateway, run_id, **{"If-None-Match": f'"{SHA256}"'})
    assert (again.status_code, again.content) == (304, b"")
    head = await gateway.client.head(f"/runs/{run_id}/result")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(RAW)), b"")


@pytest.mark.parametrize(
    ("wanted", "status", "start", "end"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=100000-299999", 206, 100_000, 300_000),
        ("bytes=511999-", 206, 511_999, 512_000),
        ("bytes=-5", 206, 511_995, 512_000),
        ("bytes=-9999999", 206, 0, 512_000),
        ("bytes=400000-9999999", 206, 400_000, 512_000),
        ("bytes=512000-", 416, 0, 0),
        (f"bytes={10**20}-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
        ("bytes=0-1,5-6", 200, 0, 512_000),
        ("bytes=5-1", 200, 0, 512_000),
        ("bytes=-", 200, 0, 512_000),
        ("lines=0-1", 200, 0, 512_000),
    ],
)
async def test_one_range_is_honoured(gateway: Gateway, wanted: str, status: int, start: int, end: int) -> None:
    """RES-5"""
    run_id = await large(gateway)
    answer = await get(gateway, run_id, Range=wanted)
    assert (answer.status_code, answer.content == RAW[start:end]) == (status, True)
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/512000"
    if status == 416:
        assert answer.headers["content-range"] == "bytes */512000"
    changed = await get(gateway, run_id, **{"Range": wanted, "If-Range": '"other"'})
    assert (changed.status_code, changed.content == RAW) == (200, True)


async def test_the_name_of_a_task_may_hold_anything(gateway: Gateway) -> None:
    """RES-6"""
    run_id = await a_run(gateway, outcome({"task": "a"}, {}, **{"x/y ü?": 7, "a": 1}))
    assert (await get(gateway, run_id, "outputs/x%2Fy%20%C3%BC%3F")).content == b"7"
    answer = await get(gateway, run_id, "outputs/nobody")
    assert (answer.status_code, err_id(answer)) == (404, "ERR-PYOCO-0053")


async def test_before_the_end_there_is_no_result(gateway: Gateway) -> None:
    """RES-8"""
    run_id = await submit(gateway)
    answer = await get(gateway, run_id)
    assert (answer.status_code, err_id(answer), answer.json()["status"]) == (409, "ERR-PYOCO-0053", "PENDING")
    run = await claimed(gateway, run_id)
    found = await gateway.backend.runs.find(run_id)
    records = {
        "a": {"state": "SUCCEEDED", "output": 5},
        "c": {"state": "SUCCEEDED", "output": "x", "output_truncated": True},
    }
    tasks = {"a": "SUCCEEDED", "b": "RUNNING", "c": "SUCCEEDED"}
    await gateway.backend.runs.replace(replace(run, tasks=tasks, task_records=records), found.revision)
    assert (await get(gateway, run_id, "outputs/a")).content == b"5"
    for task, state in (("b", "RUNNING"), ("c", None)):
        answer = await get(gateway, run_id, f"outputs/{task}")
        assert (answer.status_code, err_id(answer), answer.json()["status"]) == (409, "ERR-PYOCO-0053", "RUNNING")
        assert answer.json().get("task_state") == state


async def test_a_failed_run_says_why_it_has_none(gateway: Gateway) -> None:
    """RES-9, CLI-17"""
    tasks = {"a": "FAILED", "b": "PENDING", "c": "PENDING"}
    run_id = await a_run(gateway, Failed(message="it broke", progress=Progress(tasks), kept=Kept()))
    body = (await get(gateway, run_id)).json()
    assert (body["err_id"], body["status"], body["reason"], body["error"]) == (
        "ERR-PYOCO-0053",
        "FAILED",
        "execution_error",
        "it broke",
    )
    for path in ("", "/tasks"):
        shown = (await gateway.client.get(f"/runs/{run_id}{path}")).json()
        assert (shown["not_run"], shown["tasks"]["b"]) == (["b", "c"], "PENDING")


@pytest.mark.parametrize(
    ("number", "status"), [(54, 409), (55, 409), (56, 410)], ids=["not encodable", "too large", "not stored"]
)
async def test_a_value_that_was_not_kept_says_why(gateway: Gateway, number: int, status: int) -> None:
    """RES-4, RES-10 to RES-12"""
    run_id = await a_run(gateway, outcome({"task": "a"}, {"a": {"error": number, "detail": "the detail"}}))
    for what in ("result", "outputs/a"):
        answer = await get(gateway, run_id, what)
        assert (answer.status_code, err_id(answer)) == (status, f"ERR-PYOCO-00{number}")
        assert answer.json()["detail"] == "the detail"
    record = (await gateway.client.get(f"/runs/{run_id}/tasks")).json()["task_records"]["a"]
    assert (record["output_truncated"], record["output_error"]["err_id"]) == (True, f"ERR-PYOCO-00{number}")


async def test_a_lost_object_is_gone_and_a_damaged_one_is_cut_off(gateway: Gateway) -> None:
    """RES-7, RES-12"""
    run_id = await a_run(gateway, outcome({"task": "a"}, {"a": ENTRY}))
    answer = await get(gateway, run_id)
    assert (answer.status_code, err_id(answer)) == (410, "ERR-PYOCO-0056")

    async def other() -> AsyncIterator[bytes]:
        yield b"0123456789" + RAW[:-1] + b"!"

    await gateway.backend.outputs.put(object_name(run_id, "attempt-1", 0), other(), len(RAW) + 10, "")
    with pytest.raises(AssertionError, match=r"response_complete|^$"):  # of the client: the body has no end
        await get(gateway, run_id)


async def test_an_outage_of_the_store_is_503(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = await large(gateway)

    async def broken(*_: object) -> AsyncIterator[bytes]:
        if RAW:
            raise Unavailable("on purpose")
        yield b""

    monkeypatch.setattr(gateway.backend.outputs, "read", broken)
    answer = await get(gateway, run_id)
    assert (answer.status_code, err_id(answer)) == (503, "ERR-PYOCO-0003")


async def test_an_unknown_run_is_404(gateway: Gateway) -> None:
    """RES-13"""
    for what in ("result", "outputs/a"):
        answer = await get(gateway, str(uuid.uuid4()), what)
        assert (answer.status_code, err_id(answer)) == (404, "ERR-PYOCO-0005")


async def test_the_result_of_a_pack_is_its_owner_s(priced_door: PricedDoor) -> None:
    """RES-2, SAFE-5"""
    payer = await priced_door.payer()
    run_id = await priced_door.submitted(payer)
    row = await priced_door.completed(run_id, {"answer_text": "yes", "confidence": 0.5}, [], tokens=1)
    assert await show_row(priced_door.gateway.backend.runs, row)

    async def ask(path: str, **more: Any) -> httpx.Response:
        return await priced_door.client.get(f"/runs/{run_id}{path}", **more)

    answer = await ask("/result", headers=payer.headers)
    assert (answer.status_code, answer.json()) == (200, {"answer_text": "yes", "confidence": 0.5})
    shown = (await ask("", headers=payer.headers)).json()["result"]
    assert (shown["value"], shown["bytes"]) == (json.loads(answer.content), len(answer.content))
    assert (await ask("/result")).status_code == 404
