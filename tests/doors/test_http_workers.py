"""`/workers` over HTTP: who works, and who is shown (FLOW-560), on a real NATS server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from contracts.registry import a_worker
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import encode_worker, stopped
from pyoco_server.doors.http.workers import read_workers_query
from pyoco_server.ports.nats.link import Link
from support.backends import Clock
from support.doors_support import check_refusal
from support.gateways import Gateway, error, fresh_gateway, open_gateway
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually

UNKNOWN = error(20, "worker not found")
NOW = 1_700_000_000.0
SILENCE = 20.0


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path, clock: Clock) -> AsyncIterator[Gateway]:
    """Its clock stands still."""
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        state = gateway.app.state.gateway
        state.backend = replace(state.backend, clock=clock)
        yield gateway


async def announce(gateway: Gateway, worker_id: str, age: float = 0.0, **more: Any) -> None:
    seen = NOW - age
    record = a_worker(worker_id, last_seen_at=seen, last_heartbeat_at=seen, **more)
    if record.state is WorkerState.STOPPED_GRACEFUL:
        record = stopped(record, "sigterm", seen)
    await gateway.backend.registry.announce(record)


async def listed(gateway: Gateway, query: str = "") -> list[str]:
    answer = await gateway.client.get(f"/workers{query}")
    assert answer.status_code == 200, answer.text
    return [worker["worker_id"] for worker in answer.json()]


async def patch(gateway: Gateway, worker_id: str, hidden: object) -> Any:
    return await gateway.client.patch(f"/workers/{worker_id}", json={"hidden": hidden})


@pytest.fixture
async def crowd(gateway: Gateway) -> Gateway:
    """A worker of each kind, the most recently seen one first."""
    await announce(gateway, "runs", 1, state=WorkerState.RUNNING, tags=("gpu", "cpu"))
    await announce(gateway, "idles", 2, tags=("cpu",))
    await announce(gateway, "stopped", 3, state=WorkerState.STOPPED_GRACEFUL, tags=("cpu",))
    await announce(gateway, "silent", SILENCE + 1, state=WorkerState.RUNNING, tags=("gpu",))
    await announce(gateway, "hidden", 4, tags=("cpu",), hidden=True)
    await announce(gateway, "gone-and-hidden", 1000, tags=("gpu",), hidden=True)
    return gateway


class TestTheList:
    async def test_shows_what_was_asked_for_the_latest_first(self, crowd: Gateway) -> None:
        """FLOW-136 to FLOW-139, FLOW-141, FLOW-560"""
        cases: list[tuple[str, str]] = [
            ("", "runs idles"),
            ("?scope=active", "runs idles"),
            ("?scope=all", "runs idles stopped silent"),
            ("?include_hidden=true", "runs idles hidden"),
            ("?include_hidden=1&scope=all", "runs idles stopped hidden silent gone-and-hidden"),
            ("?include_hidden=off&scope=all", "runs idles stopped silent"),
            ("?state=RUNNING", "runs"),
            ("?state=IDLE", "idles"),
            ("?state=IDLE&include_hidden=YES", "idles hidden"),
            ("?state=DISCONNECTED", ""),
            ("?state=STOPPED_GRACEFUL", ""),
            ("?state=DISCONNECTED&scope=all", "silent"),
            ("?state=DISCONNECTED&scope=all&include_hidden=true", "silent gone-and-hidden"),
            ("?state=STOPPED_GRACEFUL&scope=all", "stopped"),
            ("?state=RUNNING&scope=all", "runs"),
            ("?tag=gpu", "runs"),
            ("?tag=cpu", "runs idles"),
            ("?tag=gpu&scope=all", "runs silent"),
            ("?tag=cpu&state=STOPPED_GRACEFUL&scope=all", "stopped"),
            ("?tag=nobody", ""),
            ("?tag=", ""),
            ("?tag=%ff%00", ""),
            ("?limit=1", "runs"),
            ("?limit=3&scope=all", "runs idles stopped"),
            ("?limit=500", "runs idles"),
        ]
        for query, names in cases:
            assert await listed(crowd, query) == names.split(), query

    async def test_is_in_order_of_names_where_times_are_the_same(self, gateway: Gateway) -> None:
        """FLOW-141"""
        for worker_id in ("b", "c", "a"):
            await announce(gateway, worker_id, 5)
        await announce(gateway, "z", 4)
        assert await listed(gateway) == ["z", "a", "b", "c"]

    async def test_refuses_a_bad_value_by_name(self, gateway: Gateway) -> None:
        """FLOW-61, FLOW-142"""
        cases: list[tuple[str, list[str]]] = [
            ("scope=ACTIVE", ["scope"]),
            ("scope=", ["scope"]),
            ("scope=everything", ["scope"]),
            ("state=running", ["state"]),
            ("state=", ["state"]),
            ("state=GONE", ["state"]),
            ("include_hidden=", ["include_hidden"]),
            ("include_hidden=2", ["include_hidden"]),
            ("include_hidden=yes%20", ["include_hidden"]),
            ("limit=0", ["limit"]),
            ("limit=501", ["limit"]),
            ("limit=-1", ["limit"]),
            ("limit=", ["limit"]),
            ("limit=1.0", ["limit"]),
            ("limit=%D9%A3", ["limit"]),
            ("limit=" + "9" * 5000, ["limit"]),
            ("limit=1&limit=2", ["limit"]),
            ("state=IDLE&scope=all&state=RUNNING", ["state"]),
            ("tag=a&tag=b", ["tag"]),
            ("scope=x&state=x&include_hidden=x&limit=x", ["include_hidden", "limit", "scope", "state"]),
        ]
        for query, names in cases:
            answer = await gateway.client.get(f"/workers?{query}")
            assert answer.status_code == 422, query[:80]
            problems = check_refusal(answer, number=19)
            assert answer.json()["detail"] == problems, query[:80]
            assert sorted(problem["loc"] for problem in problems) == [["query", name] for name in names], query[:80]

    async def test_holds_500_at_most(self, gateway: Gateway) -> None:
        """FLOW-139"""
        registry = gateway.backend.registry
        await asyncio.gather(*(registry.announce(a_worker(f"w{n:03}", last_seen_at=NOW)) for n in range(510)))
        assert await listed(gateway) == [f"w{n:03}" for n in range(500)]
        assert await listed(gateway, "?limit=2") == ["w000", "w001"]

    async def test_passes_over_a_record_nobody_can_read(self, gateway: Gateway, link: Link) -> None:
        """FLOW-141: best effort"""
        await announce(gateway, "good")
        odd = json.loads(encode_worker(a_worker("odd"))) | {"last_seen_at": "yesterday"}
        bucket = gateway.config.workers_kv_bucket
        await link.store(f"$KV.{bucket}.odd", json.dumps(odd).encode())
        await link.store(f"$KV.{bucket}.worse", b"\xff")
        await announce(gateway, "later")
        assert await listed(gateway) == ["good", "later"]
        assert (await gateway.client.get("/workers/odd")).json() == UNKNOWN


class TestAWorker:
    async def test_is_shown_with_all_that_is_known(self, gateway: Gateway) -> None:
        """FLOW-140, FLOW-354"""
        facts = {"slots": 4, "running": ("r1", "r2"), "current_run_id": "r1", "host_restarts": 2, "last_pull_at": NOW}
        more = {
            "last_run_status": "FAILED",
            "wheel_sync": {"status": "ok"},
            "versions": {"pyoco": "1"},
            "packs": ("url",),
        }
        await announce(gateway, "w", 3, state=WorkerState.RUNNING, **facts, **more)
        shown = (await gateway.client.get("/workers/w")).json()
        assert shown == {
            "worker_id": "w",
            "instance_id": "i1",
            "state": "RUNNING",
            "hidden": False,
            "updated_at": None,
            "last_seen_at": NOW - 3,
            "last_heartbeat_at": NOW - 3,
            "heartbeat_at": NOW - 3,
            "last_pull_at": NOW,
            "tags": ["a", "b"],
            "slots": 4,
            "busy": 2,
            "running": ["r1", "r2"],
            "current_run_id": "r1",
            "last_run_status": "FAILED",
            "stopped_at": None,
            "stop_reason": None,
            "host_restarts": 2,
            "packs": ["url"],
            "versions": {"pyoco": "1"},
            "wheel_sync": {"status": "ok"},
        }
        assert (await gateway.client.get("/workers")).json() == [shown]

    async def test_that_stopped_says_when_and_why(self, crowd: Gateway) -> None:
        """FLOW-26, FLOW-140, FLOW-198, FLOW-561"""
        shown = (await crowd.client.get("/workers/stopped")).json()
        assert (shown["state"], shown["stop_reason"], shown["stopped_at"]) == ("STOPPED_GRACEFUL", "sigterm", NOW - 3)

    async def test_falls_silent_and_comes_back(self, gateway: Gateway, clock: Clock) -> None:
        """FLOW-27, FLOW-28, FLOW-29, FLOW-561"""
        await announce(gateway, "w", state=WorkerState.RUNNING, current_run_id="r1")
        clock.now = NOW + SILENCE
        assert (await gateway.client.get("/workers/w")).json()["state"] == "RUNNING"
        assert await listed(gateway) == ["w"]
        clock.now = NOW + SILENCE + 0.001
        shown = (await gateway.client.get("/workers/w")).json()
        assert (shown["state"], shown["current_run_id"], shown["stopped_at"]) == ("DISCONNECTED", "r1", None)
        assert await listed(gateway) == []
        await announce(gateway, "w", age=-SILENCE, state=WorkerState.IDLE)
        assert (await gateway.client.get("/workers/w")).json()["state"] == "IDLE"

    async def test_that_stopped_in_order_never_turns_into_a_lost_one(self, gateway: Gateway, clock: Clock) -> None:
        """FLOW-26, FLOW-199"""
        await announce(gateway, "w", state=WorkerState.STOPPED_GRACEFUL)
        clock.now = NOW + 1e8
        assert (await gateway.client.get("/workers/w")).json()["state"] == "STOPPED_GRACEFUL"

    async def test_nobody_knows_is_404(self, gateway: Gateway) -> None:
        """FLOW-54, FLOW-145"""
        cases: list[str] = [
            "nobody",
            "*",
            "%3E",
            "a.*",
            "a..b",
            "%2e%2e%2e",
            "-.",
            "a%20b",
            "a%00b",
            "%ff",
            "日本",
            "x" * 201,
            "$KV",
            "w%0A",
        ]
        await announce(gateway, "w")
        for worker_id in cases:
            for answer in (await gateway.client.get(f"/workers/{worker_id}"), await patch(gateway, worker_id, True)):
                assert (answer.status_code, answer.json()) in [(404, UNKNOWN), (404, error(2, "not found"))], worker_id
            assert await listed(gateway) == ["w"], worker_id

    async def test_may_have_dots_in_its_name(self, gateway: Gateway) -> None:
        """FLOW-38"""
        await announce(gateway, "host.example.com=1")
        assert (await gateway.client.get("/workers/host.example.com=1")).status_code == 200
        assert (await patch(gateway, "host.example.com=1", True)).status_code == 200
        assert await listed(gateway) == []


class TestHiding:
    async def test_leaves_it_out_of_lists_and_changes_nothing_else(self, gateway: Gateway, clock: Clock) -> None:
        """FLOW-138, FLOW-144, FLOW-146, FLOW-355, FLOW-560"""
        await announce(gateway, "w", 1, state=WorkerState.RUNNING, running=("r1",))
        before = (await gateway.client.get("/workers/w")).json()
        answer = await patch(gateway, "w", True)
        assert (answer.status_code, answer.json()) == (200, {"worker_id": "w", "hidden": True, "updated_at": NOW})
        assert (await gateway.client.get("/workers/w")).json() == before | {"hidden": True, "updated_at": NOW}
        assert await listed(gateway) == []
        assert await listed(gateway, "?include_hidden=true") == ["w"]
        clock.now = NOW + 5
        answer = await patch(gateway, "w", False)
        assert answer.json() == {"worker_id": "w", "hidden": False, "updated_at": NOW + 5}
        assert await listed(gateway) == ["w"]

    @pytest.mark.parametrize("hidden", [True, False])
    async def test_twice_is_as_good_as_once(self, gateway: Gateway, clock: Clock, hidden: bool) -> None:
        """FLOW-147"""
        await announce(gateway, "w")
        first = (await patch(gateway, "w", hidden)).json()
        clock.now = NOW + 5
        again = await patch(gateway, "w", hidden)
        assert (again.status_code, again.json()) == (200, first)
        assert first["updated_at"] == NOW

    async def test_lasts_through_heartbeats_restarts_and_the_end(self, gateway: Gateway) -> None:
        """FLOW-148"""
        await announce(gateway, "w")
        await patch(gateway, "w", True)
        for more in (
            {},
            {"state": WorkerState.RUNNING},
            {"instance_id": "i2"},
            {"state": WorkerState.STOPPED_GRACEFUL},
        ):
            await announce(gateway, "w", **more)
            shown = (await gateway.client.get("/workers/w")).json()
            assert (shown["hidden"], shown["updated_at"]) == (True, NOW)

    async def test_is_not_lost_in_a_race_with_heartbeats(self, gateway: Gateway, tmp_path: Path) -> None:
        """FLOW-148: a worker that announces itself all the time, and an operator who changes their mind"""
        await announce(gateway, "w")
        done = asyncio.Event()

        async def beat() -> int:
            beats = 0
            while not done.is_set():
                beats += 1
                await announce(gateway, "w", slots=beats)
                await asyncio.sleep(0.002)
            return beats

        async with open_gateway(replace(gateway.config, data_dir=str(tmp_path / "other"))) as other:
            beating = asyncio.create_task(beat())
            for n in range(40):
                answer = await patch((gateway, other)[n % 2], "w", n % 3 == 0)
                assert (answer.status_code, answer.json()["hidden"]) == (200, n % 3 == 0)
                assert ("w" in await listed((gateway, other)[n % 2], "?scope=all")) == (n % 3 != 0)
            done.set()
            beats = await beating
            last = await gateway.backend.registry.find("w")
            assert last is not None
            assert (last.hidden, last.slots) == (True, beats)

    async def test_takes_a_json_boolean_and_nothing_else(self, gateway: Gateway) -> None:
        """FLOW-61, FLOW-143"""
        cases: list[tuple[str, list[str]]] = [
            *(
                (f'{{"hidden": {value}}}', ["body", "hidden"])
                for value in ("1", "0", '"true"', "null", "[]", "{}", "1.0")
            ),
            ("{}", ["body", "hidden"]),
            ('{"Hidden": true}', ["body", "hidden"]),
            ("", ["body"]),
            ("[]", ["body"]),
            ("true", ["body"]),
            ("null", ["body"]),
            ('{"hidden": true', ["body"]),
            ('{"hidden": true}x', ["body"]),
            ("[" * 50_000, ["body"]),
            ('{"hidden": True}', ["body"]),
        ]
        await announce(gateway, "w")
        for body, loc in cases:
            for worker_id in ("w", "nobody"):
                answer = await gateway.client.patch(f"/workers/{worker_id}", content=body.encode())
                assert answer.status_code == 422, body[:80]
                problems = check_refusal(answer, number=19)
                assert [problem["loc"] for problem in problems] == [loc], body[:80]
                assert answer.json()["detail"] == problems, body[:80]
            assert (await gateway.client.get("/workers/w")).json()["updated_at"] is None, body[:80]

    async def test_passes_over_fields_it_does_not_know(self, gateway: Gateway) -> None:
        """FLOW-44"""
        await announce(gateway, "w", slots=3)
        body = {"hidden": True, "slots": 99, "worker_id": "x", "state": "IDLE"}
        assert (await gateway.client.patch("/workers/w", json=body)).status_code == 200
        shown = (await gateway.client.get("/workers/w")).json()
        assert (shown["hidden"], shown["slots"]) == (True, 3)

    async def test_refuses_a_body_that_is_too_large(self, gateway: Gateway) -> None:
        await announce(gateway, "w")
        body = b'{"hidden": true, "more": "' + b"x" * 70_000 + b'"}'
        answer = await gateway.client.patch("/workers/w", content=body)
        assert (answer.status_code, answer.json()) == (413, error(2, "request body too large"))


@pytest.mark.virtual_time
async def test_without_nats_nothing_is_said_of_workers_within_5_seconds(
    memory_nats_server: MemoryServer, tmp_path: Path
) -> None:
    """FLOW-47, FLOW-48, FLOW-62: not even what was true a moment ago"""
    async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
        await gateway.backend.registry.announce(a_worker("w"))
        assert await listed(gateway) == ["w"]
        memory_nats_server.kill()
        await eventually(lambda: not gateway.backend.is_up())

        async def ask_in_vain() -> None:
            answers = await asyncio.gather(
                gateway.client.get("/workers"), gateway.client.get("/workers/w"), patch(gateway, "w", True)
            )
            away = error(3, "nats unavailable")
            assert [(answer.status_code, answer.json()) for answer in answers] == [(503, away)] * 3

        async with asyncio.timeout(5.0):
            await ask_in_vain()
        assert (await gateway.client.get("/workers?limit=0")).status_code == 422
        memory_nats_server.start()

        async def is_back() -> bool:
            return (await gateway.client.get("/workers")).status_code == 200

        await eventually(is_back)
        assert await listed(gateway) == ["w"]


def test_asking_for_nothing_asks_for_the_active_ones() -> None:
    """FLOW-136 to FLOW-139"""
    wanted = read_workers_query(QueryParams(""))
    assert wanted.states == {WorkerState.RUNNING, WorkerState.IDLE}
    assert (wanted.include_hidden, wanted.tag, wanted.limit) == (False, None, 500)
