"""`GET /queues` and `GET /metrics/recent`: what waits, and what happened in the last hour."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doors.test_openapi import DOCUMENT, faults
from pyoco_server.actions.list_queues import crowds_by_tag
from pyoco_server.actions.measure import Crowd, crowd_of
from pyoco_server.core.flow_moves import claim
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import Owner
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.trend import COUNTED, MEASURED, Trend
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.http.state import State
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.backends import Clock
from support.doors_support import check_refusal
from support.earlier_versions import left_running
from support.gateways import Gateway, ended, fresh_gateway, stored, submit
from support.waiting import eventually


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        assert await state(gateway).feeder.caught_up(60)
        yield gateway


def state(gateway: Gateway) -> State:
    found: State = gateway.app.state.gateway
    return found


async def get(gateway: Gateway, path: str, **query: Any) -> Any:
    """Whatever is answered is what the document says."""
    answer = await gateway.client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    documented = DOCUMENT["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert faults(answer.json(), documented) == []
    return answer.json()


async def announce(gateway: Gateway, worker_id: str, age: float = 0.0, **more: Any) -> None:
    now = time.time() - age
    fields: dict[str, Any] = {"state": WorkerState.IDLE} | more
    record = WorkerRecord(worker_id=worker_id, instance_id="i", last_seen_at=now, last_heartbeat_at=now, **fields)
    await gateway.backend.registry.announce(record)


class Counted(WorkerRecord):
    """A worker that counts how often its liveness is checked."""

    asked = 0

    def derived_state(self, now: float, disconnect_seconds: float) -> WorkerState:
        Counted.asked += 1
        return super().derived_state(now, disconnect_seconds)


def test_each_worker_is_looked_at_once_however_many_tags_it_has() -> None:
    fields: dict[str, Any] = {"instance_id": "i", "state": WorkerState.IDLE, "last_heartbeat_at": 0.0}
    tags = [f"t{number}" for number in range(100)]
    workers = [
        Counted(worker_id=f"w{at}", tags=(*tags[at:], "t99"), last_seen_at=seen, slots=2, running=("r",) * at, **fields)
        for at, seen in enumerate((100.0, 99.0, 10.0, 98.0))
    ]
    Counted.asked = 0
    crowds = crowds_by_tag(workers, 100.0, 20.0)
    assert Counted.asked == len(workers)
    assert list(crowds) == tags
    for tag, crowd in crowds.items():
        assert crowd == crowd_of([each for each in workers if tag in each.tags], 100.0, 20.0)
    assert crowds["t99"] == Crowd(alive=3, slots=6, slots_busy=3, gone=1)


class TestQueues:
    async def test_the_longest_come_first_and_tags_that_only_workers_have_last(self, gateway: Gateway) -> None:
        began = time.time()
        assert (await get(gateway, "/queues"))["items"] == []
        for tag in ("a", "b", "b"):
            await submit(gateway, tag=tag)
        await announce(gateway, "one", tags=("b", "z", "idle", "b"), slots=3, running=("r1",))
        await announce(gateway, "two", tags=("b",), slots=1, running=("r2", "r3"))
        await announce(gateway, "silent", 1000, tags=("a", "nobody"), slots=9)
        body = await get(gateway, "/queues")
        assert began <= body["at"] <= time.time()
        items = {item["tag"]: item for item in body["items"]}
        assert list(items) == ["b", "a", "idle", "z"]
        assert {name: items["b"][name] for name in ("depth", "workers_alive", "slots", "slots_busy")} == {
            "depth": 2,
            "workers_alive": 2,
            "slots": 4,
            "slots_busy": 2,
        }
        assert items["b"]["oldest_age_seconds"] == pytest.approx(body["at"] - items["b"]["oldest_at"])
        assert (items["a"]["depth"], items["a"]["workers_alive"], items["a"]["slots"]) == (1, 0, 0)
        assert [items["z"][name] for name in ("depth", "oldest_at", "oldest_age_seconds")] == [0, None, None]
        assert {items["b"][name] for name in ("depth_before", "drained_per_minute", "eta_seconds")} == {None}

    async def test_growth_and_pace_are_told_once_they_are_known(self, gateway: Gateway) -> None:
        here, now = state(gateway), time.time()
        trend = here.trend = Trend()
        trend.sample(now - 660, 0, 0, {})
        for minute in range(10, 0, -1):
            trend.sample(now - 60 * minute, 0, 0, {"a": 7})
            for _ in range(4):
                trend.ended_of(now - 60 * minute, RunState.COMPLETED, "", "f", "a")
        await submit(gateway, tag="a")
        await submit(gateway, tag="b")
        assert [item["eta_seconds"] for item in (await get(gateway, "/queues"))["items"]] == [None, None]
        await announce(gateway, "one", tags=("a", "b"))
        first, second = (await get(gateway, "/queues"))["items"]
        assert [first[name] for name in ("depth_before", "drained_per_minute", "eta_seconds")] == [7, 4, 15]
        assert [second[name] for name in ("depth_before", "drained_per_minute", "eta_seconds")] == [0, 0, None]

    async def test_runs_that_an_earlier_version_handed_back_wait_there_too(self, gateway: Gateway) -> None:
        """Not those of a moment ago: the next worker takes them as it comes"""
        began, ages = time.time(), {"late": 50.0, "new": 0.0}
        for tag, age in ages.items():
            run_id = await submit(gateway, tag=tag)
            await submit(gateway, tag="late" if tag == "late" else "other")
            found, at = await stored(gateway, run_id), time.time() - age
            run = left_running(claim(found.run, Owner("anna", "i"), "1", at - 1), at)
            written = await gateway.backend.runs.replace(run, found.revision)
            assert isinstance(written, Stored)
            state(gateway).note_revision(written.revision)
        items = (await get(gateway, "/queues"))["items"]
        assert {item["tag"]: item["depth"] for item in items} == {"late": 2, "other": 1}
        assert 50 <= items[0]["oldest_age_seconds"] <= 50 + time.time() - began

    async def test_there_are_at_most_a_thousand(self, gateway: Gateway) -> None:
        await submit(gateway, tag="waits")
        await announce(gateway, "one", tags=tuple(f"t{number:04}" for number in range(1100)), slots=1)
        items = (await get(gateway, "/queues"))["items"]
        assert len(items) == 1000
        assert (items[0]["tag"], items[-1]["tag"]) == ("waits", "t0998")


class TestRecent:
    async def test_what_happened_is_told_when_its_step_is_over(self, gateway: Gateway) -> None:
        """Each end once, with its wait and its time, by the gateway's clock"""
        here = state(gateway)
        clock = Clock(time.time() // 10 * 10 + 1)
        here._sampler._backend = here.backend = replace(here.backend, clock=clock)
        first = (await get(gateway, "/metrics/recent"))["from"]
        for outcome in (Completed(), Completed(), Failed(message="x")):
            await ended(gateway, await submit(gateway), outcome)
        await submit(gateway)
        here._sampler.nudge()

        def is_heard() -> bool:
            step = here.trend._steps.now(clock.now)
            return list(step.counts.values()) == [4, 2, 1, 0] and step.waiting is not None

        await eventually(is_heard)
        before = clock.now
        clock.now += 10
        body = await get(gateway, "/metrics/recent")
        assert (body["now"], body["step_seconds"]) == (clock.now, 10)
        assert {len(body[name]) for name in (*COUNTED, *MEASURED)} == {(before // 10 * 10 - first) // 10 + 1}
        assert [body[name][-1] for name in COUNTED] == [4, 2, 1, 0]
        assert all(0 <= body[name][-1] < 60 for name in MEASURED)
        last = body["from"] + 10 * (len(body["failed"]) - 1)
        assert last == before // 10 * 10
        assert (await get(gateway, "/metrics/recent", after=last - 1))["failed"] == [1]
        nothing = await get(gateway, "/metrics/recent", after=last)
        assert (nothing["from"], nothing["failed"]) == (last + 10, [])
        clock.now += 10
        assert (await get(gateway, "/metrics/recent", after=last))["failed"] == [0]
        clock.now -= 5000
        assert (await get(gateway, "/metrics/recent", after=last))["failed"] == [], "the clock was set back"

    async def test_what_is_no_instant_is_refused(self, gateway: Gateway) -> None:
        """FLOW-59, FLOW-60"""
        for after in ("", "soon", "-1", "nan", "inf", "1e999", "1_0", "0x1", "1" * 500):
            answer = await gateway.client.get("/metrics/recent", params={"after": after})
            assert [problem["loc"] for problem in check_refusal(answer, 17)] == [["query", "after"]]
        answer = await gateway.client.get("/metrics/recent?after=1&after=2")
        assert check_refusal(answer, 17)[0]["msg"] == "is given more than once"
