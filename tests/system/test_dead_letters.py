"""A gateway, a worker with hosts and a keeper: every way a job can die, seen and put right over HTTP."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.api_key import make_key
from pyoco_server.core.flow_moves import accept
from pyoco_server.core.outcome import DeadReason
from pyoco_server.core.run import Caller, Owner
from pyoco_server.executors.host.pool import HostExecutor
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.queue.port import Delivery
from pyoco_server.wiring import backend as wiring
from support.backends import a_submission, consumer_state, opened_backend, run_now
from support.dead_letters_http import ask, get
from support.flow_workers import a_worker
from support.gateways import Gateway, open_gateway
from support.keepers import keeping
from support.servers import config_for, forget
from support.waiting import eventually

TESTS = Path(__file__).parents[1]
ACK_WAIT_SECONDS = 0.5
#: Programs have reasons of their own; they are proven with the grid.
OF_FLOWS = set(DeadReason) - {
    DeadReason.MAX_ATTEMPTS,
    DeadReason.MAX_LOST,
    DeadReason.EXEC_NOT_FOUND,
    DeadReason.EXEC_NOT_ALLOWED,
}


@dataclass
class Scene:
    """Everything there is, and a tenant that uses it."""

    gateway: Gateway
    backend: Backend
    link: Link
    key: dict[str, str]
    executor: HostExecutor

    async def submitted(self, flow_name: str, tag: str = "default", **params: Any) -> str:
        body = {"flow_name": flow_name, "tag": tag, "params": params}
        answer = await self.gateway.client.post("/runs", json=body, headers=self.key)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["run_id"])

    async def letter_of(self, run_id: str) -> dict[str, Any]:
        """Returns it once it is in the list."""
        found: list[dict[str, Any]] = []

        async def is_there() -> bool:
            found[:] = (await get(self.gateway, f"/dlq?run_id={run_id}", **self.key))["items"]
            return bool(found)

        await eventually(is_there, 20.0)
        [letter] = found
        return letter

    async def status(self, run_id: str) -> str:
        return str((await self.gateway.client.get(f"/runs/{run_id}", headers=self.key)).json().get("status", ""))

    async def taken_and_dropped(self, tag: str) -> None:
        """Workers took a job of this tag, as often as it may be delivered, and fell over each time. Whoever comes first
        to a tag says how often that is, and how soon."""
        hand: list[Delivery] = []
        hasty = replace(
            self.gateway.config,
            consumer_max_deliver=2,
            consumer_ack_wait_sec=ACK_WAIT_SECONDS,
            ack_progress_interval_sec=ACK_WAIT_SECONDS / 5,
        )
        async with opened_backend(hasty) as backend:
            intake = await backend.queue.open_intake([tag], hand.append)

            async def was_taken_twice() -> bool:
                await intake.want(1)
                await intake.tick()
                state = await consumer_state(self.link, self.gateway.config, tag)
                return bool(state["delivered"]["consumer_seq"] >= 2)

            await eventually(was_taken_twice)
            await intake.close()

    async def timed_out(self) -> str:
        """A run that takes too long; what begins later has all the time it wants."""
        self.executor._timeout = 2.0
        run_id = await self.submitted("sleeps", seconds=60)

        async def has_begun() -> bool:
            return bool((await run_now(self.backend, run_id)).tasks)

        await eventually(has_begun)
        self.executor._timeout = 0.0
        return run_id


@contextlib.asynccontextmanager
async def working(backend: Backend) -> AsyncIterator[HostExecutor]:
    executor = wiring.host_executor(backend.config, "support.naughty:resolve", 2)
    worker = a_worker(backend, executor, Owner("w", backend.new_id()), slots=2)
    await worker.start()
    try:
        yield executor
    finally:
        await worker.stop("test", 0.1)


@pytest.fixture
async def scene(link: Link, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    config = config_for(
        nats_url,
        data_dir=str(tmp_path),
        http_auth_mode="api_key",
        run_heartbeat_interval_sec=0.2,
        abandon_after_sec=30.0,
    )
    async with open_gateway(config) as gateway, opened_backend(config) as backend:
        plain, record = make_key("acme", "", time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await gateway.backend.keys.add(record)
        async with working(backend) as executor, keeping(backend, tmp_path):
            yield Scene(gateway, backend, link, {"X-API-Key": plain}, executor)
    await forget(link, config)


async def broken_job(scene: Scene) -> str:
    """FLOW-316: a run whose message is not one anybody can run."""
    run_id = await scene.submitted("fine", "elsewhere")
    body = json.dumps({"run_id": run_id, "flow_name": "", "params": {"word": "s3cret"}}).encode()
    await scene.link.store(f"{scene.gateway.config.work_subject_prefix}.default", body)
    return run_id


async def given_up(scene: Scene) -> str:
    """DESIGN 9.8"""
    run_id = await scene.submitted("fine", "crowded", word="s3cret")
    await scene.taken_and_dropped("crowded")
    return run_id


async def abandoned(scene: Scene) -> str:
    """FLOW-76: a gateway died between the record and the job."""
    ask_for = a_submission("fine", params={"word": "s3cret"})
    run = accept(ask_for, Caller("acme", "k"), scene.backend.new_id(), time.time() - 60)
    await scene.backend.runs.create(run)
    return run.run_id


async def test_every_way_to_die_leaves_a_letter_that_can_be_found_and_redriven(scene: Scene) -> None:
    """FLOW-316 to FLOW-318, FLOW-331 to FLOW-337, DESIGN 6, DESIGN 9.8"""
    deaths = {
        DeadReason.INVALID_JOB: await broken_job(scene),
        DeadReason.FLOW_NOT_FOUND: await scene.submitted("no such flow", word="s3cret"),
        DeadReason.EXECUTION_ERROR: await scene.submitted("fails"),
        DeadReason.HOST_KILLED: await scene.submitted("is_killed"),
        DeadReason.TIMEOUT: await scene.timed_out(),
        DeadReason.MAX_DELIVER: await given_up(scene),
        DeadReason.ABANDONED: await abandoned(scene),
    }
    assert deaths.keys() == OF_FLOWS, "every reason there is"
    for reason, run_id in deaths.items():
        letter = await scene.letter_of(run_id)
        assert (letter["reason"], letter["run_id"], letter["tenant_id"]) == (reason, run_id, "acme")
        assert letter["error"]
        assert letter["flow_name"]
        assert letter["api_key_id"]
        assert abs(letter["timestamp"] - time.time()) < 300
        assert "s3cret" not in json.dumps(letter)
        is_delivered = reason is not DeadReason.ABANDONED
        assert ("num_delivered" in letter, "subject" in letter) == (is_delivered, is_delivered), letter
        assert ("worker_id" in letter) == (reason not in {DeadReason.ABANDONED, DeadReason.MAX_DELIVER}), letter
        view = await get(scene.gateway, f"/dlq/{letter['id']}", **scene.key)
        assert (view["run_status"], view["redrivable"]) == ("FAILED", True)
    counts = await get(scene.gateway, "/dlq/counts", **scene.key)
    assert {group["reason"]: group["count"] for group in counts["groups"]} == dict.fromkeys(OF_FLOWS, 1)

    # One at a time, with what was wrong put right.
    slow = await scene.letter_of(deaths[DeadReason.TIMEOUT])
    path = f"/dlq/{slow['id']}/redrive"
    answer = (await ask(scene.gateway, "POST", path, {"params": {"seconds": 0}}, **scene.key)).json()
    assert answer["rerun_of"] == deaths[DeadReason.TIMEOUT]
    await eventually(lambda: is_completed(scene, answer["run_id"]), 20.0)

    # By filter: what never had its chance gets one now. What fails again comes back as a letter of its own.
    for reason in (DeadReason.ABANDONED, DeadReason.EXECUTION_ERROR):
        redriven = (await ask(scene.gateway, "POST", "/dlq/redrive", {"reason": reason}, **scene.key)).json()
        assert (redriven["matched"], redriven["redriven"], redriven["failed"]) == (1, 1, 0)
    runs = (await scene.gateway.client.get("/runs?limit=200&include=full", headers=scene.key)).json()
    again = {run["rerun_of"]: run["run_id"] for run in runs if "rerun_of" in run}
    await eventually(lambda: is_completed(scene, again[deaths[DeadReason.ABANDONED]]), 20.0)
    assert (await scene.letter_of(again[deaths[DeadReason.EXECUTION_ERROR]]))["reason"] == "execution_error"
    for run_id in deaths.values():
        assert await scene.status(run_id) == "FAILED", "an end is final"

    cleared = (await ask(scene.gateway, "DELETE", "/dlq?all=true", **scene.key)).json()
    assert cleared == {"matched": 5, "deleted": 5, "more": False}
    assert await get(scene.gateway, "/dlq/counts", **scene.key) == {"total": 0, "groups": []}


async def is_completed(scene: Scene, run_id: str) -> bool:
    status = await scene.status(run_id)
    assert status in {"", "PENDING", "RUNNING", "COMPLETED"}
    return status == "COMPLETED"


async def test_a_message_that_is_nobodys_job_is_hidden_from_tenants(scene: Scene) -> None:
    """FLOW-275, FLOW-316"""
    await scene.link.store(f"{scene.gateway.config.work_subject_prefix}.default", b"no job at all")

    async def is_buried() -> bool:
        return await scene.gateway.backend.dead_letter_index.total() == 1

    await eventually(is_buried, 20.0)
    assert (await get(scene.gateway, "/dlq", **scene.key))["items"] == []
    assert (await get(scene.gateway, "/dlq/counts", **scene.key))["total"] == 0
    assert (await ask(scene.gateway, "GET", "/dlq/1", **scene.key)).status_code == 404
    found = await scene.gateway.backend.dead_letters.find(1)
    assert found is not None
    written = found.dead_letter
    assert (written.reason, written.run_id, written.tenant_id) == (DeadReason.INVALID_JOB, None, None)
