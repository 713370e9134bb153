"""Both clients against a real gateway: every method once, and what only a real one can show."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import Any

import httpx
import pytest

from contracts.registry import a_worker
from pyoco_server.client import waiting
from pyoco_server.core.flow_moves import conclude
from pyoco_server.core.outcome import Completed
from pyoco_server.http_client import RunWatchEvent
from pyoco_server.ports.runs.port import Stored
from support.burials import died
from support.client_twins import MakeClient
from support.gateways import FLOW_YAML, Gateway, claimed, ended, open_gateway
from support.gateways import listening as listen
from support.scripted_gateway import Asked, forwarding, scripted, upstream
from support.waiting import eventually


async def end(gateway: Gateway, run_id: str) -> None:
    """What a worker does: end the run that it has."""
    found = await gateway.backend.runs.find(run_id)
    assert isinstance(found, Stored)
    await gateway.backend.runs.replace(conclude(found.run, Completed(), time.time()), found.revision)


async def is_ready(client: Any) -> bool:
    """Not before its lists are true."""
    with contextlib.suppress(httpx.HTTPStatusError):
        return bool((await client.ready())["status"] == "ready")
    return False


class TestRuns:
    async def test_are_submitted_and_read(self, make: MakeClient, url: str) -> None:
        """FLOW-401, FLOW-402, FLOW-408, FLOW-409, FLOW-414"""
        async with make(url) as client:
            assert await client.health() == {"status": "ok"}
            await eventually(lambda: is_ready(client))
            accepted = await client.submit_run("hello", {"name": "あなた"}, "gpu", ["x"])
            run = await client.get_run(accepted["run_id"], ["records"])
            assert (run["params"], run["tag"], run["tags"]) == ({"name": "あなた"}, "gpu", ["x"])
            assert run["task_records"] == {}
            named = await client.submit_run_yaml(FLOW_YAML, "gpu", "mine")
            assert (await client.get_run(named["run_id"]))["params"]["mode"] == "バッチ"
            assert (await client.get_tasks(named["run_id"]))["flow_name"] == "mine"
            assert "pyoco_runs_total" in await client.get_metrics()
            assert [queue["depth"] for queue in (await client.list_queues())["items"]] == [2]
            assert (await client.get_attention())["items"] == []
            recent = await client.get_recent_metrics(after=time.time())
            assert (recent["step_seconds"], recent["completed"]) == (10, [])

    async def test_are_submitted_together_and_again(self, make: MakeClient, url: str) -> None:
        async with make(url) as client:
            batch = await client.submit_batch([{"flow_name": "a"}, {"flow_name": ""}, {"flow_name": "b", "tag": "gpu"}])
            assert (batch["accepted"], batch["refused"]) == (2, 1)
            assert batch["items"][1]["status_code"] == 422
            first = batch["items"][2]["run_id"]
            again = await client.rerun_run(first, params={"x": 1}, idempotency_key="again")
            assert again["rerun_of"] == first
            assert await client.rerun_run(first, params={"x": 1}, idempotency_key="again") == again
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.rerun_run(first, params={"x": 2}, idempotency_key="again")
            assert raised.value.response.status_code == 409
            assert (await client.get_run(again["run_id"]))["params"] == {"x": 1}

    async def test_are_listed_page_by_page(self, make: MakeClient, url: str) -> None:
        """FLOW-410, FLOW-411"""
        async with make(url) as client:
            runs = [{"flow_name": "f", "tag": f"t{number % 2}"} for number in range(7)]
            batch = await client.submit_batch(runs)
            newest = {line["run_id"] for line in batch["items"]}
            page = await client.list_runs_vnext(flow="f", limit=3)
            assert len(page["items"]) == 3
            rest = await client.list_runs_vnext(flow="f", limit=200, cursor=page["next_cursor"])
            assert rest["next_cursor"] is None
            assert {run["run_id"] for run in page["items"] + rest["items"]} == newest
            walked = [run["run_id"] async for run in client.iter_runs(flow="f", page_size=2)]
            assert len(walked) == 7
            assert set(walked) == newest
            assert len([run async for run in client.iter_runs(tag="t1", include=["full"])]) == 3
            assert len([run async for run in client.iter_runs(search="T1")]) == 3  # CLI-16
            assert [run async for run in client.iter_runs(flow="nobody")] == []
            assert len(await client.list_runs(flow="f", limit=2)) == 2

    async def test_are_cancelled(self, make: MakeClient, url: str) -> None:
        """FLOW-403"""
        async with make(url) as client:
            ids = [(await client.submit_run("f"))["run_id"] for _ in range(3)]
            one = await client.cancel_run(ids[0], reason="wrong")
            assert (one["status"], one["cancel_reason"]) == ("CANCELLING", "wrong")
            many = await client.cancel_runs(flow="f")
            assert (many["matched"], many["asked"]) == (2, 2)
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.cancel_runs()
            assert raised.value.response.status_code == 422
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.cancel_runs(flwo="f")
            assert raised.value.response.status_code == 422

    async def test_whose_answer_is_lost_are_submitted_once(self, make: MakeClient, url: str) -> None:
        """FLOW-401, FLOW-402: by name, from a file, together, and again"""
        lost: list[Asked] = []

        def lose_every_second(asked: Asked) -> bool:
            lost.append(asked)
            return len(lost) % 2 == 1

        async with make(url) as real, scripted(*[forwarding(url, lose_every_second)] * 8) as proxy:
            async with make(proxy.url) as client:
                ids = [
                    (await client.submit_run("f"))["run_id"],
                    (await client.submit_run_yaml(FLOW_YAML, "gpu", "f"))["run_id"],
                    *[line["run_id"] for line in (await client.submit_batch([{"flow_name": "f"}] * 3))["items"]],
                ]
                ids.append((await client.rerun_run(ids[0]))["run_id"])
            assert len(proxy.asked) == 8
            assert sorted(run["run_id"] for run in await real.list_runs(flow="f")) == sorted(ids)
            assert len(set(ids)) == 6


class TestWatching:
    async def test_shows_a_run_as_it_changes(self, make: MakeClient, url: str, gateway: Gateway) -> None:
        """FLOW-412"""
        async with make(url) as client:
            run_id = (await client.submit_run("f"))["run_id"]
            seen: list[RunWatchEvent] = []
            async for event in client.watch_run(run_id, include=["records"]):
                if event["event"] == "heartbeat":  # it took long
                    continue
                seen.append(event)
                if len(seen) == 1:
                    await claimed(gateway, run_id)
                elif len(seen) == 2:
                    await end(gateway, run_id)
            assert [event["snapshot"]["status"] for event in seen] == ["PENDING", "RUNNING", "COMPLETED"]
            assert all(event["run_id"] == run_id and "task_records" in event["snapshot"] for event in seen)
            assert [each["snapshot"]["status"] async for each in client.watch_run(run_id)] == ["COMPLETED"]

    async def test_goes_on_through_another_gateway(self, make: MakeClient, url: str, gateway: Gateway) -> None:
        """FLOW-128: the first one goes away in the middle"""
        seen: list[str] = []
        async with open_gateway(gateway.config) as other, listen(other.app) as port:
            addresses = [f"http://127.0.0.1:{port}"]

            async def through(asked: Asked, writer: asyncio.StreamWriter) -> None:
                async with upstream(addresses[-1], asked) as reader:
                    while data := await reader.read(65536):
                        writer.write(data)
                        if b"RUNNING" in data and addresses[-1] != url:
                            addresses.append(url)
                            return  # cut

            async with scripted(*[through] * 5) as proxy, make(proxy.url) as client, make(url) as direct:
                run_id = (await direct.submit_run("f"))["run_id"]
                async for event in client.watch_run(run_id):
                    if event["event"] == "heartbeat":  # it took long
                        continue
                    seen.append(event["snapshot"]["status"])
                    if len(seen) == 1:
                        await claimed(gateway, run_id)
                    elif len(seen) == 2:
                        await end(gateway, run_id)
        assert seen == ["PENDING", "RUNNING", "COMPLETED"]
        assert len(addresses) == 2

    async def test_of_nobody_is_not_found(self, make: MakeClient, url: str) -> None:
        """FLOW-126, FLOW-127, FLOW-415"""
        async with make(url) as client:
            run_id = (await client.submit_run("f"))["run_id"]
            asked: list[tuple[Any, int]] = [
                (client.watch_run(str(uuid.uuid4())), 404),
                (client.watch_run(run_id, timeout_sec=0), 422),
                (client.watch_run(run_id, since=float("nan")), 422),
            ]
            for events, status in asked:
                with pytest.raises(httpx.HTTPStatusError) as raised:
                    await anext(events)
                assert raised.value.response.status_code == status
                assert raised.value.response.json()["err_id"]

    async def test_gives_its_place_back(self, make: MakeClient, url: str, gateway: Gateway) -> None:
        """FLOW-412: closing the iterator is heard at the other end"""
        async with make(url) as client:
            run_id = (await client.submit_run("f"))["run_id"]
            events = client.watch_run(run_id)
            await anext(events)
            assert gateway.app.state.gateway.hub.count == 1
            await events.aclose()
            await eventually(lambda: gateway.app.state.gateway.hub.count == 0)

    async def test_ends_after_its_time(self, make: MakeClient, url: str) -> None:
        """FLOW-119"""
        async with make(url) as client:
            run_id = (await client.submit_run("f"))["run_id"]
            for _ in range(20):
                began = time.monotonic()
                with contextlib.suppress(TimeoutError):  # a busy machine may be silent for that second
                    events = [event["event"] async for event in client.watch_run(run_id, timeout_sec=1)]
                    break
            assert events.count("snapshot") == 1
            assert 0.9 < time.monotonic() - began < 150  # far from the five minutes that are usual


class TestWaiting:
    async def test_a_run_that_ends_is_told_at_once(self, make: MakeClient, url: str, gateway: Gateway) -> None:
        """FLOW-416"""
        async with make(url) as client:
            run_id = (await client.submit_run("f"))["run_id"]
            await claimed(gateway, run_id)
            waited = asyncio.ensure_future(client.wait_run(run_id, 600))
            await eventually(lambda: gateway.app.state.gateway.hub.count == 1)
            began = time.monotonic()
            await end(gateway, run_id)
            assert (await waited)["status"] == "COMPLETED"
            assert time.monotonic() - began < 200  # and not when the ten minutes are over

    async def test_without_room_for_watchers_it_still_ends(
        self, make: MakeClient, url: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-416"""
        monkeypatch.setattr(gateway.app.state.gateway.hub, "_followers_max", 0)
        async with make(url) as client:
            run_id = (await client.submit_run("f"))["run_id"]
            waited = asyncio.ensure_future(client.wait_run(run_id, 120))
            await ended(gateway, run_id, Completed())
            assert (await waited)["status"] == "COMPLETED"

    async def test_time_runs_out(self, make: MakeClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """FLOW-416: below a second, too"""
        monkeypatch.setattr(waiting, "_LOOK_SECONDS_MIN", 60.0)  # a busy machine needs longer for the first look
        async with make(url) as client:
            run_id = (await client.submit_run("f"))["run_id"]
            for seconds in (0, 0.2, 1.2):
                began = time.monotonic()
                with pytest.raises(TimeoutError, match=f"still PENDING after {seconds:g} s"):
                    await client.wait_run(run_id, seconds)
                assert seconds <= time.monotonic() - began < 60


class TestWorkersAndLetters:
    async def test_workers_are_listed_and_hidden(self, make: MakeClient, url: str, gateway: Gateway) -> None:
        """FLOW-413"""
        now = time.time()
        await gateway.backend.registry.announce(a_worker("anna", last_seen_at=now, last_heartbeat_at=now))
        async with make(url) as client:
            assert [each["worker_id"] for each in await client.list_workers()] == ["anna"]
            assert (await client.patch_worker("anna", True))["hidden"] is True
            assert await client.list_workers("all", limit=5) == []
            assert len(await client.list_workers(include_hidden=True)) == 1
            assert (await client.get_worker("anna"))["hidden"] is True
            for call, status in ((client.get_worker("bert"), 404), (client.list_workers("some"), 422)):
                with pytest.raises(httpx.HTTPStatusError) as raised:
                    await call
                assert raised.value.response.status_code == status

    async def test_dead_letters_are_listed_redriven_and_deleted(
        self, make: MakeClient, url: str, gateway: Gateway
    ) -> None:
        letters = [str((await died(gateway.backend, flow_name="f"))[0]) for _ in range(4)]
        async with make(url) as client:
            page = await client.list_letters(flow="f", limit=3)
            assert [each["id"] for each in page["items"]] == letters[:0:-1]
            rest = await client.list_letters(flow="f", cursor=page["next_cursor"])
            assert [each["id"] for each in rest["items"]] == letters[:1]
            assert (await client.count_letters())["total"] == 4
            assert (await client.get_letter(letters[0]))["redrivable"] is True
            redriven = await client.redrive_letter(letters[0], tag="gpu")
            assert (await client.get_run(redriven["run_id"]))["tag"] == "gpu"
            assert await client.delete_letter(letters[1]) == {"id": letters[1], "deleted": True}
            assert (await client.redrive_letters(flow="f", limit=1))["redriven"] == 1
            assert (await client.delete_letters(all=True))["deleted"] == 1
            with pytest.raises(httpx.HTTPStatusError) as raised:
                await client.delete_letters()
            assert raised.value.response.status_code == 422


async def test_an_odd_name_reaches_no_other_path(make: MakeClient, url: str) -> None:
    """FLOW-36, FLOW-160"""
    async with make(url) as client:
        calls = {"workers": [client.get_worker], "dlq": [client.get_letter, client.delete_letter]}
        calls["wheels"] = [client.get_wheel, client.delete_wheel]
        for name in ["../health", "..", "x?include=full", "a/b", "a#b", "a%2fb", "日本"]:
            for folder, call in ((folder, call) for folder, each in calls.items() for call in each):
                with pytest.raises(httpx.HTTPStatusError) as raised:
                    await call(name)
                assert raised.value.response.status_code == 404, name
                assert raised.value.request.url.path == f"/{folder}/{name}", name
