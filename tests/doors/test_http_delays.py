"""Delays over HTTP: `delay` and `not_before` on every submission, and what a delayed run shows (section 6)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.gateways import FLOW_YAML, Gateway, shown, submit

PAST = "2020-01-01T00:00:00Z"
YEARS = 40 * 366 * 86_400


@pytest.fixture(autouse=True)
async def index(gateway: Gateway) -> None:
    """Lists and the reasons of ordinary waits come from the index."""
    assert await gateway.app.state.gateway.feeder.caught_up(60)


async def read(gateway: Gateway, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}")).json()
    return found


class TestSubmissions:
    async def test_a_delayed_run_says_what_it_waits_for_and_counts_in_no_queue(self, gateway: Gateway) -> None:
        """DELAY-1, DELAY-4, DELAY-5"""
        before = time.time()
        run_id = await submit(gateway, delay="1h30m")
        found = await read(gateway, run_id)
        assert found["status"] == "PENDING"
        assert before + 5390 < found["not_before"] < time.time() + 5410
        waiting = found["waiting"]
        assert (waiting["reason"], waiting["until"], waiting["position"]) == ("scheduled", found["not_before"], None)
        assert waiting["message"].isascii()
        assert not waiting["message_ja"].isascii()
        assert "waits_for" not in found
        [queue] = [each for each in (await gateway.client.get("/queues")).json()["items"] if each["depth"]] or [None]
        assert queue is None
        [line] = await shown(gateway, waiting="scheduled")
        assert (line["run_id"], line["not_before"]) == (run_id, found["not_before"])
        assert await shown(gateway, waiting="retry") == []

    async def test_every_submission_takes_a_delay(self, gateway: Gateway) -> None:
        """DELAY-1, DELAY-2"""
        due = time.time() + 600
        fields = {"flow_name": "main", "not_before": str(due)}
        files = {"workflow": ("flow.yaml", FLOW_YAML.encode())}
        first = await submit(gateway)
        posts: list[Callable[[], Awaitable[Any]]] = [
            lambda: gateway.client.post("/runs", json={"flow_name": "f", "not_before": due}),
            lambda: gateway.client.post("/runs/yaml", data=fields, files=files),
            lambda: gateway.client.post(f"/runs/{first}/rerun", json={"not_before": due}),
        ]
        for post in posts:
            answer = await post()
            assert answer.status_code == 200, answer.text
            assert (await read(gateway, answer.json()["run_id"]))["not_before"] == due
        batch = {"runs": [{"flow_name": "f", "delay": 600}, {"flow_name": "f", "delay": "soon"}]}
        good, bad = (await gateway.client.post("/runs/batch", json=batch)).json()["items"]
        assert (await read(gateway, good["run_id"]))["waiting"]["reason"] == "scheduled"
        assert bad["status_code"] == 422
        assert bad["error"]["errors"][0]["loc"] == ["body", "runs", 1, "delay"]

    async def test_an_instant_in_the_past_is_no_delay(self, gateway: Gateway) -> None:
        """DELAY-2"""
        found = await read(gateway, await submit(gateway, not_before=PAST))
        assert "not_before" not in found
        assert found["waiting"]["reason"] == "no_worker"

    @pytest.mark.parametrize(
        ("members", "name", "words"),
        [
            ({"delay": 1, "not_before": PAST}, "not_before", "together with delay"),
            ({"delay": YEARS}, "delay", "PYOCO_DELAY_MAX_SEC"),
            ({"not_before": "2100-01-01T00:00:00Z"}, "not_before", "31622400"),
            ({"delay": -1}, "delay", "must not be negative"),
            ({"delay": "1 hour"}, "delay", "30s, 500ms or 1h30m"),
            ({"not_before": "2030-01-01T00:00:00"}, "not_before", "offset from UTC"),
        ],
    )
    async def test_a_bad_delay_is_refused_with_its_place(
        self, gateway: Gateway, members: dict[str, Any], name: str, words: str
    ) -> None:
        """DELAY-2, DELAY-3"""
        answer = await gateway.client.post("/runs", json={"flow_name": "f", **members})
        assert answer.status_code == 422
        [problem] = answer.json()["errors"]
        assert problem["loc"] == ["body", name]
        assert words in problem["msg"]
        assert await shown(gateway) == []

    async def test_a_repeat_is_the_first_answer_and_another_delay_is_another_submission(self, gateway: Gateway) -> None:
        """DELAY-8"""
        key = {"Idempotency-Key": "report-1"}
        first = await submit(gateway, key, delay=600)
        due = (await read(gateway, first))["not_before"]
        assert await submit(gateway, key, delay=600) == first
        assert (await read(gateway, first))["not_before"] == due
        answer = await gateway.client.post("/runs", json={"flow_name": "f", "delay": 601}, headers=key)
        assert answer.status_code == 409

    async def test_an_unknown_kind_of_wait_is_refused(self, gateway: Gateway) -> None:
        """DELAY-5"""
        answer = await gateway.client.get("/runs", params={"waiting": "tomorrow"})
        assert (answer.status_code, answer.json()["err_id"]) == (422, "ERR-PYOCO-0017")


class TestStart:
    async def test_a_delayed_run_starts_on_request_and_then_has_an_ordinary_wait(self, gateway: Gateway) -> None:
        """DELAY-6"""
        run_id = await submit(gateway, delay=600)
        answer = await gateway.client.post(f"/runs/{run_id}/start")
        assert (answer.status_code, answer.json()["run_id"]) == (200, run_id)
        assert (await read(gateway, run_id))["waiting"]["reason"] == "no_worker"
        again = await gateway.client.post(f"/runs/{run_id}/start")
        assert (again.status_code, again.json()["err_id"]) == (409, "ERR-PYOCO-0058")

    async def test_a_cancelled_run_is_not_started(self, gateway: Gateway) -> None:
        """DELAY-7"""
        run_id = await submit(gateway, delay=600)
        assert (await gateway.client.post(f"/runs/{run_id}/cancel")).json()["status"] == "CANCELLING"
        assert (await gateway.client.post(f"/runs/{run_id}/start")).status_code == 409
        assert await shown(gateway, waiting="scheduled") == []
