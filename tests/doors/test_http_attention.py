"""`GET /attention`: current problems are reported, past ones are not, and an outage is a finding."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.dead_letters import a_letter
from doors.test_openapi import DOCUMENT, faults
from pyoco_server.core.api_key import make_key
from pyoco_server.core.flow_moves import claim, conclude
from pyoco_server.core.outcome import Completed, Failed
from pyoco_server.core.run import Caller, Owner, Run
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.doors.http.state import State
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from pyoco_server.ports.store_state import StoreState
from support.backends import ANNA, BERT
from support.burials import bury_letter, died
from support.earlier_versions import left_running
from support.faulty_ports import BEFORE, Trouble, with_trouble
from support.gateways import Gateway, ended, fresh_gateway, open_gateway, stored, submit
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually

Items = list[dict[str, Any]]
SCHEMA = DOCUMENT["paths"]["/attention"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        assert await state(gateway).feeder.caught_up(60)
        assert await state(gateway).dead_letter_feeder.caught_up(60)
        yield gateway


def state(gateway: Gateway) -> State:
    found: State = gateway.app.state.gateway
    return found


async def look(gateway: Gateway, **headers: str) -> Items:
    answer = await gateway.client.get("/attention", headers=headers)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert faults(body, SCHEMA) == []
    items: Items = body["items"]
    return items


async def tells(gateway: Gateway, *kinds: str, **headers: str) -> Items:
    """The findings, once they are of exactly these kinds."""
    seen: Items = []

    async def are_these() -> bool:
        seen[:] = await look(gateway, **headers)
        return [item["kind"] for item in seen] == list(kinds)

    try:
        await eventually(are_these)
    except AssertionError:
        raise AssertionError(f"it tells {seen}, not {kinds}") from None
    return seen


async def announce(gateway: Gateway, worker_id: str, age: float = 0.0, **more: Any) -> None:
    now = time.time() - age
    fields: dict[str, Any] = {"state": WorkerState.RUNNING, "tags": ("default",), "slots": 1} | more
    record = WorkerRecord(worker_id=worker_id, instance_id="i", last_seen_at=now, last_heartbeat_at=now, **fields)
    await gateway.backend.registry.announce(record)


async def put(gateway: Gateway, number: int, age: float = 0.0, owner: Any = None, **more: Any) -> str:
    """A run of that age; with an owner it is RUNNING since then, without a heartbeat."""
    at = time.time() - age
    fields: dict[str, Any] = {"flow_name": "hello", "tag": "default"} | more
    run_id = f"00000000-0000-4000-8000-{number:012d}"
    run = Run(run_id=run_id, submitted_at=at, updated_at=at, heartbeat_at=at, **fields)
    run = run if owner is None else claim(run, owner, f"attempt-{number}", at)
    assert isinstance(await gateway.backend.runs.create(run), Stored)
    return run_id


async def write(gateway: Gateway, run_id: str, change: Any) -> None:
    found = await stored(gateway, run_id)
    assert isinstance(await gateway.backend.runs.replace(change(found.run), found.revision), Stored)


async def test_a_deployment_that_is_well_tells_nothing(gateway: Gateway) -> None:
    await announce(gateway, "anna", wheel_sync={"enabled": True, "status": "ok"})
    await announce(gateway, "gone", age=1000, state=WorkerState.STOPPED_GRACEFUL)
    await ended(gateway, await submit(gateway), Completed())
    await submit(gateway)
    await put(gateway, 1, owner=ANNA)
    assert await tells(gateway) == []


async def test_runs_that_nobody_will_take_are_told_with_what_to_do(gateway: Gateway) -> None:
    began = time.time()
    await put(gateway, 1, age=40, tag="gpu")
    await put(gateway, 2, age=10, tag="gpu")
    await put(gateway, 3, age=10, tag="new")
    await announce(gateway, "silent", age=1000, tags=("gpu",))
    [item] = await tells(gateway, "tag_without_worker")

    async def counts_both() -> bool:
        [item] = await look(gateway)
        return bool(item["facts"]["depth"] == 2)

    await eventually(counts_both)
    assert (item["level"], item["facts"]["tag"]) == ("danger", "gpu")
    assert began - 40 <= item["facts"]["oldest_at"] <= time.time() - 40
    assert item["message"].endswith("pyoco-worker --flow-resolver MODULE:CALLABLE --tags gpu")
    await announce(gateway, "anna", tags=("gpu",))
    await tells(gateway)


async def test_a_silent_workers_runs_are_told_until_others_have_them(gateway: Gateway) -> None:
    mine, ended_since, taken_over = [await put(gateway, number, 25, owner=ANNA) for number in (1, 2, 3)]
    await announce(gateway, "anna", age=25, running=(mine, ended_since, taken_over, "no such run"))
    await announce(gateway, "bert")
    [item] = await tells(gateway, "workers_lost")

    async def are_three() -> bool:
        [item] = await tells(gateway, "workers_lost")
        return bool(item["count"] == 3)

    await eventually(are_three)
    assert (item["level"], item["facts"]["worker_id"]) == ("danger", "anna")
    await write(gateway, ended_since, lambda run: conclude(run, Completed(), time.time()))
    await write(gateway, taken_over, lambda run: claim(run, BERT, "attempt-9", time.time()))

    async def only_mine() -> bool:
        [item] = await tells(gateway, "workers_lost")
        return bool(item["facts"]["run_ids"] == [mine])

    await eventually(only_mine)
    await write(gateway, mine, lambda run: claim(run, BERT, "attempt-9", time.time()))
    await tells(gateway)


async def test_runs_without_a_heartbeat_are_told_once(gateway: Gateway) -> None:
    """FLOW-30. Those of a silent worker are reported with it"""
    await put(gateway, 1, age=1, owner=BERT)
    stale = await put(gateway, 2, age=40, owner=BERT)
    lost = await put(gateway, 3, age=50, owner=ANNA)
    await announce(gateway, "anna", age=50, running=(lost,))
    _, item = await tells(gateway, "workers_lost", "stale_runs")
    assert (item["level"], item["count"], item["facts"]) == ("warning", 1, {"run_ids": [stale]})


async def test_runs_that_an_earlier_version_handed_back_wait_for_a_worker_as_others_do(gateway: Gateway) -> None:
    """FLOW-30: no worker executes them, so no heartbeat is missing; their tag has no worker"""

    began = time.time()

    def back(run: Run) -> Run:
        return left_running(run, time.time() - 40)

    for number in (1, 2):
        await write(gateway, await put(gateway, number, age=100, owner=ANNA, tag="gpu"), back)
    await put(gateway, 3, age=35, tag="gpu")

    async def counts_all() -> bool:
        [item] = await tells(gateway, "tag_without_worker")
        return bool(item["count"] == item["facts"]["depth"] == 3)

    await eventually(counts_all)
    [item] = await look(gateway)
    assert began - 40 <= item["facts"]["oldest_at"] <= time.time() - 40
    await announce(gateway, "bert", tags=("gpu",))
    await tells(gateway)


async def test_a_run_that_was_lost_twice_is_told_with_its_last_worker(gateway: Gateway) -> None:
    """Whichever of the records is read first"""
    for number, (first, last) in enumerate((("a", "z"), ("z", "a"))):
        run_id = await put(gateway, number, age=300, owner=Owner(first, "i"))
        await write(gateway, run_id, lambda run, last=last: claim(run, Owner(last, "i"), "attempt-9", time.time() - 40))
        await announce(gateway, first, age=300, running=(run_id,))
        await announce(gateway, last, age=40, running=(run_id,))

        async def is_last_ones(last: str = last, run_id: str = run_id) -> bool:
            found = [item["facts"] for item in await look(gateway)]
            return {"worker_id": last, "run_ids": [run_id]} in found

        await eventually(is_last_ones)
        await write(gateway, run_id, lambda run: conclude(run, Completed(), time.time()))
    await tells(gateway)


async def test_old_records_of_silent_workers_do_not_hide_the_newest(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyoco_server.actions.attend._RUNS_MAX", 8)
    for number in range(5):
        await announce(gateway, f"a{number}", age=86_400, running=tuple(f"{number}-{each}" for each in range(4)))
    mine = await put(gateway, 1, age=60, owner=Owner("just-lost", "i"))
    await announce(gateway, "just-lost", age=60, running=(mine,))
    [item] = await tells(gateway, "workers_lost")
    assert item["facts"] == {"worker_id": "just-lost", "run_ids": [mine]}


async def test_a_flow_that_fails_is_told(gateway: Gateway) -> None:
    outcomes: list[Completed | Failed] = [Completed(), Completed(), *(Failed(message="x") for _ in range(5))]
    for outcome in outcomes:
        await ended(gateway, await submit(gateway, flow_name="main"), outcome)
    [item] = await tells(gateway, "failing_flow")
    assert (item["level"], item["facts"]) == ("danger", {"flow": "main", "failed": 5, "ended": 7})


async def test_dead_letters_are_told_with_those_of_the_last_hour(gateway: Gateway) -> None:
    await bury_letter(gateway.backend, a_letter(timestamp=time.time() - 4000))
    await bury_letter(gateway.backend, a_letter(timestamp=time.time() - 3000))
    [item] = await tells(gateway, "dead_letters")
    assert (item["count"], item["facts"]) == (2, {"count": 2, "new": 1})


async def test_workers_that_could_not_install_a_wheel_are_told(gateway: Gateway) -> None:
    broken = {"enabled": True, "status": "error", "failed": [{"wheel_name": "x.whl", "error": "pip"}]}
    for name, age in (("bert", 0.0), ("anna", 0.0), ("gone", 1000.0)):
        await announce(gateway, name, age=age, wheel_sync=broken)
    [item] = await tells(gateway, "wheel_failures")
    assert (item["count"], item["facts"]) == (2, {"worker_ids": ["anna", "bert"]})


async def test_a_queue_that_grows_is_told(gateway: Gateway) -> None:
    await announce(gateway, "anna")
    await asyncio.gather(*(put(gateway, number, age=90) for number in range(1, 61)))
    here, now = state(gateway), time.time()
    here.trend = type(here.trend)()
    here.trend.sample(now - 600, 0, 4, {"default": 4})
    here.trend.sample(now - 120, 0, 30, {"default": 30})
    [item] = await tells(gateway, "growing_queue")

    async def are_sixty() -> bool:
        [item] = await look(gateway)
        return bool(item["facts"] == {"tag": "default", "depth": 60, "depth_before": 4})

    await eventually(are_sixty)
    assert item["level"] == "warning"


@pytest.mark.parametrize(("found", "stuck"), [(StoreState.FULL, False), (StoreState.STUCK, True)])
async def test_a_full_store_is_told(gateway: Gateway, found: StoreState, stuck: bool) -> None:
    state(gateway).backend = replace(gateway.backend, store_state=lambda: found)
    [item] = await tells(gateway, "store_full")
    assert (item["level"], item["facts"]) == ("danger", {"stuck": stuck})


#: What is left when one thing cannot be read.
LEFT = {
    "index.counts": ["workers_lost", "dead_letters"],
    "index.held": ["tag_without_worker", "dead_letters"],
    "dead_letter_index.total": ["tag_without_worker", "workers_lost"],
    "dead_letter_index.recent": ["tag_without_worker", "workers_lost"],
    "registry.all": ["dead_letters"],
}


async def in_trouble(gateway: Gateway) -> None:
    """Three things to tell, each from another list."""
    await put(gateway, 1, age=60, tag="gpu")
    await announce(gateway, "anna", age=25, running=(await put(gateway, 2, age=25, owner=ANNA),))
    await bury_letter(gateway.backend, a_letter(timestamp=time.time()))
    await tells(gateway, "tag_without_worker", "workers_lost", "dead_letters")


@pytest.mark.parametrize("call", LEFT)
async def test_what_cannot_be_read_is_told_as_such_and_the_rest_is_told(gateway: Gateway, call: str) -> None:
    await in_trouble(gateway)
    trouble = Trouble(plan={call: [BEFORE]})
    state(gateway).backend = with_trouble(gateway.backend, trouble, "index", "dead_letter_index", "registry")
    assert {item["kind"] for item in await look(gateway)} == {"index_behind", *LEFT[call]}
    await tells(gateway, "tag_without_worker", "workers_lost", "dead_letters")


@pytest.mark.steady_time
@pytest.mark.parametrize("call", LEFT)
async def test_what_takes_too_long_is_not_waited_for_by_the_rest(
    gateway: Gateway, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await in_trouble(gateway)
    monkeypatch.setattr("pyoco_server.actions.attend._SECONDS_MAX", 0.5)
    trouble = Trouble(meanwhile={call: lambda: asyncio.sleep(600)})
    state(gateway).backend = with_trouble(gateway.backend, trouble, "index", "dead_letter_index", "registry")
    assert {item["kind"] for item in await look(gateway)} == {"index_behind", *LEFT[call]}


class TestTenants:
    @pytest.fixture
    async def closed(self, link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link, nats_url, tmp_path / "closed", http_auth_mode="api_key") as gateway:
            assert await state(gateway).feeder.caught_up(60)
            assert await state(gateway).dead_letter_feeder.caught_up(60)
            yield gateway

    async def key(self, gateway: Gateway, tenant: str) -> dict[str, str]:
        plain, record = make_key(tenant, "", time.time(), secrets.token_hex, secrets.token_urlsafe)
        await gateway.backend.keys.add(record)
        return {"X-API-Key": plain}

    async def test_runs_flows_and_letters_are_those_of_the_caller(self, closed: Gateway) -> None:
        """FLOW-273 to FLOW-276: workers and queues are shared, names of runs and flows are not"""
        anna, bert, cora = [await self.key(closed, tenant) for tenant in ("anna", "bert", "cora")]
        for _ in range(5):
            await died(closed.backend, Caller("anna"), flow_name="annas flow")
        stale = await put(closed, 1, age=40, owner=BERT, tenant_id="anna")
        lost = [await put(closed, 2 + at, 25, owner=ANNA, tenant_id=name) for at, name in enumerate(("anna", "bert"))]
        await announce(closed, "anna", age=25, running=tuple(lost))
        await put(closed, 9, age=60, tag="gpu", tenant_id="anna")
        shared = ("tag_without_worker", "workers_lost")
        annas = await tells(closed, *shared, "failing_flow", "dead_letters", "stale_runs", **anna)
        berts = await tells(closed, *shared, **bert)
        assert [item["facts"] for item in annas][1:] == [
            {"worker_id": "anna", "run_ids": [lost[0]]},
            {"flow": "annas flow", "failed": 5, "ended": 5},
            {"count": 5, "new": 5},
            {"run_ids": [stale]},
        ]
        assert berts[1]["facts"] == {"worker_id": "anna", "run_ids": [lost[1]]}
        coras = await tells(closed, *shared, **cora)
        assert (coras[1]["count"], coras[1]["facts"]["run_ids"]) == (2, [])
        assert [word for word in (stale, *lost, "annas flow") if word in str(coras)] == []


@pytest.mark.virtual_time
async def test_an_outage_is_told_and_ends_by_itself(memory_nats_server: MemoryServer, tmp_path: Path) -> None:
    """What is in memory is reported at once; lists are not current, so `/queues` says so (FLOW-47)"""
    async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
        assert await state(gateway).feeder.caught_up(60)
        await put(gateway, 1, age=60, tag="gpu")
        await tells(gateway, "tag_without_worker")
        memory_nats_server.kill()
        await eventually(lambda: not gateway.backend.is_up())
        began = time.monotonic()
        [item] = await look(gateway)
        assert (item["kind"], item["level"], item["facts"]) == ("nats_down", "danger", {})
        assert (await gateway.client.get("/metrics/recent")).status_code == 200
        assert time.monotonic() - began < 60
        assert (await gateway.client.get("/queues")).status_code == 503
        memory_nats_server.start()

        async def is_well_again() -> bool:
            return [item["kind"] for item in await look(gateway)] == ["tag_without_worker"]

        await eventually(is_well_again, 30)
