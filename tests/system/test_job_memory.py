"""A gateway process with jobs and archives much larger than what it may hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from contracts.program_queue import taken
from pyoco_server.actions.programs.attempt import ProgramAttempt
from pyoco_server.actions.programs.claim import claim_job, take_slot
from pyoco_server.actions.programs.finish import Output, finish_job
from pyoco_server.actions.programs.inputs import open_inputs
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.programs.report import Report
from pyoco_server.core.states import RunState
from pyoco_server.ports.program_queue.port import ClientQueue
from pyoco_server.wiring import backend as wiring
from support.chaos import Process, gateway_alone, is_ready
from support.servers import NatsServer
from support.waiting import eventually
from support.wheel_doors import open_spools

MIB = 1 << 20
#: What a request may hold is 4 MiB; the rest is for the allocator and for what serves it.
GROWTH_MIB_MAX = 16


def peak_mib(process: Process) -> float:
    """The most memory the process has had since `forget_peak`."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget_peak(process: Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


async def digest_of(client: httpx.AsyncClient, path: str) -> str:
    digest = hashlib.sha256()
    async with client.stream("GET", path) as answer:
        assert answer.status_code == 200
        async for chunk in answer.aiter_raw():
            digest.update(chunk)
    return digest.hexdigest()


@pytest.mark.usefixtures("cold_processes")  # their memory is looked at
async def test_memory_does_not_grow_with_the_files_of_a_job(own_nats_server: NatsServer, tmp_path: Path) -> None:
    """GRID-157: 64 MiB in as several files, 64 MiB out as one archive"""
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    parts = [os.urandom(32 * MIB) for _ in range(2)]
    files = [("file", (f"f{number}", part)) for number, part in enumerate(parts)]
    grid = GridConfig()
    with gateway_alone(config, tmp_path) as (process, address):
        await eventually(lambda: is_ready(address), 30.0)
        async with (
            httpx.AsyncClient(base_url=address, timeout=200.0) as client,
            wiring.open_backend(config, "tests", grid=grid) as backend,
        ):
            warm = await client.post("/jobs", data={"exec_name": "warm"}, files=[("file", ("f", bytes(3 * MIB)))])
            assert warm.status_code == 200, warm.text
            forget_peak(process)
            before = peak_mib(process)
            accepted = await client.post("/jobs", data={"exec_name": "large"}, files=files)
            assert accepted.status_code == 200, accepted.text
            assert peak_mib(process) - before < GROWTH_MIB_MAX
            await eventually(lambda: open_spools(tmp_path / "data", process.pid) == 0)

            assert backend.programs is not None
            slot = await take_slot(backend, "default", "http", "tests")
            assert slot is not None
            (delivery,) = await taken(backend.programs.queue, ClientQueue("default", "large", "http"), 1)
            attempt = await claim_job(backend, delivery, slot, worker_id="w", holder="tests")
            assert isinstance(attempt, ProgramAttempt)
            async with open_inputs(backend, attempt.job) as staged:
                digests = [each.sha256 for each in staged.files]
            assert digests == [hashlib.sha256(part).hexdigest() for part in parts]

            async def read() -> AsyncIterator[bytes]:
                for part in parts:
                    yield part

            sha256 = hashlib.sha256(b"".join(parts)).hexdigest()
            output = Output("output.zip", 64 * MIB, sha256, read)
            await finish_job(backend, attempt, Report(status=RunState.COMPLETED, exit_code=0), [output])
            forget_peak(process)
            before = peak_mib(process)
            assert await digest_of(client, f"/runs/{accepted.json()['run_id']}/artifacts") == sha256
            assert peak_mib(process) - before < GROWTH_MIB_MAX
