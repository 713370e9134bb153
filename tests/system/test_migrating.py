"""The steps of docs/guides/migrating-from-0.5.md, on a NATS as those versions leave it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from support.nats_clients import connected
from support.servers import NatsServer
from support.stacks import Stack, until

BIN = Path(sys.executable).parent
PEPPER = "salt"
KEY = f"pyoco_0123456789abcdef_{'x' * 43}"
ENDED, WAITING, WAITING_YAML = (f"11111111-2222-4333-8444-55555555555{number}" for number in range(3))
YAML = (
    "version: 1\ntasks:\n  greet: {callable: 'examples.flows:greet'}\nflow:\n  defaults: {name: you}\n  graph: greet\n"
)


async def ask_jetstream(nc: Client, what: str, **body: Any) -> dict[str, Any]:
    answer = json.loads((await nc.request(f"$JS.API.{what}", json.dumps(body).encode(), timeout=30)).data)
    assert "error" not in answer, (what, answer)
    return dict(answer)


def a_bucket(name: str, **more: Any) -> dict[str, Any]:
    subjects = {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 1, "storage": "file"}
    return {**subjects, "discard": "new", "allow_rollup_hdrs": True, "deny_delete": True, "allow_direct": True, **more}


def a_record(run_id: str, status: str, now: float, **more: Any) -> dict[str, Any]:
    times = {"heartbeat_at": now, "updated_at": now, "submitted_at": now}
    tags = {"tag": "default", "tags": ["default"], "tenant_id": "acme", "api_key_id": "0123456789abcdef"}
    return {
        "run_id": run_id,
        "flow_name": "hello",
        "status": status,
        "params": {},
        "tasks": {},
        **times,
        **tags,
        **more,
    }


async def leave_behind(url: str) -> None:
    """FLOW-277 to FLOW-283, FLOW-296 to FLOW-304, FLOW-339 to FLOW-356: no expiry of single records, no kinds."""
    nc, now = await connected(url), time.time()
    work: dict[str, Any] = {
        "name": "PYOCO_WORK",
        "subjects": ["pyoco.work.>"],
        "retention": "workqueue",
        "storage": "file",
    }
    letters: dict[str, Any] = {
        "name": "PYOCO_DLQ",
        "subjects": ["pyoco.dlq.>"],
        "max_age": 604_800 * 10**9,
        "storage": "file",
    }
    buckets = [a_bucket(f"pyoco_{name}") for name in ("runs", "workers", "auth", "wheel_history")]
    for stream in (work, letters, *buckets):
        await ask_jetstream(nc, f"STREAM.CREATE.{stream['name']}", **stream)
    consumer = {"durable_name": "worker-default", "filter_subject": "pyoco.work.default", "ack_policy": "explicit"}
    await ask_jetstream(
        nc, "CONSUMER.DURABLE.CREATE.PYOCO_WORK.worker-default", stream_name="PYOCO_WORK", config=consumer
    )
    digest = hmac.new(PEPPER.encode(), KEY.encode(), "sha256").hexdigest()
    key = {"key_id": KEY[6:22], "tenant_id": "acme", "key_hash": digest, "hash_alg": "hmac-sha256", "created_at": now}
    js = nc.jetstream()
    await js.publish(f"$KV.pyoco_auth.{KEY[6:22]}", json.dumps({**key, "revoked_at": None}).encode())
    ended = a_record(ENDED, "COMPLETED", now, params={"name": "before"}, worker_id="worker", end_time=now)
    await js.publish(f"$KV.pyoco_runs.{ENDED}", json.dumps(ended).encode())
    yaml = {"workflow_yaml": YAML, "workflow_yaml_sha256": hashlib.sha256(YAML.encode()).hexdigest()}
    for run_id, more in ((WAITING, {}), (WAITING_YAML, {**yaml, "workflow_yaml_bytes": len(YAML)})):
        await js.publish(f"$KV.pyoco_runs.{run_id}", json.dumps(a_record(run_id, "PENDING", now)).encode())
        job = {"run_id": run_id, "flow_name": "hello", "tag": "default", "submitted_at": now, "tenant_id": "acme"}
        await js.publish("pyoco.work.default", json.dumps({**job, "params": {"name": "you"}, **more}).encode())
    await nc.close()


async def mend(url: str) -> None:
    """What the guide does with the `nats` command."""
    nc = await connected(url)
    await ask_jetstream(nc, "CONSUMER.DELETE.PYOCO_WORK.worker-default")
    markers = {"subject_delete_marker_ttl": 86_400 * 10**9}
    for bucket in (a_bucket("pyoco_runs", **markers), a_bucket("pyoco_workers")):
        await ask_jetstream(nc, f"STREAM.UPDATE.{bucket['name']}", **bucket, allow_msg_ttl=True)
    await nc.close()


def remarks(url: str, folder: Path) -> dict[str, str]:
    """Of the doctor, with their advice: all that are not fine."""
    command = [str(BIN / "pyoco-server"), "doctor", "--nats-url", url, "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, cwd=folder, timeout=120, check=False).stdout)
    return {each["id"]: str(each["fix"]) for each in said["findings"] if each["level"] != "ok"}


@pytest.fixture
def earlier(own_nats_server: NatsServer) -> str:
    asyncio.run(leave_behind(own_nats_server.url))
    return own_nats_server.url


def test_what_waits_in_an_earlier_version_is_executed_by_this_one(earlier: str, tmp_path: Path) -> None:
    """FLOW-285, FLOW-551: runs, lists and keys; the doctor says what is in the way."""
    found = remarks(earlier, tmp_path)
    assert found["queue.strangers"] == "nats consumer rm PYOCO_WORK worker-default"
    assert "--allow-msg-ttl" in found["stream.records"]
    asyncio.run(mend(earlier))
    settings = {"http_auth_mode": "api_key", "auth_pepper": PEPPER}
    up = Stack(tmp_path / "up", "--with-examples", "--no-programs", "--nats-url", earlier, **settings)
    up.headers = {"X-API-Key": KEY}
    try:
        up.start()
        for run_id in (WAITING, WAITING_YAML):
            until(lambda run_id=run_id: up.get(f"/runs/{run_id}")["status"] == "COMPLETED", what=run_id)  # type: ignore[misc]
            assert up.get(f"/runs/{run_id}")["attempt"] == 1
        assert {run["run_id"] for run in up.get("/runs")} == {ENDED, WAITING, WAITING_YAML}
        assert up.get(f"/runs/{ENDED}")["params"] == {"name": "before"}
        assert {"queue.strangers", "stream.records", "queue.unserved"}.isdisjoint(remarks(earlier, tmp_path))
    finally:
        up.stop()
