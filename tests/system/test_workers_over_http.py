"""Real `pyoco-worker` processes as `GET /workers` shows them, and a real `pyoco-keeper` that forgets them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyoco_server.config import NatsBackendConfig
from support.backends import has_ended, submitted
from support.gateways import Gateway, open_gateway
from support.waiting import eventually
from system.test_worker_processes import Crowd, _environment, settings_of


@pytest.fixture
async def gateway(config: NatsBackendConfig, tmp_path: Path) -> AsyncIterator[Gateway]:
    quick = replace(settings_of(config), data_dir=str(tmp_path / "data"), workers_retention_sec=1.0)
    async with open_gateway(quick) as gateway:
        yield gateway


@pytest.fixture
def crowd(gateway: Gateway, tmp_path: Path) -> Iterator[Crowd]:
    crowd = Crowd(gateway.config, tmp_path)
    yield crowd
    crowd.kill()


async def shown(gateway: Gateway, query: str = "") -> dict[str, Any]:
    """As soon as the gateway hears NATS: it shows nobody of whom it might be out of date."""
    answers: list[httpx.Response] = []

    async def is_answered() -> bool:
        answers.append(await gateway.client.get(f"/workers{query}"))
        return answers[-1].status_code == 200

    await eventually(is_answered)
    return {worker["worker_id"]: worker for worker in answers[-1].json()}


async def test_each_kind_of_end_is_told_apart_and_a_hidden_worker_stays_hidden(
    gateway: Gateway, crowd: Crowd, tmp_path: Path
) -> None:
    """FLOW-26 to FLOW-28, FLOW-148, FLOW-195 to FLOW-199, FLOW-560, FLOW-561"""
    works, stops, dies = [
        await crowd.start(name, "--tags", f"default,{name}", resolver="support.naughty:resolve")
        for name in ("works", "stops", "dies")
    ]

    async def all_are_shown() -> bool:
        return set(await shown(gateway)) == {"works", "stops", "dies"}

    await eventually(all_are_shown)
    gate = tmp_path / "gate"
    run_id = await submitted(gateway.backend, "waits_for", "works", path=str(gate))

    async def is_running() -> bool:
        worker = (await shown(gateway, "?tag=works&scope=all"))["works"]
        assert (worker["slots"], worker["tags"]) == (1, ["default", "works"])
        return (worker["state"], worker["running"], worker["current_run_id"]) == ("RUNNING", [run_id], run_id)

    await eventually(is_running)
    assert "pyoco-server" in (await shown(gateway, "?scope=all"))["works"]["versions"]
    assert (await gateway.client.patch("/workers/works", json={"hidden": True})).status_code == 200

    stops.process.send_signal(signal.SIGTERM)
    dies.process.kill()
    assert await stops.left() == 0
    assert await dies.left() == -signal.SIGKILL

    async def is_lost() -> bool:
        return bool((await shown(gateway, "?scope=all"))["dies"]["state"] == "DISCONNECTED")

    await eventually(is_lost)
    gate.touch()
    await eventually(lambda: has_ended(gateway.backend, run_id))
    everybody = await shown(gateway, "?scope=all&include_hidden=true")
    assert time.time() - everybody["dies"]["last_seen_at"] > gateway.config.worker_disconnect_timeout_sec
    stopped = everybody["stops"]
    assert (stopped["state"], stopped["stop_reason"], stopped["stopped_at"]) == (
        "STOPPED_GRACEFUL",
        "sigterm",
        stopped["last_seen_at"],
    )
    assert (everybody["dies"]["stop_reason"], everybody["dies"]["stopped_at"]) == (None, None)
    assert everybody["works"]["hidden"]  # after seconds of heartbeats, and the start and end of a run
    assert await shown(gateway) == {}
    assert set(await shown(gateway, "?state=STOPPED_GRACEFUL&scope=all")) == {"stops"}
    assert set(await shown(gateway, "?state=DISCONNECTED&scope=all")) == {"dies"}

    works.process.kill()
    await works.left()
    await crowd.start("works")
    await crowd.start("dies")

    async def are_back() -> bool:
        found = set(await shown(gateway, "?include_hidden=1")), set(await shown(gateway))
        return found == ({"works", "dies"}, {"dies"})

    await eventually(are_back)


async def test_a_keeper_forgets_who_is_long_gone(gateway: Gateway, crowd: Crowd, tmp_path: Path) -> None:
    """FLOW-194: and nobody else"""
    _, stops, dies = [await crowd.start(name) for name in ("works", "stops", "dies")]
    stops.process.terminate()
    dies.process.kill()
    await stops.left()

    async def is_lost() -> bool:
        return bool((await shown(gateway, "?scope=all"))["dies"]["state"] == "DISCONNECTED")

    await eventually(is_lost)
    log = tmp_path / "keeper.log"
    with log.open("wb") as output:
        code = (
            "import functools\nfrom pyoco_server.config import NatsBackendConfig as C\n"
            f"C.from_env = functools.partial(C.from_env, work_stream={gateway.config.work_stream!r})\n"
            "from pyoco_server.doors.cli.keeper import main\nmain()\n"
        )
        environment = _environment(replace(gateway.config, data_dir=str(tmp_path / "keeper")))
        keeper = subprocess.Popen([sys.executable, "-c", code], stdout=output, stderr=output, env=environment)
    try:

        async def are_forgotten() -> bool:
            assert keeper.poll() is None, log.read_text()
            return set(await shown(gateway, "?scope=all")) == {"works"}

        await eventually(are_forgotten, 20)
        assert (await gateway.client.get("/workers/dies")).status_code == 404
    finally:
        keeper.terminate()
        assert keeper.wait(60) == 0, log.read_text()
