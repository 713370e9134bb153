"""`POST /runs` and `POST /runs/yaml` on a real NATS server: what is answered, recorded and queued."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.ports.nats.link import Link, Patience
from pyoco_server.wiring import backend as wiring
from support.faults import FaultyLink
from support.gateways import (
    FLOW_YAML,
    Gateway,
    error,
    fresh_gateway,
    ids,
    job_of,
    stock_of,
    stored,
    submit,
    submit_yaml,
)
from support.waiting import eventually


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
        snapshot.pop("waiting", None)  # shown once the index contains the run
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
            "last_change": {"what": "submitted", "at": now, "by": {"kind": "caller", "id": None}},
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

    async def test_tags_default_to_the_tag(self, gateway: Gateway) -> None:
        """FLOW-33, FLOW-35, FLOW-67, FLOW-68"""
        cases: list[tuple[dict[str, Any], str, list[str]]] = [
            ({}, "default", ["default"]),
            ({"tag": "gpu"}, "gpu", ["gpu"]),
            ({"tags": ["x", "y"]}, "default", ["x", "y"]),
            ({"tag": "gpu", "tags": []}, "gpu", []),
            ({"tag": "A-b_9" * 25}, "A-b_9" * 25, ["A-b_9" * 25]),
            ({"tags": ["a label: 日本語", "", "a"]}, "default", ["a label: 日本語", "", "a"]),
        ]
        for body, tag, tags in cases:
            run = (await stored(gateway, await submit(gateway, **body))).run
            assert (run.tag, list(run.tags)) == (tag, tags), body

    async def test_the_default_tag_is_a_setting(self, link: Link, nats_url: str, tmp_path: Path) -> None:
        """FLOW-35"""
        async with fresh_gateway(link, nats_url, tmp_path, default_tag="night") as gateway:
            assert (await stored(gateway, await submit(gateway))).run.tag == "night"
            answer = await submit_yaml(gateway)
            assert (await stored(gateway, answer.json()["run_id"])).run.tags == ("night",)

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
            await submit(gateway, params={"x": "x" * (room - 200)})

    async def _stored_form(self, gateway: Gateway) -> dict[str, Any]:
        run_id = await submit(gateway)
        snapshot: dict[str, Any] = (await gateway.client.get(f"/runs/{run_id}?include=full")).json()
        told = {"waiting", "last_change"}  # besides what is stored
        return {name: value for name, value in snapshot.items() if name not in told}


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

            async def is_listed() -> bool:  # the list follows the write
                return await ids(gateway) != []

            await eventually(is_listed)
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
