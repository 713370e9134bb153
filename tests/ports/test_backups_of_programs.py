"""What programs have in NATS, copied out and put back elsewhere."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.backups import HookedArchive, back_up, put_back
from contracts.program_queue import taken
from contracts.slots import a_slot
from pyoco_server.config import GridConfig, NatsBackendConfig
from pyoco_server.core.backup import DATA
from pyoco_server.core.programs.job import ProgramJob
from pyoco_server.ports.acl.port import AclRecord
from pyoco_server.ports.program_events.port import Event, EventName
from pyoco_server.ports.programs import Programs
from pyoco_server.ports.routes.port import Route
from pyoco_server.ports.slots.port import Cap, Slot
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring.operating import open_backups
from support.grid.stores import a_job, client_queue_of
from support.servers import NatsServer, quick_folder

GRID = GridConfig(exec_queue_max_bytes=10**6)


@asynccontextmanager
async def opened(config: NatsBackendConfig) -> AsyncIterator[Programs]:
    async with wiring.open_door_backend(config, GRID) as backend:
        assert backend.programs is not None
        yield backend.programs


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    yield data


@dataclass
class Told:
    """Some of everything."""

    jobs: list[ProgramJob]
    slot: Slot | None
    route: Route
    event: Event


async def write_some(programs: Programs) -> Told:
    jobs = [a_job("default") for _ in range(3)]
    await programs.queue.add_client_queue(client_queue_of(jobs[0]))
    for job in jobs:
        await programs.queue.put(job)
    await programs.queue.take(client_queue_of(jobs[0]))  # delivered: it is redelivered after the restore
    slot = await programs.slots.take(a_slot("default", 1))
    await programs.slots.set_cap("default", "clientA", Cap(7, 1.0, "hello"))
    for cap in (1, 2):
        await programs.acl.put("client", "clientA", AclRecord(api_key_ids=(), execs=("*",), max_cap=cap))
    route = await programs.routes.place(jobs[0].job_id, "g1", 5.0)
    event = Event(ts=1.0, event=EventName.ENQUEUE, group="default", run_id=jobs[0].run_id)
    await programs.events.record(event)
    await programs.artifacts.put("r/a1/output.zip", pieces(b"zip" * 1000), 10_000)
    return Told(jobs, slot, route, event)


async def check(programs: Programs, told: Told) -> None:
    client_queue = client_queue_of(told.jobs[0])
    found = await taken(programs.queue, client_queue, len(told.jobs))
    assert {each.subject.rpartition(".")[2] for each in found} == {job.run_id for job in told.jobs}
    assert programs.queue.client_queues("default") == [client_queue]
    assert programs.slots.held("default", "clientA") == [told.slot]
    caps = {client: cap.cap for client, cap in programs.slots.caps("default").items()}
    assert caps == {"clientA": 7, "clientB": 9}
    record = programs.acl.find("client", "clientA")
    assert record is not None
    assert record.max_cap == 2
    assert await programs.routes.find(told.route.job_id) == told.route
    assert await programs.events.recent(job_id=None, event=None, group="default", limit=9) == [told.event]
    info = await programs.artifacts.info("r/a1/output.zip")
    assert b"".join([chunk async for chunk in programs.artifacts.read(info)]) == b"zip" * 1000


async def test_everything_of_programs_survives(own_nats_server: NatsServer, tmp_path: Path) -> None:
    """GRID-189, GRID-177: also what is put on the queue, or taken from it, while the backup is made"""
    config, archive, comes = (
        NatsBackendConfig(nats_url=own_nats_server.url),
        HookedArchive(tmp_path / "b"),
        a_job("default"),
    )
    async with opened(config) as programs, open_backups(config, grid=GRID) as streams:
        told = await write_some(programs)

        async def meanwhile() -> None:
            """After the queue has been copied, before the caps are. The job that leaves is there once more after the
            restore: its run has ended, and whoever takes it sees that."""
            await programs.queue.put(comes)
            assert await programs.queue.remove(told.jobs[2])
            await programs.slots.set_cap("default", "clientB", Cap(9, 1.0, "hello"))

        archive.hooks["KV_pyoco_exec_lanes", DATA, 0] = meanwhile
        manifest = await back_up(config, streams, archive)
        assert (manifest.missing, archive.hooks) == ((), {})
    told.jobs.append(comes)
    with quick_folder() as folder:
        other = NatsServer(folder)
        other.start()
        there = NatsBackendConfig(nats_url=other.url)
        async with open_backups(there, grid=GRID) as streams:
            await put_back(there, streams, archive)
        async with opened(there) as programs:
            await check(programs, told)
        other.kill()


async def test_an_installation_without_programs_misses_nothing(own_nats_server: NatsServer, tmp_path: Path) -> None:
    config = NatsBackendConfig(nats_url=own_nats_server.url)
    async with wiring.open_backend(config, "tests") as backend, open_backups(config, grid=GRID) as streams:
        assert backend.clock() == pytest.approx(time.time(), abs=60)
        manifest = await back_up(config, streams, HookedArchive(tmp_path / "backup"))
    assert manifest.missing == ()
    assert {stream.name for stream in manifest.streams} & {"PYOCO_EXEC", "KV_pyoco_exec_slots"} == set()
