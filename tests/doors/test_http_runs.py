"""`/health`, `/ready` and `/runs` over HTTP, on a real NATS server: what is answered, and what is stored."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from faults import FaultyLink
from gateways import Gateway, error, fresh_gateway, open_gateway, stock_of
from pyoco_server import wiring
from pyoco_server.core.outcome import Completed, Failed, Progress
from pyoco_server.core.run import Owner, Run, claim, conclude
from pyoco_server.core.states import RunState, WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.link import Link, Patience
from pyoco_server.ports.runs.port import Stored
from waiting import eventually

ANNA = Owner("anna", "instance-1")
FLOW_YAML = """\
version: 1
tasks:
  prepare: {use: demo/prepare}
  finish: {callable: "my_package.tasks:finish"}
flow:
  defaults: {mode: バッチ, retries: 3, nested: {deep: [1, 2.5, null]}}
  graph: |
    prepare >> finish
"""


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        yield gateway


async def submit(gateway: Gateway, **body: Any) -> str:
    answer = await gateway.client.post("/runs", json={"flow_name": "hello"} | body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["run_id"])


async def submit_yaml(gateway: Gateway, text: str = FLOW_YAML, **fields: str) -> httpx.Response:
    files = {"workflow": ("flow.yaml", text.encode(), "application/yaml")}
    return await gateway.client.post("/runs/yaml", files=files, data={"flow_name": "main"} | fields)


async def stored(gateway: Gateway, run_id: str) -> Stored:
    found = await gateway.backend.runs.find(run_id)
    assert isinstance(found, Stored)
    return found


async def claimed(gateway: Gateway, run_id: str, owner: Owner = ANNA) -> Run:
    """The run, as a worker holds it."""
    found = await stored(gateway, run_id)
    taken = await gateway.backend.runs.replace(claim(found.run, owner, "attempt-1", time.time()), found.revision)
    assert isinstance(taken, Stored)
    return taken.run


async def ended(gateway: Gateway, run_id: str, outcome: Completed | Failed) -> Run:
    """The run, after a worker has ended it."""
    await claimed(gateway, run_id)
    found = await stored(gateway, run_id)
    written = await gateway.backend.runs.replace(conclude(found.run, outcome, time.time()), found.revision)
    assert isinstance(written, Stored)
    return written.run


PROGRESS = Progress(tasks={"a": "SUCCEEDED"}, task_records={"a": {"state": "SUCCEEDED", "output": "ü"}})


async def job_of(link: Link, gateway: Gateway, tag: str) -> tuple[dict[str, Any], str]:
    """The newest job of a tag and its raw headers."""
    subject = f"{gateway.config.work_subject_prefix}.{tag}"
    asked = {"last_by_subj": subject}
    answer = await link.api(f"STREAM.MSG.GET.{gateway.config.work_stream}", asked, dict[str, Any])
    message = answer["message"]
    return json.loads(base64.b64decode(message["data"])), base64.b64decode(message["hdrs"]).decode()


class TestHealth:
    async def test_health_says_ok(self, gateway: Gateway) -> None:
        """FLOW-63"""
        answer = await gateway.client.get("/health")
        assert (answer.status_code, answer.content) == (200, b'{"status":"ok"}')
        assert answer.headers["content-type"] == "application/json"

    async def test_ready_says_what_can_be_used(self, gateway: Gateway) -> None:
        async def is_ready() -> bool:
            return (await gateway.client.get("/ready")).status_code == 200

        await eventually(is_ready)
        assert (await gateway.client.get("/ready")).json() == {"status": "ready", "nats": True, "index": True}


class TestSubmit:
    async def test_a_submission_is_answered_with_a_fresh_id(self, gateway: Gateway) -> None:
        """FLOW-69, FLOW-36"""
        answer = await gateway.client.post("/runs", json={"flow_name": "hello"})
        assert answer.status_code == 200
        run_id = answer.json()["run_id"]
        assert answer.json() == {"run_id": run_id, "status": "PENDING"}
        assert str(uuid.UUID(run_id)) == run_id
        assert uuid.UUID(run_id).version == 4

    async def test_the_first_snapshot_has_every_field(self, gateway: Gateway) -> None:
        """FLOW-72, FLOW-88, FLOW-339, FLOW-340, FLOW-344, FLOW-346"""
        before = time.time()
        run_id = await submit(gateway, params={"name": "you"}, tag="gpu", tags=["x", "y"])
        snapshot = (await gateway.client.get(f"/runs/{run_id}")).json()
        now = snapshot["submitted_at"]
        assert before <= now <= time.time()
        assert snapshot == {
            "run_id": run_id,
            "kind": "flow",
            "flow_name": "hello",
            "status": "PENDING",
            "tag": "gpu",
            "tags": ["x", "y"],
            "params": {"name": "you"},
            "tasks": {},
            "task_records_truncated": False,
            "attempt": 0,
            "submitted_at": now,
            "start_time": None,
            "end_time": None,
            "heartbeat_at": now,
            "updated_at": now,
            "error": None,
        }

    async def test_the_job_is_published_to_exactly_one_subject(self, gateway: Gateway, link: Link) -> None:
        """FLOW-72, FLOW-77, FLOW-296 to FLOW-301, FLOW-306"""
        run_id = await submit(gateway, params={"name": "あなた"}, tag="gpu", tags=["x"])
        found = await stored(gateway, run_id)
        job, headers = await job_of(link, gateway, "gpu")
        assert job == {
            "run_id": run_id,
            "flow_name": "hello",
            "tag": "gpu",
            "tags": ["x"],
            "params": {"name": "あなた"},
            "submitted_at": found.run.submitted_at,
            "revision": found.revision,
        }
        assert f"Nats-Msg-Id: {run_id}" in headers.splitlines()
        assert (await stock_of(gateway.config, link))[gateway.config.work_stream] == 1

    @pytest.mark.parametrize(
        ("body", "tag", "tags"),
        [
            ({}, "default", ["default"]),
            ({"tag": "gpu"}, "gpu", ["gpu"]),
            ({"tags": ["x", "y"]}, "default", ["x", "y"]),
            ({"tag": "gpu", "tags": []}, "gpu", []),
            ({"tag": "A-b_9" * 25}, "A-b_9" * 25, ["A-b_9" * 25]),
            ({"tags": ["a label: 日本語", "", "a"]}, "default", ["a label: 日本語", "", "a"]),
        ],
    )
    async def test_tags_default_to_the_tag(
        self, gateway: Gateway, body: dict[str, Any], tag: str, tags: list[str]
    ) -> None:
        """FLOW-33, FLOW-35, FLOW-67, FLOW-68"""
        run = (await stored(gateway, await submit(gateway, **body))).run
        assert (run.tag, list(run.tags)) == (tag, tags)

    async def test_the_default_tag_is_a_setting(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-35"""
        async with fresh_gateway(link, nats_url, tmp_path, default_tag="night") as gateway:
            assert (await stored(gateway, await submit(gateway))).run.tag == "night"
            answer = await submit_yaml(gateway)
            assert (await stored(gateway, answer.json()["run_id"])).run.tags == ("night",)

    async def test_fields_nobody_knows_are_passed_over(self, gateway: Gateway) -> None:
        """FLOW-44"""
        run_id = await submit(gateway, run_id="mine", status="COMPLETED", tenant_id="me", priority={"x": [1]})
        snapshot = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert snapshot["status"] == "PENDING"
        assert not {"tenant_id", "priority"} & snapshot.keys()

    async def test_params_come_back_as_they_were_sent(self, gateway: Gateway) -> None:
        """FLOW-66, FLOW-351"""
        params = {
            "text": '日本語 \u0000 😀 "\\ \u2028',
            "": [],
            "numbers": [0, -1, 2**53 + 1, 2**64, -(10**30), 1.5, 1e-300, 0.1],
            "more": {"null": None, "flags": [True, False], "deep": [[[{}]]]},
        }
        run_id = await submit(gateway, params=params)
        assert (await gateway.client.get(f"/runs/{run_id}")).json()["params"] == params
        listed = (await gateway.client.get("/runs", params={"include": "full"})).json()
        assert listed[0]["params"] == params

    async def test_the_same_payload_twice_makes_two_runs(self, gateway: Gateway, link: Link) -> None:
        """FLOW-78"""
        assert await submit(gateway) != await submit(gateway)
        assert (await stock_of(gateway.config, link))[gateway.config.work_stream] == 2

    async def test_many_submissions_at_once_are_all_recorded_and_queued(self, gateway: Gateway, link: Link) -> None:
        """FLOW-73"""
        ids = await asyncio.gather(*(submit(gateway, params={"n": n}) for n in range(100)))
        assert len(set(ids)) == 100
        stock = await stock_of(gateway.config, link)
        assert stock[gateway.config.work_stream] == stock[f"KV_{gateway.config.runs_kv_bucket}"] == 100

    async def test_a_run_too_large_to_record_is_refused(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-71"""
        async with fresh_gateway(link, nats_url, tmp_path, max_run_snapshot_bytes=1000) as gateway:
            room = 1000 - len(json.dumps((await self._stored_form(gateway)), separators=(",", ":")))
            before = await stock_of(gateway.config, link)
            over = await gateway.client.post("/runs", json={"flow_name": "hello", "params": {"x": "x" * (room + 100)}})
            assert over.status_code == 422
            assert over.json() | {"errors": []} == error(2, "invalid request") | {"errors": []}
            assert over.json()["errors"][0]["loc"] == ["body", "params"]
            assert await stock_of(gateway.config, link) == before
            await submit(gateway, params={"x": "x" * (room - 100)})

    async def _stored_form(self, gateway: Gateway) -> dict[str, Any]:
        run_id = await submit(gateway)
        snapshot: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}?include=full")).json()
        return snapshot


class TestSubmitWhenWritesFail:
    """Every write may fail before or after it took effect."""

    @pytest.fixture
    async def faulty(self, monkeypatch: pytest.MonkeyPatch) -> list[FaultyLink]:
        """The gateway's own link, told to fail by the test."""
        links: list[FaultyLink] = []

        async def open_link(url: str, name: str, _: Patience) -> Link:
            links.append(FaultyLink(Patience(unanswered_seconds=0.0)))
            await links[-1].open(url, name, 5.0)
            return links[-1]

        monkeypatch.setattr(wiring, "open_link", open_link)
        return links

    @pytest.mark.parametrize(
        ("faults", "records", "jobs"),
        [
            pytest.param(["unheard"], 0, 0, id="FLOW-74: no record, so no job"),
            pytest.param(["before"], 0, 0, id="FLOW-74: no record as far as we know, so no job"),
            pytest.param(["", "unheard"], 2, 0, id="FLOW-75: no job, so the record is taken back"),
            pytest.param(["", "after"], 2, 1, id="FLOW-75: a job whose record is gone"),
            pytest.param(["", "unheard", "unheard"], 1, 0, id="FLOW-76: an orphan"),
        ],
    )
    async def test_success_means_both_writes(
        self,
        faulty: list[FaultyLink],
        gateway: Gateway,
        link: Link,
        faults: list[str],
        records: int,
        jobs: int,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """FLOW-47, FLOW-62, FLOW-73 to FLOW-76. `records` counts writes: a deletion marker is the second."""
        faulty[0].faults.extend(faults)
        answer = await gateway.client.post("/runs", json={"flow_name": "hello"})
        assert (answer.status_code, answer.json()) == (503, error(3, "nats unavailable"))
        assert answer.headers["retry-after"] == "1"
        stock = await stock_of(gateway.config, link)
        assert stock[f"KV_{gateway.config.runs_kv_bucket}"] == records
        assert stock[gateway.config.work_stream] == jobs
        orphans = [each for each in caplog.records if "ERR-PYOCO-0004" in str(each.__dict__)]
        assert len(orphans) == (1 if faults == ["", "unheard", "unheard"] else 0)
        if orphans:
            listed = (await gateway.client.get("/runs")).json()
            assert orphans[0].levelno == logging.ERROR
            assert listed[0]["run_id"] in str(orphans[0].__dict__)

    async def test_a_withdrawn_run_is_unknown(self, faulty: list[FaultyLink], gateway: Gateway, link: Link) -> None:
        """FLOW-75"""
        faulty[0].faults.extend(["", "after"])
        await gateway.client.post("/runs", json={"flow_name": "hello"})
        run_id = (await job_of(link, gateway, "default"))[0]["run_id"]
        assert (await gateway.client.get(f"/runs/{run_id}")).status_code == 404

        async def is_gone() -> bool:
            return await ids(gateway) == []

        await eventually(is_gone)


class TestSubmitYaml:
    async def test_an_uploaded_flow_is_recorded_without_its_text(self, gateway: Gateway) -> None:
        """FLOW-79 to FLOW-82, FLOW-86, FLOW-171, FLOW-173, FLOW-174"""
        answer = await submit_yaml(gateway, tag="gpu")
        assert answer.status_code == 200
        run_id = answer.json()["run_id"]
        assert answer.json() == {"run_id": run_id, "status": "PENDING"}
        snapshot = (await gateway.client.get(f"/runs/{run_id}", params={"include": "full"})).json()
        assert snapshot["workflow_yaml_sha256"] == hashlib.sha256(FLOW_YAML.encode()).hexdigest()
        assert snapshot["workflow_yaml_bytes"] == len(FLOW_YAML.encode())
        assert snapshot["params"] == {"mode": "バッチ", "retries": 3, "nested": {"deep": [1, 2.5, None]}}
        assert (snapshot["flow_name"], snapshot["tag"], snapshot["tags"]) == ("main", "gpu", ["gpu"])
        assert (snapshot["status"], snapshot["tasks"]) == ("PENDING", {})
        assert "prepare >> finish" not in json.dumps(snapshot)

    async def test_the_text_travels_in_the_job(self, gateway: Gateway, link: Link) -> None:
        """FLOW-87, FLOW-302, FLOW-303"""
        await submit_yaml(gateway)
        job, _ = await job_of(link, gateway, "default")
        assert job["workflow_yaml"] == FLOW_YAML
        assert job["workflow_yaml_sha256"] == hashlib.sha256(FLOW_YAML.encode()).hexdigest()
        assert job["workflow_yaml_bytes"] == len(FLOW_YAML.encode())
        assert job["params"]["retries"] == 3

    async def test_absent_defaults_are_no_params(self, gateway: Gateway) -> None:
        """FLOW-171"""
        for text in ("flow: {graph: a}\n", "flow: {graph: a, defaults: null}\n"):
            answer = await submit_yaml(gateway, text)
            assert (await stored(gateway, answer.json()["run_id"])).run.params == {}

    async def test_a_named_flow_has_no_digest(self, gateway: Gateway) -> None:
        """FLOW-173"""
        snapshot = (await gateway.client.get(f"/runs/{await submit(gateway)}")).json()
        assert not {"workflow_yaml_sha256", "workflow_yaml_bytes"} & snapshot.keys()


class TestRead:
    @pytest.mark.parametrize(
        ("query", "has_records"),
        [
            ("", False),
            ("?include=records", True),
            ("?include=full", True),
            ("?include=all", True),
            ("?include=nonsense", False),
            ("?include=nonsense&include=records", True),
            ("?include=", False),
            ("?include=RECORDS", False),
            ("?other=records", False),
        ],
    )
    async def test_records_are_shown_on_request(self, gateway: Gateway, query: str, has_records: bool) -> None:
        """FLOW-89 to FLOW-92"""
        run_id = await submit(gateway)
        await ended(gateway, run_id, Completed(progress=PROGRESS))
        snapshot = (await gateway.client.get(f"/runs/{run_id}{query}")).json()
        assert snapshot["status"] == "COMPLETED"
        assert snapshot["tasks"] == {"a": "SUCCEEDED"}
        assert snapshot["task_records_truncated"] is False
        assert snapshot.get("task_records") == (PROGRESS.task_records if has_records else None)

    async def test_a_worker_s_fields_are_shown(self, gateway: Gateway) -> None:
        """FLOW-88, FLOW-340, FLOW-344"""
        run_id = await submit(gateway)
        run = await ended(gateway, run_id, Failed(message="it broke", progress=PROGRESS))
        snapshot = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert snapshot["status"] == "FAILED"
        assert snapshot["error"] == "it broke"
        assert snapshot["worker_id"] == "anna"
        assert snapshot["attempt_id"] == "attempt-1"
        assert snapshot["start_time"] == run.start_time
        assert snapshot["end_time"] == run.end_time

    @pytest.mark.parametrize(
        ("state", "age_seconds", "alive", "shown"),
        [
            (WorkerState.RUNNING, 0, True, "RUNNING"),
            (WorkerState.IDLE, 0, True, "IDLE"),
            (WorkerState.IDLE, 60, False, "DISCONNECTED"),
            (WorkerState.RUNNING, 60, False, "DISCONNECTED"),
            (WorkerState.STOPPED_GRACEFUL, 60, False, "STOPPED_GRACEFUL"),
        ],
    )
    async def test_the_worker_s_facts_stand_beside_the_run(
        self, gateway: Gateway, state: WorkerState, age_seconds: float, alive: bool, shown: str
    ) -> None:
        """FLOW-27, FLOW-29, FLOW-93"""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        seen = time.time() - age_seconds
        await gateway.backend.registry.announce(
            WorkerRecord(
                worker_id="anna",
                instance_id="instance-1",
                state=state,
                tags=("gpu", "default"),
                last_seen_at=seen,
                last_heartbeat_at=seen - 1,
            )
        )
        snapshot = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert {name: value for name, value in snapshot.items() if name.startswith("worker_")} == {
            "worker_id": "anna",
            "worker_alive": alive,
            "worker_heartbeat_at": seen - 1,
            "worker_tags": ["gpu", "default"],
            "worker_state": shown,
        }
        assert snapshot["status"] == "RUNNING"

    async def test_a_worker_nobody_registered_is_not_alive(self, gateway: Gateway) -> None:
        """FLOW-93"""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        snapshot = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert snapshot["worker_alive"] is False
        assert [snapshot[f"worker_{name}"] for name in ("heartbeat_at", "tags", "state")] == [None, None, None]

    async def test_a_run_without_worker_has_no_facts(self, gateway: Gateway) -> None:
        """FLOW-93"""
        snapshot = (await gateway.client.get(f"/runs/{await submit(gateway)}")).json()
        assert [name for name in snapshot if name.startswith("worker")] == []

    async def test_a_registry_that_cannot_be_read_costs_the_facts_only(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """FLOW-93"""

        async def broken(_: str) -> WorkerRecord | None:
            raise Unavailable

        monkeypatch.setattr(gateway.backend.registry, "find", broken)
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        answer = await gateway.client.get(f"/runs/{run_id}")
        assert answer.status_code == 200
        assert [name for name in answer.json() if name.startswith("worker")] == ["worker_id"]

    async def test_the_tasks_come_with_their_records(self, gateway: Gateway) -> None:
        """FLOW-95"""
        run_id = await submit(gateway)
        fresh = {"run_id": run_id, "flow_name": "hello", "tasks": {}, "task_records": {}}
        empty = await gateway.client.get(f"/runs/{run_id}/tasks")
        assert empty.json() == fresh | {"status": "PENDING", "task_records_truncated": False}
        await ended(gateway, run_id, Completed(progress=PROGRESS))
        full = await gateway.client.get(f"/runs/{run_id}/tasks")
        assert full.json() == fresh | {
            "status": "COMPLETED",
            "tasks": {"a": "SUCCEEDED"},
            "task_records": {"a": {"state": "SUCCEEDED", "output": "ü"}},
            "task_records_truncated": False,
        }

    async def test_records_dropped_for_their_size_are_told(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-95, FLOW-359"""
        async with fresh_gateway(link, nats_url, tmp_path, max_run_snapshot_bytes=2000) as gateway:
            run_id = await submit(gateway)
            bulky = Progress(tasks={"a": "SUCCEEDED"}, task_records={"a": {"state": "SUCCEEDED", "output": "x" * 2000}})
            await ended(gateway, run_id, Completed(progress=bulky))
            tasks = (await gateway.client.get(f"/runs/{run_id}/tasks")).json()
            assert tasks["task_records_truncated"] is True
            assert tasks["task_records"] == {"a": {"state": "SUCCEEDED"}}
            assert (await gateway.client.get(f"/runs/{run_id}")).json()["task_records_truncated"] is True

    @pytest.mark.parametrize(("method", "path"), [("GET", ""), ("GET", "/tasks"), ("POST", "/cancel")])
    async def test_an_unknown_run_is_not_found(self, gateway: Gateway, method: str, path: str) -> None:
        """FLOW-50, FLOW-53, FLOW-94, FLOW-96, FLOW-116"""
        answer = await gateway.client.request(method, f"/runs/{uuid.uuid4()}{path}")
        assert (answer.status_code, answer.json()) == (404, error(5, "run not found"))


def run_at(updated_at: float, number: int = 0, **more: Any) -> Run:
    fields: dict[str, Any] = {"flow_name": "hello", "tag": "default", "submitted_at": 1.0, "heartbeat_at": 1.0} | more
    return Run(run_id=f"00000000-0000-4000-8000-{number:012d}", updated_at=updated_at, **fields)


async def shown(gateway: Gateway, **query: Any) -> list[Any]:
    answer = await gateway.client.get("/runs", params=query)
    assert answer.status_code == 200, answer.text
    runs: list[Any] = answer.json()
    return runs


async def ids(gateway: Gateway, **query: Any) -> list[str]:
    return [run["run_id"] for run in await shown(gateway, **query)]


async def put(gateway: Gateway, *runs: Run) -> None:
    """Write these runs, and wait until lists know them."""
    for run in runs:
        assert isinstance(await gateway.backend.runs.create(run), Stored)

    async def all_there() -> bool:
        return {run.run_id for run in runs} <= set(await ids(gateway, limit=200))

    await eventually(all_there)


class TestList:
    async def test_an_empty_list_is_an_empty_array(self, gateway: Gateway) -> None:
        """FLOW-107"""
        assert (await gateway.client.get("/runs")).content == b"[]"

    async def test_whoever_was_given_an_id_finds_it_in_the_next_list(self, gateway: Gateway) -> None:
        for _ in range(30):
            run_id = await submit(gateway)
            assert run_id in await ids(gateway)

    async def test_a_summary_has_what_is_known(self, gateway: Gateway) -> None:
        """FLOW-109"""
        run_id = await submit(gateway, tag="gpu", tags=["x"])
        fresh = (await shown(gateway))[0]
        now = fresh["updated_at"]
        common = {"run_id": run_id, "kind": "flow", "flow_name": "hello", "tag": "gpu", "tags": ["x"]}
        times = {"submitted_at": now, "updated_at": now, "heartbeat_at": now}
        assert fresh == common | times | {"status": "PENDING"}
        run = await ended(gateway, run_id, Failed(message="it broke", progress=PROGRESS))

        async def has_ended() -> bool:
            return bool((await shown(gateway))[0]["status"] == "FAILED")

        await eventually(has_ended)
        assert (await shown(gateway))[0] == common | {
            "status": "FAILED",
            "submitted_at": now,
            "updated_at": run.updated_at,
            "heartbeat_at": run.heartbeat_at,
            "start_time": run.start_time,
            "end_time": run.end_time,
            "worker_id": "anna",
            "error": "it broke",
        }

    async def test_the_newest_update_comes_first_and_ties_go_by_id(self, gateway: Gateway) -> None:
        """FLOW-110"""
        runs = [run_at(when, number) for number, when in enumerate([5.0, 7.0, 5.0, 6.0, 5.0, 7.0])]
        await put(gateway, *runs)
        wanted = [runs[number].run_id for number in (5, 1, 3, 4, 2, 0)]
        assert await ids(gateway) == wanted
        assert await ids(gateway, include="full") == wanted
        assert await ids(gateway, limit=4) == wanted[:4]
        assert await ids(gateway, tag="default") == wanted

    async def test_filters_choose_and_combine(self, gateway: Gateway) -> None:
        """FLOW-97 to FLOW-99, FLOW-104"""
        digest = "ab12" * 16
        a = run_at(1.0, 1, flow_name="hello", tag="gpu", tags=("x",))
        b = run_at(2.0, 2, flow_name="hello", status=RunState.COMPLETED, tags=("gpu", "y"))
        c = run_at(3.0, 3, flow_name="Hello", status=RunState.FAILED, tags=("日本",), workflow_yaml_sha256=digest)
        d = run_at(4.0, 4, flow_name="x\0y", status=RunState.CANCELLED, tag="gpu", tags=("gpu",))
        await put(gateway, a, b, c, d)
        table: list[tuple[dict[str, Any], list[Run]]] = [
            ({"status": "PENDING"}, [a]),
            ({"status": "COMPLETED"}, [b]),
            ({"status": "RUNNING"}, []),
            ({"flow": "hello"}, [b, a]),
            ({"flow": "hell"}, []),
            ({"flow": "x\0y"}, [d]),
            ({"flow": "%"}, []),
            ({"tag": "gpu"}, [d, b, a]),
            ({"tag": "x"}, [a]),
            ({"tag": "日本"}, [c]),
            ({"tag": "GPU"}, []),
            ({"tag": "' OR 1=1 --"}, []),
            ({"workflow_yaml_sha256": digest}, [c]),
            ({"workflow_yaml_sha256": digest.upper()}, [c]),
            ({"workflow_yaml_sha256": "0" * 64}, []),
            ({"kind": "flow"}, [d, c, b, a]),
            ({"kind": "pack"}, []),
            ({"tag": "gpu", "flow": "hello"}, [b, a]),
            ({"tag": "gpu", "flow": "hello", "status": "COMPLETED"}, [b]),
            ({"tag": "gpu", "limit": 1}, [d]),
            ({"nobody": "knows this"}, [d, c, b, a]),
        ]
        for query, wanted in table:
            assert await ids(gateway, **query) == [run.run_id for run in wanted], query
            assert await ids(gateway, **query, include="all") == [run.run_id for run in wanted], query

    async def test_the_limit_is_50_unless_told(self, gateway: Gateway) -> None:
        """FLOW-100"""
        await put(gateway, *(run_at(float(number), number) for number in range(60)))
        assert [len(await ids(gateway, **query)) for query in ({}, {"limit": 1}, {"limit": 200})] == [50, 1, 60]

    @pytest.mark.parametrize("include", ["full", "all", "records"])
    async def test_whole_snapshots_on_request(self, gateway: Gateway, include: str) -> None:
        """FLOW-101"""
        run_id = await submit(gateway, params={"a": 1})
        await ended(gateway, run_id, Completed(progress=PROGRESS))
        listed = await shown(gateway, include=include)
        whole = (await gateway.client.get(f"/runs/{run_id}?include=full")).json()
        facts = {"worker_alive", "worker_heartbeat_at", "worker_tags", "worker_state"}
        assert listed == [{name: value for name, value in whole.items() if name not in facts}]
        assert listed[0]["task_records"] == PROGRESS.task_records
        assert "params" not in (await shown(gateway, include="else"))[0]

    async def test_a_run_that_has_gone_is_left_out(self, gateway: Gateway) -> None:
        """FLOW-112"""
        gone, stays = await submit(gateway), await submit(gateway)
        assert set(await ids(gateway)) == {gone, stays}
        await gateway.backend.runs.withdraw(gone, (await stored(gateway, gone)).revision)
        assert await ids(gateway, include="full") == [stays]

        async def has_left() -> bool:
            return await ids(gateway) == [stays]

        await eventually(has_left)

    async def test_a_gateway_that_has_just_started_shows_all_or_says_not_yet(self, gateway: Gateway) -> None:
        """FLOW-112: "I could not look" is never told as "there are none\""""
        await asyncio.gather(*(submit(gateway) for _ in range(150)))
        async with open_gateway(gateway.config) as other:
            first: list[httpx.Response] = []

            async def is_answered() -> bool:
                first[:] = [await other.client.get("/runs?limit=200")]
                return first[0].status_code != 503

            await eventually(is_answered)
            assert len(first[0].json()) == 150


class TestCancel:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", None),
            (b" \n", None),
            (b"{}", None),
            (b'{"reason": "a typo in the input"}', "a typo in the input"),
            (b'{"reason": "", "more": 1}', ""),
            ('{"reason": "理由"}'.encode(), "理由"),
        ],
    )
    async def test_a_run_is_asked_to_stop(self, gateway: Gateway, body: bytes, reason: str | None) -> None:
        """FLOW-114, FLOW-115, FLOW-175, FLOW-343"""
        run_id = await submit(gateway)
        before = (await gateway.client.get(f"/runs/{run_id}")).json()
        answer = await gateway.client.post(f"/runs/{run_id}/cancel", content=body)
        assert answer.status_code == 200
        asked = answer.json()
        assert asked["cancel_requested_at"] == asked["updated_at"] >= before["updated_at"]
        changed = {
            "status": "CANCELLING",
            "cancel_requested_at": asked["updated_at"],
            "updated_at": asked["updated_at"],
        }
        assert asked == before | changed | ({} if reason is None else {"cancel_reason": reason})
        assert (await gateway.client.get(f"/runs/{run_id}")).json() == asked

    async def test_a_running_run_is_asked_to_stop(self, gateway: Gateway) -> None:
        """FLOW-16"""
        run_id = await submit(gateway)
        await claimed(gateway, run_id)
        asked = (await gateway.client.post(f"/runs/{run_id}/cancel")).json()
        assert (asked["status"], asked["worker_id"], asked["attempt"]) == ("CANCELLING", "anna", 1)
        assert "task_records" not in asked

    async def test_the_first_request_counts(self, gateway: Gateway) -> None:
        """FLOW-177"""
        run_id = await submit(gateway)
        path = f"/runs/{run_id}/cancel"
        first = await gateway.client.post(path, json={"reason": "first"})
        revision = (await stored(gateway, run_id)).revision
        second = await gateway.client.post(path, json={"reason": "second"})
        assert (second.status_code, second.json()) == (200, first.json())
        assert (await stored(gateway, run_id)).revision == revision

    @pytest.mark.parametrize("outcome", [Completed(progress=PROGRESS), Failed(message="it broke", progress=PROGRESS)])
    async def test_a_run_that_has_ended_stays_as_it_is(self, gateway: Gateway, outcome: Completed | Failed) -> None:
        """FLOW-19, FLOW-114, FLOW-176"""
        run_id = await submit(gateway)
        await ended(gateway, run_id, outcome)
        before = await stored(gateway, run_id)
        answer = await gateway.client.post(f"/runs/{run_id}/cancel", json={"reason": "late"})
        assert answer.status_code == 200
        assert answer.json()["status"] == before.run.status
        assert not {"task_records", "cancel_requested_at", "cancel_reason"} & answer.json().keys()
        assert await stored(gateway, run_id) == before

    async def test_of_many_requests_at_once_one_counts(self, gateway: Gateway) -> None:
        """FLOW-177, FLOW-178"""
        run_id = await submit(gateway)
        revision = (await stored(gateway, run_id)).revision
        path = f"/runs/{run_id}/cancel"
        answers = await asyncio.gather(*(gateway.client.post(path, json={"reason": str(n)}) for n in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert (await stored(gateway, run_id)).revision == revision + 1

    async def test_a_cancelled_run_shows_in_the_list(self, gateway: Gateway) -> None:
        run_id = await submit(gateway)
        await gateway.client.post(f"/runs/{run_id}/cancel")

        async def is_listed() -> bool:
            return await ids(gateway, status="CANCELLING") == [run_id]

        await eventually(is_listed)


class TestLogs:
    CANARY = "canary-in-the-mine"

    async def test_no_log_holds_params_or_an_uploaded_flow(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture
    ) -> None:
        """FLOW-174, FLOW-531"""
        caplog.set_level(logging.DEBUG)
        run_id = await submit(gateway, params={"secret": self.CANARY})
        await submit_yaml(gateway, f"flow: {{graph: a, defaults: {{secret: {self.CANARY}}}}}")
        await gateway.client.get(f"/runs/{run_id}")
        await gateway.client.get("/runs", params={"include": "full"})
        await gateway.client.post(f"/runs/{run_id}/cancel")
        refused = {"flow_name": "f", "tag": "a.b", "params": {"secret": self.CANARY}}
        assert (await gateway.client.post("/runs", json=refused)).status_code == 422
        refused = {"flow_name": "f", "params": [self.CANARY]}
        assert (await gateway.client.post("/runs", json=refused)).status_code == 422
        assert "request refused" in caplog.text
        assert self.CANARY not in self._told(caplog)

    @pytest.mark.parametrize("text", ["flow: {graph: a, defaults: {x: !!int %s}}", "flow: {graph: '%s ('}"])
    async def test_no_log_holds_a_piece_of_a_refused_flow(
        self, gateway: Gateway, caplog: pytest.LogCaptureFixture, text: str
    ) -> None:
        """FLOW-174, FLOW-531"""
        caplog.set_level(logging.DEBUG)
        assert (await submit_yaml(gateway, text.replace("%s", self.CANARY.replace("-", "_")))).status_code == 422
        assert self.CANARY.replace("-", "_") not in self._told(caplog)

    @staticmethod
    def _told(caplog: pytest.LogCaptureFixture) -> str:
        return "".join(f"{record.__dict__}{record.exc_text}" for record in caplog.records) + caplog.text
