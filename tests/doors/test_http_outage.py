"""The HTTP door while NATS is unavailable, and after it is back. Each test has a server of its own to kill."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.errors import Unavailable
from pyoco_server.http_api import create_app
from pyoco_server.ports.nats.link import Patience, open_link
from support.gateways import Gateway, environment, error, open_gateway, stock_of
from support.servers import NatsServer, config_for
from support.waiting import eventually
from support.warm_processes import ran

AWAY = error(3, "nats unavailable")
NOBODY = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
async def gateway(own_nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with open_gateway(config_for(own_nats_server.url, data_dir=str(tmp_path))) as gateway:
        yield gateway


async def kill(server: NatsServer, gateway: Gateway) -> None:
    await asyncio.to_thread(server.kill)
    await eventually(lambda: not gateway.backend.is_up())


def check_away(answer: httpx.Response, server: NatsServer) -> None:
    """FLOW-47, FLOW-49, FLOW-62"""
    assert answer.status_code == 503
    assert answer.json() | AWAY == answer.json()
    assert answer.json().keys() - AWAY.keys() <= {"status", "nats", "index", "store"}
    assert answer.headers["retry-after"] == "1"
    told = answer.text + str(answer.headers)
    port = server.url.rsplit(":", 1)[1]
    assert [word for word in ("nats://", "127.0.0.1", port, "Traceback", ".py") if word in told] == []


REQUESTS = [
    ("POST", "/runs", b'{"flow_name": "hello"}'),
    ("GET", f"/runs/{NOBODY}", b""),
    ("GET", f"/runs/{NOBODY}/tasks", b""),
    ("POST", f"/runs/{NOBODY}/cancel", b""),
    ("GET", "/runs", b""),
    ("GET", "/runs?include=full", b""),
    ("GET", "/ready", b""),
]


@pytest.mark.steady_time
async def test_an_outage_is_503_within_5_seconds_and_ends_by_itself(
    own_nats_server: NatsServer, gateway: Gateway
) -> None:
    """FLOW-47 to FLOW-49, FLOW-62, FLOW-63; DESIGN 9.16"""
    answers = [await gateway.client.post("/runs", json={"flow_name": "hello", "params": {"n": n}}) for n in range(20)]
    accepted = [answer.json()["run_id"] for answer in answers]
    await kill(own_nats_server, gateway)

    async def ask(method: str, path: str, body: bytes) -> None:
        check_away(await gateway.client.request(method, path, content=body), own_nats_server)

    async def ask_all() -> None:
        await asyncio.gather(*(ask(*request) for request in REQUESTS), *(ask(*REQUESTS[0]) for _ in range(50)))

    own: Any = gateway.backend.runs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own._link, "patience", Patience(down_seconds=600.0))
        waits = asyncio.create_task(ask_all())
        healthy = await gateway.client.get("/health")
        assert (healthy.status_code, healthy.json()) == (200, {"status": "ok"})
        assert not waits.done(), "it was answered before the others"
        waits.cancel()
        await asyncio.wait({waits})
    async with asyncio.timeout(5.0):
        await ask_all()
    assert (await gateway.client.post("/runs", content=b"{")).status_code == 422  # what is wrong stays wrong

    await asyncio.to_thread(own_nats_server.start)

    async def is_ready() -> bool:
        return (await gateway.client.get("/ready")).status_code == 200

    await eventually(is_ready)
    for run_id in accepted:
        assert (await gateway.client.get(f"/runs/{run_id}")).json()["status"] == "PENDING"
    fresh = (await gateway.client.post("/runs", json={"flow_name": "hello"})).json()["run_id"]
    listed = {run["run_id"] for run in (await gateway.client.get("/runs?limit=200")).json()}
    assert {*accepted, fresh} <= listed
    assert (await gateway.client.post(f"/runs/{fresh}/cancel")).json()["status"] == "CANCELLING"


async def test_a_submission_that_meets_a_restart_is_accepted_or_leaves_nothing(
    own_nats_server: NatsServer, gateway: Gateway
) -> None:
    """FLOW-73, FLOW-75: 200 means that both are stored, whatever happened meanwhile"""
    stop = asyncio.Event()
    answers: list[httpx.Response] = []

    async def submitter() -> None:
        while not stop.is_set():
            answers.append(await gateway.client.post("/runs", json={"flow_name": "hello"}))

    submitters = [asyncio.create_task(submitter()) for _ in range(10)]
    await eventually(lambda: len(answers) > 50)
    await asyncio.to_thread(own_nats_server.restart)
    there = len(answers)
    await eventually(lambda: len(answers) > there + 50)
    stop.set()
    await asyncio.gather(*submitters)
    assert {answer.status_code for answer in answers} <= {200, 503}
    accepted = {answer.json()["run_id"] for answer in answers if answer.status_code == 200}
    for run_id in accepted:
        assert (await gateway.client.get(f"/runs/{run_id}")).status_code == 200
    link = await open_link(own_nats_server.url, "tests")
    assert (await stock_of(gateway.config, link))[gateway.config.work_stream] >= len(accepted)
    await link.close()


async def test_a_key_cannot_be_checked_without_nats(own_nats_server: NatsServer, tmp_path: Path) -> None:
    """FLOW-264: a memory of keys that may be out of date opens nothing"""
    config = config_for(own_nats_server.url, data_dir=str(tmp_path), http_auth_mode="api_key")
    plain, record = make_key("a", "", 1.0, lambda _: "0123456789abcdef", lambda _: "x" * 43)
    async with open_gateway(config) as gateway:
        await gateway.backend.keys.add(record)
        assert (await gateway.client.get("/runs", headers={"X-API-Key": plain})).status_code == 200
        await kill(own_nats_server, gateway)
        check_away(await gateway.client.get("/runs", headers={"X-API-Key": plain}), own_nats_server)
        assert (await gateway.client.get("/runs")).status_code == 401
        assert (await gateway.client.get("/health")).status_code == 200
        await asyncio.to_thread(own_nats_server.start)

        async def is_open() -> bool:
            return (await gateway.client.get("/runs", headers={"X-API-Key": plain})).status_code == 200

        await eventually(is_open)
        assert (await gateway.client.get("/runs", headers={"X-API-Key": "nonsense"})).status_code == 403


async def test_without_nats_no_gateway_starts(unused_port: int, tmp_path: Path) -> None:
    """FLOW-286, FLOW-391: making the application needs no NATS, starting it does"""
    nowhere = config_for(f"nats://127.0.0.1:{unused_port}", data_dir=str(tmp_path))
    raised, command, uvicorn = await asyncio.gather(
        start(nowhere),
        run(nowhere, "pyoco_server.doors.cli.server", "gateway", "--port", "0"),
        run(nowhere, "uvicorn", "pyoco_server.http_api:create_app", "--factory", "--port", "0"),
    )
    assert raised.text.err_id == "ERR-PYOCO-0003"
    assert command.returncode == 1
    assert command.stderr.startswith("ERR-PYOCO-0003: no NATS server answers at ")
    assert "Traceback" not in command.stderr
    assert uvicorn.returncode not in {0, -9}
    assert "no NATS server answers" in uvicorn.stderr


async def start(config: NatsBackendConfig) -> Unavailable:
    app = create_app(config)
    with pytest.raises(Unavailable) as raised:
        async with app.router.lifespan_context(app):
            pytest.fail("it started without NATS")
    return raised.value


async def run(config: NatsBackendConfig, *module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *module]
    return await asyncio.to_thread(ran, command, env=environment(config), timeout=120)
