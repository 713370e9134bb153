"""`GET /runs/{run_id}` and its tasks: what is shown of a run, and of the worker that has it."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from pyoco_server.actions.rescue import rescue
from pyoco_server.core.flow_moves import beat, put_back
from pyoco_server.core.outcome import Completed, Failed, Progress
from pyoco_server.core.run import Owner
from pyoco_server.core.snapshot import to_snapshot
from pyoco_server.core.states import WorkerState
from pyoco_server.core.worker_record import WorkerRecord
from pyoco_server.errors import Unavailable
from pyoco_server.ports.nats.bucket import Bucket
from pyoco_server.ports.nats.link import Link
from support.gateways import (
    PROGRESS,
    Gateway,
    claimed,
    ended,
    error,
    fresh_gateway,
    stored,
    submit,
)
from support.waiting import eventually


class TestRead:
    async def test_records_are_shown_on_request(self, gateway: Gateway) -> None:
        """FLOW-89 to FLOW-92"""
        cases: list[tuple[str, bool]] = [
            ("", False),
            ("?include=records", True),
            ("?include=full", True),
            ("?include=all", True),
            ("?include=nonsense", False),
            ("?include=nonsense&include=records", True),
            ("?include=", False),
            ("?include=RECORDS", False),
        ]
        run_id = await submit(gateway)
        await ended(gateway, run_id, Completed(progress=PROGRESS))
        for query, has_records in cases:
            snapshot = (await gateway.client.get(f"/runs/{run_id}{query}")).json()
            assert snapshot["status"] == "COMPLETED", query
            assert snapshot["tasks"] == {"a": "SUCCEEDED"}, query
            assert snapshot["task_records_truncated"] is False, query
            assert snapshot.get("task_records") == (PROGRESS.task_records if has_records else None), query

    async def test_a_stranger_s_record_is_shown_in_strict_json(self, gateway: Gateway, link: Link) -> None:
        """FLOW-345: half a surrogate pair, which UTF-8 cannot hold, in a record that is not ours."""
        run_id = await submit(gateway)
        found = await stored(gateway, run_id)
        data = json.dumps(to_snapshot(found.run) | {"params": {"x": "\ud800"}}).encode()
        await Bucket(link, gateway.config.runs_kv_bucket).write(run_id, data, found.revision)
        answer = await gateway.client.get(f"/runs/{run_id}")
        assert (answer.status_code, answer.json()["params"]) == (200, {"x": "?"})
        listed = await gateway.client.get("/runs?include=full")
        assert [run["params"] for run in listed.json()] == [{"x": "?"}]

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

    async def test_what_happened_last_is_told_with_who_did_it(self, gateway: Gateway) -> None:
        run_id = await submit(gateway)

        async def last() -> tuple[str, float, dict[str, str | None]]:
            change = (await gateway.client.get(f"/runs/{run_id}")).json()["last_change"]
            return change["what"], change["at"], change["by"]

        record = (await stored(gateway, run_id)).run
        assert await last() == ("submitted", record.submitted_at, {"kind": "caller", "id": None})
        begun = await claimed(gateway, run_id)
        assert await last() == ("started", begun.start_time, {"kind": "worker", "id": "anna"})
        found = await stored(gateway, run_id)
        await gateway.backend.runs.replace(put_back(found.run, 99.0), found.revision)
        assert await last() == ("handed_back", 99.0, {"kind": "worker", "id": "anna"})
        found = await stored(gateway, run_id)
        asked = (await gateway.client.post(f"/runs/{run_id}/cancel")).json()
        assert await last() == ("cancel_requested", asked["cancel_requested_at"], {"kind": "caller", "id": None})
        ended_run = await rescue(replace(gateway.backend, clock=lambda: time.time() + 60), run_id, 0.0)
        assert ended_run is not None
        assert await last() == ("cancelled", ended_run.end_time, {"kind": "keeper", "id": None})

    async def test_graph_and_earlier_attempts_are_shown_with_the_run_and_in_full_lists(self, gateway: Gateway) -> None:
        run_id = await submit(gateway)
        first = await claimed(gateway, run_id)
        await claimed(gateway, run_id, Owner("bert", "instance-2"))
        found = await stored(gateway, run_id)
        told = beat(found.run, Progress({"a": "RUNNING"}, graph={"a": (), "b": ("a",)}), time.time())
        await gateway.backend.runs.replace(told, found.revision)
        snapshot = (await gateway.client.get(f"/runs/{run_id}")).json()
        assert snapshot["graph"] == {"a": [], "b": ["a"]}
        assert snapshot["earlier_attempts"] == [
            {
                "attempt": 1,
                "worker_id": "anna",
                "started_at": first.start_time,
                "ended_at": first.heartbeat_at,
                "why": "lost",
            }
        ]

        async def is_listed() -> bool:
            [line] = (await gateway.client.get("/runs?include=full")).json()
            return all(line.get(name) == snapshot[name] for name in ("graph", "earlier_attempts"))

        await eventually(is_listed)
        [line] = (await gateway.client.get("/runs")).json()
        assert not {"graph", "earlier_attempts", "last_change"} & line.keys()

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
        """FLOW-95, FLOW-359, RES-4"""
        async with fresh_gateway(link, nats_url, tmp_path, max_run_snapshot_bytes=2000) as gateway:
            run_id = await submit(gateway)
            bulky = Progress(tasks={"a": "SUCCEEDED"}, task_records={"a": {"state": "SUCCEEDED", "output": "x" * 2000}})
            await ended(gateway, run_id, Completed(progress=bulky))
            tasks = (await gateway.client.get(f"/runs/{run_id}/tasks")).json()
            assert tasks["task_records_truncated"] is True
            assert tasks["task_records"]["a"].pop("output_error")["err_id"] == "ERR-PYOCO-0055"
            assert tasks["task_records"] == {"a": {"state": "SUCCEEDED", "output_truncated": True}}
            assert (await gateway.client.get(f"/runs/{run_id}")).json()["task_records_truncated"] is True

    async def test_an_unknown_run_is_not_found(self, gateway: Gateway) -> None:
        """FLOW-50, FLOW-53, FLOW-94, FLOW-96, FLOW-116"""
        cases: list[tuple[str, str]] = [("GET", ""), ("GET", "/tasks"), ("POST", "/cancel")]
        for method, path in cases:
            answer = await gateway.client.request(method, f"/runs/{uuid.uuid4()}{path}")
            assert (answer.status_code, answer.json()) == (404, error(5, "run not found")), (method, path)
