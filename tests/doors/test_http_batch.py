"""`POST /runs/batch`: many submissions at once, each on its own."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyoco_server.actions import submit_many
from pyoco_server.actions import submit_many as module
from pyoco_server.doors.http import repeat
from pyoco_server.doors.http.state import State
from pyoco_server.doors.http.submissions import BATCH_BYTES_MAX, read_batch
from pyoco_server.errors import NotStored
from pyoco_server.ports.nats.link import Link, Patience, open_link
from support.backends import jobs_left
from support.doors_support import Door, call, check_refusal, endless
from support.faulty_ports import AFTER, BEFORE, UNHEARD, Trouble, with_trouble
from support.gateways import Gateway, error, ids, open_gateway, shown, stock_of, stored
from support.memory_nats import MemoryServer
from support.servers import config_for
from support.waiting import eventually

KEY = "Idempotency-Key"
UNAVAILABLE = error(3, "nats unavailable")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
submissions = st.fixed_dictionaries(
    {"flow_name": st.text(min_size=1, max_size=5) | json_values},
    optional={"params": json_values, "tag": json_values, "tags": json_values, "idempotency_key": st.text(max_size=2)},
)


async def send(gateway: Gateway, runs: Any, **headers: str) -> httpx.Response:
    return await gateway.client.post("/runs/batch", json={"runs": runs}, headers=headers)


async def accepted(gateway: Gateway, runs: Any, **headers: str) -> list[dict[str, Any]]:
    answer = await send(gateway, runs, **headers)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def troubled(gateway: Gateway, trouble: Trouble) -> None:
    """From now on the gateway's own calls may fail."""
    state: State = gateway.app.state.gateway
    state.backend = with_trouble(state.backend, trouble, "runs", "queue", "receipts")


class TestBatch:
    async def test_each_item_is_a_run_of_its_own(self, gateway: Gateway, link: Link) -> None:
        """FLOW-65 to FLOW-73"""
        answer = await send(
            gateway,
            [
                {"flow_name": "a", "params": {"n": 1}, "tag": "gpu", "tags": ["x", "y"]},
                {"flow_name": "b"},
                {"flow_name": "b", "params": None, "tag": None, "tags": None},
            ],
        )
        assert answer.status_code == 200
        body = answer.json()
        run_ids = [item.pop("run_id") for item in body["items"]]
        assert body == {
            "accepted": 3,
            "refused": 0,
            "items": [{"index": index, "status": "PENDING"} for index in range(3)],
        }
        assert all(str(uuid.UUID(run_id)) == run_id for run_id in run_ids)
        runs = [(await stored(gateway, run_id)).run for run_id in run_ids]
        assert [(run.flow_name, run.params, run.tag, run.tags) for run in runs] == [
            ("a", {"n": 1}, "gpu", ("x", "y")),
            *[("b", {}, "default", ("default",))] * 2,
        ]
        jobs = {job["body"]["run_id"]: job for job in await jobs_left(link, gateway.config)}
        assert jobs.keys() == set(run_ids)
        assert jobs[run_ids[0]]["subject"].endswith(".gpu")

    async def test_a_thousand_are_accepted_and_in_the_next_list(self, gateway: Gateway, link: Link) -> None:
        """A run id that was returned is in the next list."""
        items = await accepted(gateway, [{"flow_name": "f", "params": {"n": n}} for n in range(1000)])
        listed = await ids(gateway, limit=200)
        assert len(listed) == 200
        assert set(listed) <= {item["run_id"] for item in items}
        assert len({item["run_id"] for item in items}) == 1000
        assert [item["index"] for item in items] == list(range(1000))
        stock = await stock_of(gateway.config, link)
        assert stock[gateway.config.work_stream] == stock[f"KV_{gateway.config.runs_kv_bucket}"] == 1000
        for n in (0, 499, 999):
            assert (await stored(gateway, items[n]["run_id"])).run.params == {"n": n}

    async def test_one_bad_item_does_not_stop_the_others(self, gateway: Gateway, link: Link) -> None:
        """FLOW-50: the body that it would have got on its own, and where in the batch it is"""
        bad: list[tuple[Any, list[str | int]]] = [
            (5, []),
            (None, []),
            ([], []),
            ("x", []),
            ({}, ["flow_name"]),
            ({"flow_name": ""}, ["flow_name"]),
            ({"flow_name": "f" * 513}, ["flow_name"]),
            ({"flow_name": "f", "tag": "a b"}, ["tag"]),
            ({"flow_name": "f", "params": [1]}, ["params"]),
            ({"flow_name": "f", "tags": ["x", 1]}, ["tags", 1]),
            ({"flow_name": "f", "idempotency_key": 5}, ["idempotency_key"]),
            ({"flow_name": "f", "idempotency_key": ""}, ["idempotency_key"]),
            ({"flow_name": "f", "idempotency_key": "a b"}, ["idempotency_key"]),
            ({"flow_name": "f", "idempotency_key": "x" * 256}, ["idempotency_key"]),
            ({"flow_name": "f", "idempotency_key": "é"}, ["idempotency_key"]),
        ]
        runs: list[Any] = [{"flow_name": "good"}]
        for item, _ in bad:
            runs += [item, {"flow_name": "good"}]
        answer = await send(gateway, runs)
        assert answer.status_code == 200
        assert (answer.json()["accepted"], answer.json()["refused"]) == (len(bad) + 1, len(bad))
        for index, item in enumerate(answer.json()["items"]):
            assert item["index"] == index
            if index % 2 == 0:
                assert (item["status"], item.keys()) == ("PENDING", {"index", "run_id", "status"})
                continue
            assert item.keys() == {"index", "error", "status_code"}
            problems = check_refusal(httpx.Response(item["status_code"], json=item["error"]))
            assert item["error"]["detail"] == problems
            assert problems[0]["loc"] == ["body", "runs", index, *bad[index // 2][1]]
        assert len(await jobs_left(link, gateway.config)) == len(bad) + 1

    async def test_an_item_too_large_to_record_is_refused_alone(self, gateway: Gateway) -> None:
        """FLOW-71"""
        items = await accepted(
            gateway,
            [
                {"flow_name": "f"},
                {"flow_name": "f", "params": {"x": "x" * 300_000}},
                {"flow_name": "f", "params": {"x": "x" * 1_100_000}},
                {"flow_name": "f", "params": {"x": json.loads("[" * 70 + "]" * 70)}},
                {"flow_name": "f"},
            ],
        )
        assert ["error" in item for item in items] == [False, True, True, True, False]
        for item in items[1:4]:
            assert (item["status_code"], item["error"]["err_id"]) == (422, "ERR-PYOCO-0002")
        assert [item["error"]["errors"][0]["type"] for item in items[1:4]] == ["too_large", "too_long", "too_deep"]

    async def test_all_items_may_be_refused(self, gateway: Gateway, link: Link) -> None:
        before = await stock_of(gateway.config, link)
        answer = await send(gateway, [{"flow_name": ""}] * 3)
        assert (answer.status_code, answer.json()["accepted"], answer.json()["refused"]) == (200, 0, 3)
        assert await stock_of(gateway.config, link) == before


class TestWholeBody:
    async def test_what_is_no_batch_is_422(self, gateway: Gateway, link: Link) -> None:
        """FLOW-50, FLOW-70"""
        cases: list[tuple[bytes, list[str]]] = [
            (b"", ["body"]),
            (b"{", ["body"]),
            (b"[]", ["body"]),
            (b"null", ["body"]),
            (b"5", ["body"]),
            (b'"x"', ["body"]),
            (b"\xff\xfe", ["body"]),
            (b"{}", ["body", "runs"]),
            (b'{"runs": null}', ["body", "runs"]),
            (b'{"runs": {}}', ["body", "runs"]),
            (b'{"runs": []}', ["body", "runs"]),
            (b'{"runs": [{"flow_name": "f"}', ["body"]),
            (json.dumps({"runs": [{"flow_name": "f"}] * 1001}).encode(), ["body", "runs"]),
        ]
        before = await stock_of(gateway.config, link)
        for body, loc in cases:
            answer = await gateway.client.post("/runs/batch", content=body)
            assert answer.status_code == 422, body[:80]
            problems = check_refusal(answer)
            assert problems[0]["loc"] == loc, body[:80]
            assert await stock_of(gateway.config, link) == before, body[:80]

    async def test_eight_mebibytes_are_read_and_not_one_byte_more(self, gateway: Gateway) -> None:
        body = b'{"runs": [{"flow_name": "f"}]}'
        whole = body + b" " * (BATCH_BYTES_MAX - len(body))
        assert (await gateway.client.post("/runs/batch", content=whole)).json()["accepted"] == 1
        answer = await gateway.client.post("/runs/batch", content=whole + b" ")
        assert (answer.status_code, answer.json()) == (413, error(2, "request body too large"))

    async def test_reading_stops_at_the_cap(self, gateway: Gateway) -> None:
        status, _, taken = await call(gateway.app, "/runs/batch", endless(b'{"runs": [', b" " * 100_000))
        assert status == 413
        assert taken <= BATCH_BYTES_MAX + 100_000

    async def test_a_large_body_is_read_beside_the_event_loop(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others are served meanwhile."""
        threads: list[threading.Thread] = []

        def watched(*args: Any) -> Any:
            threads.append(threading.current_thread())
            return read_batch(*args)

        monkeypatch.setattr(repeat, "read_batch", watched)
        await accepted(gateway, [{"flow_name": "f"}])
        await accepted(gateway, [{"flow_name": "f", "params": {"x": "x" * 200_000}}])
        assert [thread is threading.main_thread() for thread in threads] == [True, False]

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(items=st.lists(submissions | json_values, max_size=5))
    @pytest.mark.asyncio(loop_scope="module")
    async def test_anything_is_answered(self, whole_module: Door, items: list[Any]) -> None:
        """FLOW-50: never a 5xx, and every item has its line."""
        answer = await whole_module.gateway.client.post("/runs/batch", json={"runs": items})
        if not items:
            check_refusal(answer)
            return
        body = answer.json()
        assert (answer.status_code, len(body["items"])) == (200, len(items))
        assert body["accepted"] == sum("run_id" in item for item in body["items"])
        assert body["accepted"] + body["refused"] == len(items)
        assert {item["status_code"] for item in body["items"] if "error" in item} <= {409, 422}


class TestKeys:
    async def test_a_batch_may_be_sent_again(self, gateway: Gateway, link: Link) -> None:
        """DESIGN 9.4"""
        runs = [{"flow_name": "f", "params": {"n": n // 2}} for n in range(20)]
        first = await send(gateway, runs, **{KEY: "k"})
        assert "idempotency-replayed" not in first.headers
        again = await send(gateway, runs, **{KEY: "k"})
        assert again.headers["idempotency-replayed"] == "true"
        assert [item.pop("replayed") for item in again.json()["items"]] == [True] * 20
        ids_of = [[item["run_id"] for item in answer.json()["items"]] for answer in (first, again)]
        assert ids_of[0] == ids_of[1]
        assert len(set(ids_of[0])) == 20  # equal items are items of their own
        assert len(await jobs_left(link, gateway.config)) == 20

    async def test_what_was_refused_or_changed_since_is_told_item_by_item(self, gateway: Gateway) -> None:
        first = await accepted(gateway, [{"flow_name": "f"}, {"flow_name": ""}, {"flow_name": "f"}], **{KEY: "k"})
        runs = [{"flow_name": "f"}, {"flow_name": "f"}, {"flow_name": "other"}, {"flow_name": "f"}]
        answer = await send(gateway, runs, **{KEY: "k"})
        items = answer.json()["items"]
        assert (items[0]["run_id"], items[0]["replayed"]) == (first[0]["run_id"], True)
        assert "replayed" not in items[1]
        assert (items[2]["status_code"], items[2]["error"]) == (409, error(26, "idempotency key reused"))
        assert "replayed" not in items[3]
        assert "idempotency-replayed" not in answer.headers

    async def test_an_item_may_have_a_key_of_its_own(self, gateway: Gateway) -> None:
        """The same as that of a single submission, and stronger than the one made from the header."""
        single = await gateway.client.post("/runs", json={"flow_name": "f"}, headers={KEY: "mine"})
        run = {"flow_name": "f", "idempotency_key": "mine"}
        items = await accepted(gateway, [run, run, {"flow_name": "g", "idempotency_key": "mine"}], **{KEY: "k"})
        assert [item.get("run_id") for item in items] == [single.json()["run_id"]] * 2 + [None]
        assert items[2]["status_code"] == 409

    async def test_two_items_with_one_new_key_are_one_run(self, gateway: Gateway, link: Link) -> None:
        run = {"flow_name": "f", "idempotency_key": "mine"}
        items = await accepted(gateway, [run] * 10)
        assert len({item["run_id"] for item in items}) == 1
        assert sum("replayed" in item for item in items) == 9
        assert len({job["body"]["run_id"] for job in await jobs_left(link, gateway.config)}) == 1

    async def test_a_batch_whose_answer_was_lost_is_sent_again(self, gateway: Gateway, link: Link) -> None:
        """Some of it was stored, some was not: afterwards each item has one run."""
        runs = [{"flow_name": "f", "params": {"n": n}} for n in range(30)]
        whole: State = gateway.app.state.gateway
        backend = whole.backend
        fates = [BEFORE, "", AFTER, UNHEARD]
        troubled(gateway, Trouble({"receipts.claim": fates * 2, "runs.create": fates * 2, "queue.put": fates * 2}))
        first = await send(gateway, runs, **{KEY: "k"})
        assert 0 < first.json()["accepted"] < 30
        assert {item["status_code"] for item in first.json()["items"] if "error" in item} == {503}
        whole.backend = backend
        items = await accepted(gateway, runs, **{KEY: "k"})
        assert len({item["run_id"] for item in items}) == 30
        for before, after in zip(first.json()["items"], items, strict=True):
            assert before.get("run_id", after["run_id"]) == after["run_id"]
        assert sorted(await ids(gateway, limit=200)) == sorted(item["run_id"] for item in items)
        for n, item in enumerate(items):
            assert (await stored(gateway, item["run_id"])).run.params == {"n": n}


class TestOutage:
    async def test_an_item_that_nats_fails_is_503_and_the_others_are_runs(self, gateway: Gateway, link: Link) -> None:
        """FLOW-73 to FLOW-75: each item on its own"""
        troubled(gateway, Trouble({"runs.create": [BEFORE, ""], "queue.put": ["", UNHEARD]}))
        answer = await send(gateway, [{"flow_name": "f", "params": {"n": n}} for n in range(10)])
        assert (answer.status_code, answer.json()["accepted"], answer.json()["refused"]) == (200, 8, 2)
        failed = [item for item in answer.json()["items"] if "error" in item]
        assert all((item["status_code"], item["error"]) == (503, UNAVAILABLE) for item in failed)
        good = [item["run_id"] for item in answer.json()["items"] if "run_id" in item]
        assert sorted(run["run_id"] for run in await shown(gateway, limit=200)) == sorted(good)
        assert len(await jobs_left(link, gateway.config)) == 8

    async def test_when_nats_fails_all_of_them_the_whole_is_503(self, gateway: Gateway, link: Link) -> None:
        """FLOW-62; what is wrong with other items does not change that"""
        troubled(gateway, Trouble({"runs.create": [UNHEARD] * 10}))
        answer = await send(gateway, [{"flow_name": "f"}] * 9 + [{"flow_name": ""}, {"flow_name": "f"}])
        assert (answer.status_code, answer.json()) == (503, UNAVAILABLE)
        assert answer.headers["retry-after"] == "1"
        assert (await stock_of(gateway.config, link))[gateway.config.work_stream] == 0

    async def test_an_outage_is_told_once_and_not_item_after_item(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """DESIGN 9.16: within the patience for one. What was not begun was not stored, and says so."""
        begun = 0

        async def slow_failure(*_: object) -> None:
            nonlocal begun
            begun += 1
            await asyncio.sleep(0.05)
            raise NotStored("no connection")

        monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.02)
        monkeypatch.setattr(module, "submit_once", slow_failure)
        answer = await send(gateway, [{"flow_name": "f"}] * 1000)
        assert (answer.status_code, answer.json()) == (503, UNAVAILABLE)
        assert begun <= 250

    async def test_a_rejected_item_does_not_end_the_others(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A failure that comes at once is no outage: everything is tried."""
        monkeypatch.setattr(submit_many, "_PATIENCE_SECONDS", 60.0)  # a slow machine is none either
        troubled(gateway, Trouble({"queue.put": [UNHEARD]}))
        answer = await send(gateway, [{"flow_name": "f"}] * 1000)
        assert (answer.json()["accepted"], answer.json()["refused"]) == (999, 1)

    @pytest.mark.usefixtures("impatient_gateways")
    @pytest.mark.virtual_time
    async def test_a_server_that_is_away_is_told_within_5_seconds(
        self, memory_nats_server: MemoryServer, tmp_path: Path
    ) -> None:
        """FLOW-62; DESIGN 9.16. When it is back, the same batch is accepted under the same key."""
        runs = [{"flow_name": "f", "params": {"n": n}} for n in range(1000)]
        async with open_gateway(config_for(memory_nats_server.url, data_dir=str(tmp_path))) as gateway:
            memory_nats_server.kill()
            await eventually(lambda: not gateway.backend.is_up())

            async def send_in_vain(headers: dict[str, str]) -> None:
                answer = await send(gateway, runs, **headers)
                assert (answer.status_code, answer.json()) == (503, UNAVAILABLE), headers

            async with asyncio.timeout(5.0):
                await asyncio.gather(*(send_in_vain(headers) for headers in ({}, {KEY: "k"})))
            memory_nats_server.start()
            await eventually(gateway.backend.is_up)
            assert len(await accepted(gateway, runs, **{KEY: "k"})) == 1000

    @pytest.mark.virtual_time
    async def test_a_batch_that_meets_a_restart_is_whole_when_it_is_sent_again(
        self, memory_nats_server: MemoryServer, tmp_path: Path
    ) -> None:
        """FLOW-73: whatever was stored before the server was killed, each item has one run in the end."""
        runs = [{"flow_name": "f", "params": {"n": n}} for n in range(1000)]
        config = config_for(memory_nats_server.url, data_dir=str(tmp_path))
        link = await open_link(memory_nats_server.url, "tests", Patience(down_seconds=10))
        async with open_gateway(config) as gateway:

            async def is_under_way() -> bool:
                return (await stock_of(config, link))[config.work_stream] > 10

            sending = asyncio.create_task(send(gateway, runs, **{KEY: "k"}))
            await eventually(is_under_way)
            memory_nats_server.restart()
            told = (await sending).json().get("items", [])
            await eventually(gateway.backend.is_up)
            items = await accepted(gateway, runs, **{KEY: "k"})
            assert len({item["run_id"] for item in items}) == 1000
            for item in told:
                assert item.get("run_id", items[item["index"]]["run_id"]) == items[item["index"]]["run_id"]
            queued = [job["body"]["run_id"] for job in await jobs_left(link, config)]
            assert {item["run_id"] for item in items} <= set(queued)
            await link.close()

    async def test_a_defect_is_500_and_not_half_an_answer(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-49"""

        async def broken(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(module, "submit_once", broken)
        answer = await send(gateway, [{"flow_name": "f"}] * 3)
        assert (answer.status_code, answer.json()) == (500, error(25, "internal error"))
