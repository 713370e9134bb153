"""`GET /runs/{id}` of a run that no worker has taken says why."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.actions import explain_wait
from pyoco_server.core.api_key import make_key
from pyoco_server.core.flow_moves import ask_cancel, put_back
from pyoco_server.core.outcome import Completed
from pyoco_server.core.run import Run
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.port import Stored
from support.faulty_ports import AFTER, BEFORE, Trouble, with_trouble
from support.gateways import Gateway, claimed, ended, fresh_gateway, stored, submit
from support.waiting import eventually

Waiting = dict[str, Any]


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        assert await gateway.app.state.gateway.feeder.caught_up(60)
        yield gateway


async def announce(gateway: Gateway, worker_id: str, **more: Any) -> None:
    now = time.time() - more.pop("age", 0.0)
    fields: dict[str, Any] = {"state": WorkerState.IDLE, "tags": ("default",), "slots": 1} | more
    record = WorkerRecord(worker_id=worker_id, instance_id="i", last_seen_at=now, last_heartbeat_at=now, **fields)
    await gateway.backend.registry.announce(record)


async def shown(gateway: Gateway, run_id: str, **headers: str) -> dict[str, Any]:
    answer = await gateway.client.get(f"/runs/{run_id}", headers=headers)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def waiting(gateway: Gateway, run_id: str, **headers: str) -> Waiting:
    found: Waiting = (await shown(gateway, run_id, **headers))["waiting"]
    return found


async def queued(gateway: Gateway, *run_ids: str) -> None:
    """Lists know these runs."""

    async def are_listed() -> bool:
        listed = (await gateway.client.get("/runs", params={"limit": 200})).json()
        return set(run_ids) <= {run["run_id"] for run in listed}

    await eventually(are_listed)


async def put(gateway: Gateway, number: int, age: float = 0.0, **more: Any) -> str:
    """A PENDING run that was submitted that long ago."""
    at = time.time() - age
    fields: dict[str, Any] = {"flow_name": "hello", "tag": "default"} | more
    run = Run(
        run_id=f"00000000-0000-4000-8000-{number:012d}", submitted_at=at, updated_at=at, heartbeat_at=at, **fields
    )
    assert isinstance(await gateway.backend.runs.create(run), Stored)
    return run.run_id


class TestReasons:
    async def test_no_worker_serves_the_tag(self, gateway: Gateway) -> None:
        await announce(gateway, "elsewhere", tags=("cpu", "gpu-2"))
        assert await waiting(gateway, await submit(gateway, tag="gpu")) == {
            "reason": "no_worker",
            "message": "No worker serves tag gpu. Start one with: "
            "pyoco-worker --flow-resolver MODULE:CALLABLE --tags gpu",
            "message_ja": "タグ gpu を担当するworkerがいません。次のコマンドで起動してください: "
            "pyoco-worker --flow-resolver MODULE:CALLABLE --tags gpu",
            "position": 1,
            "position_capped": False,
            "workers_alive": 0,
            "slots": 0,
            "slots_busy": 0,
            "oldest_ahead": None,
        }

    async def test_the_workers_of_the_tag_are_gone(self, gateway: Gateway) -> None:
        await announce(gateway, "silent", age=1000, slots=4)
        await announce(gateway, "stopped", state=WorkerState.STOPPED_GRACEFUL, slots=4)
        told = await waiting(gateway, await submit(gateway))
        assert (told["reason"], told["workers_alive"], told["slots"]) == ("workers_disconnected", 0, 0)
        assert told["message"].endswith("Stopped or silent: 2.")

    async def test_every_slot_is_busy(self, gateway: Gateway) -> None:
        await announce(gateway, "a", state=WorkerState.RUNNING, slots=2, running=("x", "y"), tags=("cpu", "default"))
        await announce(gateway, "b", state=WorkerState.RUNNING, slots=1, running=("z", "claimed ahead"), hidden=True)
        await announce(gateway, "c", slots=8, tags=("cpu",))
        told = await waiting(gateway, await submit(gateway))
        assert (told["reason"], told["position"]) == ("busy", 1)
        assert (told["workers_alive"], told["slots"], told["slots_busy"]) == (2, 3, 3)

    async def test_others_are_ahead(self, gateway: Gateway) -> None:
        await announce(gateway, "a", state=WorkerState.RUNNING, running=("x",))
        first, second, third = [await submit(gateway) for _ in range(3)]
        other = await submit(gateway, tag="gpu")
        await queued(gateway, first, second, third, other)
        assert [(await waiting(gateway, run_id))["position"] for run_id in (first, second, third, other)] == [
            1,
            2,
            3,
            1,
        ]
        asked_at = time.time()
        told = await waiting(gateway, third)
        assert (told["reason"], told["position_capped"]) == ("queue", False)
        oldest = told["oldest_ahead"]
        at = (await stored(gateway, first)).run.submitted_at
        assert oldest.keys() == {"run_id", "submitted_at", "age_seconds"}
        assert (oldest["run_id"], oldest["submitted_at"]) == (first, at)
        assert asked_at - at <= oldest["age_seconds"] <= time.time() - at
        await claimed(gateway, first)

        async def moved_up() -> bool:
            return bool((await waiting(gateway, third))["position"] == 2)

        await eventually(moved_up)
        assert (await waiting(gateway, third))["oldest_ahead"]["run_id"] == second

    async def test_it_begins_at_any_moment(self, gateway: Gateway) -> None:
        await announce(gateway, "a", slots=4, state=WorkerState.RUNNING, running=("x",))
        runs = [await submit(gateway) for _ in range(4)]
        await queued(gateway, *runs)
        reasons = [(await waiting(gateway, run_id))["reason"] for run_id in runs]
        assert reasons == ["starting", "starting", "starting", "queue"]

    async def test_it_could_have_begun_long_ago(self, gateway: Gateway) -> None:
        await announce(gateway, "a")
        told = await waiting(gateway, await put(gateway, 1, age=100))
        assert told["reason"] == "unclear"
        assert "none has taken the run in 10" in told["message"]

    async def test_places_far_back_are_not_counted_out(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(explain_wait, "AHEAD_MAX", 2)
        await announce(gateway, "a", state=WorkerState.RUNNING, running=("x",))
        runs = [await put(gateway, number, age=100 - number) for number in range(4)]
        await queued(gateway, *runs)
        told = [await waiting(gateway, run_id) for run_id in runs]
        assert [(each["position"], each["position_capped"]) for each in told] == [
            (1, False),
            (2, False),
            (3, True),
            (3, True),
        ]
        assert "Ahead: 2 or more." in told[3]["message"]


class TestWhoWaits:
    async def test_a_run_that_is_executed_or_has_ended_does_not_wait_and_costs_no_look(self, gateway: Gateway) -> None:
        running, done = await submit(gateway), await submit(gateway)
        await claimed(gateway, running)
        await ended(gateway, done, Completed())
        cancelling = await submit(gateway)
        await claimed(gateway, cancelling)
        await gateway.client.post(f"/runs/{cancelling}/cancel")
        looks = watched(gateway)
        for run_id in (running, done, cancelling):
            assert "waiting" not in await shown(gateway, run_id)
        assert looks.calls == ["runs.find", "registry.find"] * 3

    async def test_a_run_that_waits_costs_no_further_round_trip(self, gateway: Gateway) -> None:
        """Index and registry are in this process"""
        run_id = await submit(gateway)
        looks = watched(gateway)
        await waiting(gateway, run_id)
        assert looks.calls == ["runs.find", "index.ahead", "registry.all"]

    async def test_a_run_that_was_handed_back_waits_and_is_next(self, gateway: Gateway) -> None:
        ahead = await put(gateway, 1, age=100)
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        assert "waiting" not in await shown(gateway, run_id)
        found = await stored(gateway, run_id)
        await gateway.backend.runs.replace(put_back(found.run, time.time()), found.revision)
        await queued(gateway, ahead, run_id)
        told = await waiting(gateway, run_id)
        assert (told["reason"], told["position"], told["oldest_ahead"]) == ("no_worker", 1, None)
        await announce(gateway, "a")
        assert (await waiting(gateway, run_id))["reason"] == "starting"

    async def test_a_run_that_was_cancelled_before_it_began_waits_for_nothing(self, gateway: Gateway) -> None:
        run_id = await put(gateway, 1)
        found = await stored(gateway, run_id)
        await gateway.backend.runs.replace(ask_cancel(found.run, None, time.time()), found.revision)
        shown_now = await shown(gateway, run_id)
        assert shown_now["status"] == "CANCELLING"
        assert "waiting" not in shown_now

    async def test_lists_and_tasks_do_not_explain(self, gateway: Gateway) -> None:
        run_id = await submit(gateway)
        assert "waiting" not in (await gateway.client.get("/runs?include=full")).json()[0]
        assert "waiting" not in (await gateway.client.get(f"/runs/{run_id}/tasks")).json()


def watched(gateway: Gateway, **plan: list[str]) -> Trouble:
    """From now on every call of a port is noted, and goes wrong as planned."""
    trouble = Trouble({name.replace("_", "."): fates for name, fates in plan.items()})
    state = gateway.app.state.gateway
    state.backend = with_trouble(state.backend, trouble, "runs", "index", "registry")
    return trouble


class TestBestEffort:
    async def test_what_cannot_be_told_is_left_out(self, gateway: Gateway) -> None:
        for call in ["index_ahead", "registry_all"]:
            for fate in [BEFORE, AFTER]:
                run_id = await submit(gateway)
                watched(gateway, **{call: [fate]})
                assert "waiting" not in await shown(gateway, run_id), (call, fate)
                assert "waiting" in await shown(gateway, run_id), (call, fate)

    async def test_a_crowd_of_pollers_does_not_fill_the_log(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The explanation is a kindness, and so is not to tell of each one that was left out."""
        run_id = await submit(gateway)
        watched(gateway, index_ahead=[BEFORE])
        with caplog.at_level(logging.INFO):
            assert "waiting" not in await shown(gateway, run_id)
        assert [record.message for record in caplog.records if "why the run waits" in record.message] == []

    async def test_a_look_at_a_long_queue_is_a_short_one(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every poll of a waiting run takes it, on the one thread that reads the index."""
        asked: list[int] = []
        real = gateway.backend.index.ahead

        async def ahead(tag: str, submitted_at: float, run_id: str, limit: int) -> Any:
            asked.append(limit)
            return await real(tag, submitted_at, run_id, limit)

        monkeypatch.setattr(gateway.backend.index, "ahead", ahead)
        await waiting(gateway, await submit(gateway))
        assert asked == [1000]

    @pytest.mark.usefixtures("impatient_gateways")
    async def test_nobody_waits_long_for_an_explanation(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_id = await submit(gateway)

        async def never(*_: object) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(gateway.backend.index, "ahead", never)
        began = time.monotonic()
        assert "waiting" not in await shown(gateway, run_id)
        assert time.monotonic() - began < 60

    async def test_an_index_that_is_not_whole_yet_is_not_asked(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def not_yet(_: float) -> bool:
            return False

        run_id = await submit(gateway)
        monkeypatch.setattr(gateway.app.state.gateway.feeder, "caught_up", not_yet)
        assert "waiting" not in await shown(gateway, run_id)


class TestTenants:
    @pytest.fixture
    async def closed(self, link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
        async with fresh_gateway(link, nats_url, tmp_path / "closed", http_auth_mode="api_key") as gateway:
            assert await gateway.app.state.gateway.feeder.caught_up(60)
            yield gateway

    async def key(self, gateway: Gateway, tenant: str) -> dict[str, str]:
        plain, record = make_key(tenant, "", time.time(), secrets.token_hex, secrets.token_urlsafe)
        await gateway.backend.keys.add(record)
        return {"X-API-Key": plain}

    async def test_another_tenants_run_ahead_is_told_by_its_age_alone(self, closed: Gateway) -> None:
        """FLOW-273, FLOW-275: places are shared, names are not"""
        anna, bert = await self.key(closed, "anna"), await self.key(closed, "bert")
        began = time.time()
        theirs = await put(closed, 1, age=50, tenant_id="anna")
        mine = await put(closed, 2, age=40, tenant_id="bert")
        later = await put(closed, 3, age=30, tenant_id="bert")

        async def are_ahead() -> bool:
            return bool((await waiting(closed, later, **bert))["position"] == 3)

        await eventually(are_ahead)
        answer = await closed.client.get(f"/runs/{later}", headers=bert)
        told = answer.json()["waiting"]["oldest_ahead"]
        assert told.keys() == {"age_seconds"}
        assert 50 <= told["age_seconds"] <= 50 + time.time() - began
        assert [word for word in (theirs, "anna") if word in answer.text] == []
        assert (await waiting(closed, theirs, **anna))["oldest_ahead"] is None

        found = await stored(closed, theirs)
        await closed.backend.runs.withdraw(theirs, found.revision)

        async def has_left() -> bool:
            return bool((await waiting(closed, later, **bert))["position"] == 2)

        await eventually(has_left)
        assert (await waiting(closed, later, **bert))["oldest_ahead"]["run_id"] == mine

    async def test_a_run_of_nobody_is_hidden(self, closed: Gateway) -> None:
        """FLOW-275"""
        bert = await self.key(closed, "bert")
        nobodys = await put(closed, 1, age=50)
        mine = await put(closed, 2, tenant_id="bert")

        async def is_ahead() -> bool:
            return bool((await waiting(closed, mine, **bert))["position"] == 2)

        await eventually(is_ahead)
        answer = await closed.client.get(f"/runs/{mine}", headers=bert)
        assert answer.json()["waiting"]["oldest_ahead"].keys() == {"age_seconds"}
        assert nobodys not in answer.text

    async def test_without_authentication_everything_is_told(self, gateway: Gateway) -> None:
        first, second = await put(gateway, 1, age=50, tenant_id="anna"), await put(gateway, 2)
        await queued(gateway, first, second)
        assert (await waiting(gateway, second))["oldest_ahead"]["run_id"] == first


async def test_a_strangers_tag_breaks_nothing(gateway: Gateway) -> None:
    for number, tag in enumerate(["", "a b", "{tag}", "'; --", "日本"]):
        run_id = await put(gateway, number, tag=tag)
        told = await waiting(gateway, run_id)
        assert told["reason"] == "no_worker"
        assert f"serves tag {tag}." in told["message"]
    record = replace((await stored(gateway, run_id)).run, run_id="00000000-0000-4000-8000-999999999999", tag="x\0y")
    await gateway.backend.runs.create(record)
    assert (await waiting(gateway, record.run_id))["position"] == 1
