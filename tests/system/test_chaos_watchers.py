"""Watchers that do not read, while what they watch changes all the time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from statistics import median

import httpx
import psutil
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import beat, claim, conclude
from pyoco_server.core.outcome import Completed, Progress
from pyoco_server.ports.runs.port import Stored
from support.backends import ANNA, recorded
from support.chaos import RECOVERY_SECONDS, Eyes, gateway_alone, is_ready, open_eyes
from support.servers import NatsServer
from support.waiting import eventually

WATCHERS = 60
CHANGES, ROUNDS = 300, 30
#: All changes for all watchers would be close to a gigabyte.
RECORD_BYTES = 60_000
#: One snapshot for each of them, and what a process needs besides.
GROWTH_BYTES_MAX = 60_000_000


class Sleeper:
    """Asks for a stream, and does not look at it."""

    def __init__(self, address: str, run_id: str) -> None:
        host, port = address.removeprefix("http://").split(":")
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        self._socket.connect((host, int(port)))
        self._socket.sendall(f"GET /runs/{run_id}/watch?include=records HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        self._socket.setblocking(False)

    async def read(self) -> bytes:
        """Wakes up, and reads until the stream ends."""
        text = b""
        async with asyncio.timeout(3 * RECOVERY_SECONDS):
            while not text.endswith(b"\r\n0\r\n\r\n"):
                piece = await asyncio.get_running_loop().sock_recv(self._socket, 1 << 20)
                assert piece, "cut off"
                text += piece
        return text

    def close(self) -> None:
        self._socket.close()


async def begun(eyes: Eyes) -> Stored:
    made, _ = await recorded(eyes.backend)
    written = await eyes.backend.runs.replace(claim(made.run, ANNA, "attempt", time.time()), made.revision)
    assert isinstance(written, Stored)
    return written


async def change(eyes: Eyes, stored: Stored, count: int) -> Stored:
    """What a worker writes whose run makes progress all the time."""
    for number in range(count):
        records = {"a": {"state": "RUNNING", "output": f"{number:06d}" * (RECORD_BYTES // 6)}}
        run = beat(stored.run, Progress(tasks={"a": "RUNNING"}, task_records=records), time.time())
        written = await eyes.backend.runs.replace(run, stored.revision)
        assert isinstance(written, Stored)
        stored = written
    return stored


class Neighbour:
    """Somebody who wants something else of the same gateway."""

    def __init__(self, address: str) -> None:
        self._client = httpx.AsyncClient(base_url=address, timeout=RECOVERY_SECONDS)
        #: How long each answer took.
        self.waits: list[float] = []

    @property
    def served(self) -> int:
        return len(self.waits)

    async def live(self) -> None:
        while True:
            began = time.monotonic()
            assert (await self._client.post("/runs", json={"flow_name": "f"})).status_code == 200
            self.waits.append(time.monotonic() - began)
            await asyncio.sleep(0.01)

    async def until_served(self) -> None:
        """Returns once it has got one more answer."""
        had = self.served
        await eventually(lambda: self.served > had, RECOVERY_SECONDS)

    @contextlib.asynccontextmanager
    async def next_door(self) -> AsyncIterator[Neighbour]:
        living = asyncio.create_task(self.live())
        try:
            yield self
        finally:
            assert not living.done(), living.exception()
            living.cancel()
            await asyncio.wait({living})
            await self._client.aclose()


async def count_watchers(address: str) -> int:
    async with httpx.AsyncClient(timeout=RECOVERY_SECONDS) as client:
        lines = (await client.get(f"{address}/metrics")).text.splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith("pyoco_watchers "))))


@pytest.mark.usefixtures("cold_processes")  # their memory is looked at
async def test_watchers_that_do_not_read_cost_neither_memory_nor_anybody_elses_time(
    own_nats_server: NatsServer, tmp_path: Path
) -> None:
    """FLOW-120 and DESIGN 5.5: slow clients get the latest snapshot, not a growing queue"""
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    with gateway_alone(config, tmp_path) as (process, address), contextlib.ExitStack() as sockets:
        async with open_eyes(config) as eyes:
            await eventually(lambda: is_ready(address), RECOVERY_SECONDS)
            stored = await change(eyes, await begun(eyes), 1)
            run_id = stored.run.run_id
            sleepers = [sockets.enter_context(closing(Sleeper(address, run_id))) for _ in range(WATCHERS)]
            await eventually(lambda: _all_watch(address), RECOVERY_SECONDS)
            memory = psutil.Process(process.pid).memory_info
            before = memory().rss
            async with Neighbour(address).next_door() as neighbour:
                for _ in range(ROUNDS):
                    stored = await change(eyes, stored, CHANGES // ROUNDS)
                    await neighbour.until_served()
                grown = memory().rss - before
            assert grown < GROWTH_BYTES_MAX
            assert median(neighbour.waits) < 2.0  # now and then a busy machine makes anything slow
            await eyes.backend.runs.replace(conclude(stored.run, Completed(), time.time()), stored.revision)
            for text in await asyncio.gather(*(sleeper.read() for sleeper in sleepers)):
                assert text.count(b"event: snapshot") < CHANGES / 2  # what was missed is not made up for
                assert b'"status":"COMPLETED"' in text.rpartition(b"event: snapshot")[2]  # but the end is told
            await eventually(lambda: _nobody_watches(address), RECOVERY_SECONDS)
            assert process.is_alive


async def _all_watch(address: str) -> bool:
    return await count_watchers(address) == WATCHERS


async def _nobody_watches(address: str) -> bool:
    return await count_watchers(address) == 0
