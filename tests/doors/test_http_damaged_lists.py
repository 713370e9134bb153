"""Files of lists that are cut off under an idle gateway: they come back by themselves, with all they held."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from contracts.dead_letters import a_letter
from pyoco_server.ports.index.port import Mark
from support.burials import bury_letters
from support.gateways import Gateway, submit
from support.waiting import eventually


def cut_off(data_dir: Path, name: str) -> None:
    """As `: > file` does. The shared memory beside it is left alone: no process survives that."""
    (file,) = (data_dir / "index").glob(f"{name}-*.sqlite")
    for each in (file, file.with_name(f"{file.name}-wal")):
        assert each.exists()
        each.write_bytes(b"")


async def comes_back(gateway: Gateway, path: str) -> httpx.Response:
    """The first answer that reports no outage."""
    answers: list[httpx.Response] = []

    async def is_back() -> bool:
        answers.append(await gateway.client.get(path))
        assert answers[-1].status_code in {200, 503}
        return answers[-1].status_code == 200

    await eventually(is_back)
    return answers[-1]


async def test_lists_of_runs_come_back_by_themselves(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/ready` reports it meanwhile. No submissions, no workers."""
    wanted = [await submit(gateway, flow_name=f"f{n}") for n in range(12)]
    before = (await comes_back(gateway, "/runs?limit=50")).json()
    assert {each["run_id"] for each in before} == set(wanted)
    real, was_seen = gateway.backend.index.open, asyncio.Event()

    async def open_later() -> Mark:
        await was_seen.wait()
        return await real()

    monkeypatch.setattr(gateway.backend.index, "open", open_later)
    cut_off(tmp_path, gateway.config.runs_kv_bucket)
    assert (await gateway.client.get("/runs?limit=50&flow=f3")).status_code == 503

    async def says_so() -> bool:
        answer = await gateway.client.get("/ready")
        return answer.status_code == 503 and answer.json()["index"] is False and answer.json()["nats"] is True

    await eventually(says_so)
    was_seen.set()
    assert (await comes_back(gateway, "/ready")).json()["index"] is True
    assert (await gateway.client.get("/runs?limit=50")).json() == before
    assert "built anew" in caplog.text


async def test_lists_of_dead_letters_come_back_by_themselves(gateway: Gateway, tmp_path: Path) -> None:
    """And so do the metrics, which count them."""
    buried = await bury_letters(gateway.backend, *(a_letter(flow_name=f"f{n}") for n in range(12)))
    before = (await comes_back(gateway, "/dlq?limit=50")).json()
    assert {each["id"] for each in before["items"]} == {str(each) for each in buried}
    cut_off(tmp_path, f"letters.{gateway.config.dlq_stream}")
    assert (await gateway.client.get("/dlq?limit=50&flow=f3")).status_code == 503
    assert (await comes_back(gateway, "/dlq?limit=50")).json() == before
    assert (await gateway.client.get("/metrics")).status_code == 200
