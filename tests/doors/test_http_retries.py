"""Retry policies and timeouts over HTTP: on every submission, and what a run shows of them (section 8)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from support.gateways import FLOW_YAML, Gateway, shown, submit

POLICY = {"tries": 3, "delay": "2s", "retry_on": ["OSError", "timeout"]}
WHOLE = {
    "tries": 3,
    "backoff": "exponential",
    "delay": 2.0,
    "max_delay": 60.0,
    "factor": 2.0,
    "jitter": 0.1,
    "retry_on": ["OSError", "timeout"],
    "never_on": [],
    "deadline": None,
}
FILES = {"workflow": ("flow.yaml", FLOW_YAML.encode())}


async def read(gateway: Gateway, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}")).json()
    return found


async def post(gateway: Gateway, route: str, members: dict[str, Any]) -> httpx.Response:
    """The same members, in the form that the route takes."""
    if route == "/runs/yaml":
        fields = {"flow_name": "main"} | {
            name: json.dumps(value) if name == "retry" else str(value) for name, value in members.items()
        }
        return await gateway.client.post(route, data=fields, files=FILES)
    if route == "/runs/{run_id}/rerun":
        return await gateway.client.post(f"/runs/{await submit(gateway)}/rerun", json=members)
    if route == "/runs/batch":
        answer = await gateway.client.post(route, json={"runs": [{"flow_name": "f", **members}]})
        (item,) = answer.json()["items"]
        return httpx.Response(item.get("status_code", 200), json=item.get("error", item))
    return await gateway.client.post(route, json={"flow_name": "f", **members})


ROUTES = ["/runs", "/runs/yaml", "/runs/batch", "/runs/{run_id}/rerun"]


@pytest.mark.parametrize("route", ROUTES)
async def test_every_submission_takes_a_policy_and_a_timeout(gateway: Gateway, route: str) -> None:
    """RETRY-12, RETRY-14, RETRY-16"""
    answer = await post(gateway, route, {"retry": POLICY, "timeout": "5m"})
    assert answer.status_code == 200, answer.text
    found = await read(gateway, answer.json()["run_id"])
    assert (found["retry"], found["timeout"]) == (WHOLE, 300.0)
    assert (found["try"], found["max_tries"], found["tries"]) == (1, 3, [])


@pytest.mark.parametrize("route", ROUTES)
async def test_null_means_no_retry(gateway: Gateway, route: str) -> None:
    """RETRY-12: whatever the flow says."""
    answer = await post(gateway, route, {"retry": None})
    assert answer.status_code == 200, answer.text
    found = await read(gateway, answer.json()["run_id"])
    assert found["retry"] is None
    assert not {"try", "tries", "timeout"} & found.keys()


@pytest.mark.parametrize("route", ROUTES)
async def test_every_problem_is_named_with_its_place(gateway: Gateway, route: str) -> None:
    """RETRY-1 to RETRY-9, RETRY-20, STRICT-4"""
    before = ("body", "runs", 0) if route == "/runs/batch" else ("body",)
    bad = {"tries": 0, "delay": "soon", "retry_on": [3], "attempts": 2}
    answer = await post(gateway, route, {"retry": bad})
    assert answer.status_code == 422
    assert answer.json()["err_id"] == "ERR-PYOCO-0002"
    places = [tuple(each["loc"]) for each in answer.json()["errors"]]
    assert places == [
        (*before, "retry", name, *more) for name, *more in [("tries",), ("delay",), ("retry_on", 0), ("attempts",)]
    ]
    answer = await post(gateway, route, {"retry": {"tries": 2, "delay": 9, "max_delay": 1, "retry_on": ["a b"]}})
    places = [tuple(each["loc"]) for each in answer.json()["errors"]]
    assert places == [(*before, "retry", "max_delay"), (*before, "retry", "retry_on", 0)]
    assert (await post(gateway, route, {"timeout": 0.5})).status_code == 422
    assert (await post(gateway, route, {"timeout": "8d"})).status_code == 422


async def test_the_short_text_is_not_for_json(gateway: Gateway) -> None:
    """RETRY-11"""
    assert (await post(gateway, "/runs", {"retry": "3 times"})).status_code == 422
    answer = await gateway.client.post("/runs/yaml", data={"flow_name": "f", "retry": "3 times"}, files=FILES)
    assert [each["loc"] for each in answer.json()["errors"]] == [["body", "retry"]]


async def test_a_rerun_keeps_the_policy_unless_it_has_one_of_its_own(gateway: Gateway) -> None:
    """RETRY-17"""
    first = await submit(gateway, retry=POLICY, timeout=60)
    for change, policy in (({}, WHOLE), ({"retry": None}, None), ({"timeout": 5}, WHOLE)):
        answer = await gateway.client.post(f"/runs/{first}/rerun", json=change)
        found = await read(gateway, answer.json()["run_id"])
        assert (found["retry"], found["timeout"]) == (policy, change.get("timeout", 60))


async def test_the_policy_is_part_of_the_content(gateway: Gateway) -> None:
    headers = {"Idempotency-Key": "k"}
    for retry, status in ((POLICY, 200), (POLICY, 200), ({"tries": 2}, 409), (None, 409)):
        answer = await gateway.client.post("/runs", json={"flow_name": "f", "retry": retry}, headers=headers)
        assert answer.status_code == status


async def test_lists_show_the_try(gateway: Gateway) -> None:
    """Section 15"""
    assert await gateway.app.state.gateway.feeder.caught_up(60)
    run_id = await submit(gateway, retry=POLICY)
    await submit(gateway)
    lines = {line["run_id"]: line for line in await shown(gateway)}
    assert (lines[run_id]["try"], lines[run_id]["max_tries"]) == (1, 3)
    assert [line for line in lines.values() if "try" in line] == [lines[run_id]]


async def test_a_program_takes_them_as_parts_of_its_form(gateway: Gateway) -> None:
    """RETRY-12, RETRY-16, RETRY-18"""

    async def submitted(**fields: str) -> httpx.Response:
        files = [(name, (None, value)) for name, value in ({"exec_name": "calcA", "group": "retries"} | fields).items()]
        return await gateway.client.post("/jobs", files=files)

    answer = await submitted(retry=json.dumps({"tries": 4}), timeout="2m")
    assert answer.status_code == 200, answer.text
    found = await read(gateway, answer.json()["run_id"])
    assert (found["max_tries"], found["max_attempts"], found["params"]["timeout_sec"]) == (4, 4, 120.0)
    for bad in (
        {"timeout": "2m", "timeout_sec": "5"},
        {"retry": "3 times"},
        {"retry": '{"tries": 0}'},
        {"timeout": "x"},
    ):
        assert (await submitted(**bad)).status_code == 422
