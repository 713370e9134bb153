"""A door of programs: jobs per second with a TCP worker, submissions per second, and what it keeps in memory."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import uuid
from collections.abc import Mapping

import psutil
import uvloop

from bench.program_site import ProgramSite, drained, fill
from bench.report import heading, table
from pyoco_server.core.frames.codec import Decoder, Frame, Type, encode
from pyoco_server.core.frames.subjects import submit_subject
from pyoco_server.grid_client import GridClient, JobRequest

__all__ = ["measure_doors"]

_SECONDS = float(os.environ.get("BENCH_PROGRAM_SECONDS", "3"))
_CONNECTIONS = 1000
_ARCHIVE_MIB = int(os.environ.get("BENCH_ARCHIVE_MIB", "1000"))
_MIB = 1 << 20
#: Submissions under way on each of the connections: what a door works on at a time.
_IN_FLIGHT, _SUBMITTERS = 64, 4
#: Writes random bytes: an archive of them is as large as they are.
_LARGE = "#!/bin/sh\nhead -c ${1}M /dev/urandom > large.bin\n"


def measure_doors(site: ProgramSite, jobs: int, cap: int) -> None:
    _jobs(site, jobs, cap)
    _archive(site)
    _connections(site)
    _submissions(site)


def _door(site: ProgramSite) -> tuple[psutil.Process, str, int]:
    many = str(2 * _CONNECTIONS)
    door, address = site.start("leader", 0, EXEC_MAX_CONNS=many, EXEC_MAX_CONNS_PER_IP=many)
    host, _, port = address.rpartition(":")
    return psutil.Process(door.pid), host, int(port)


def _worker(site: ProgramSite, host: str, port: int) -> subprocess.Popen[bytes]:
    return site.start("worker", host, port, "--id", "bench-tcp")[0]


def _cpu_seconds(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def _jobs(site: ProgramSite, jobs: int, cap: int) -> None:
    heading(f"door and TCP worker: {jobs:,} jobs of a program that exits at once")
    door, host, port = _door(site)
    uvloop.run(fill(site.nats_url, jobs, cap))
    before = _cpu_seconds(door)
    worker = _worker(site, host, port)
    rate = uvloop.run(drained(site.nats_url, jobs))
    used = _cpu_seconds(door) - before
    theirs = _cpu_seconds(psutil.Process(worker.pid))
    site.stop()
    table(
        [
            ("", "jobs per second", "door, us of CPU for a job", "worker"),
            ("door and TCP worker", f"{rate:,.0f}", f"{used / jobs * 1e6:,.0f}", f"{theirs / jobs * 1e6:,.0f}"),
        ]
    )


def _archive(site: ProgramSite) -> None:
    heading(f"an archive of {_ARCHIVE_MIB:,} MiB, from a TCP worker through the door into the store")
    site.program("large.sh", _LARGE)
    door, host, port = _door(site)
    _worker(site, host, port)
    before = door.memory_info().rss
    most, seconds, size = asyncio.run(_pass_archive(door, host, port))
    site.stop()
    table(
        [
            ("", "s", "MiB", "door at rest, MiB", "at most"),
            ("archive", f"{seconds:.1f}", f"{size / _MIB:,.0f}", f"{before / _MIB:.0f}", f"{most / _MIB:.0f}"),
        ]
    )


async def _pass_archive(door: psutil.Process, host: str, port: int) -> tuple[int, float, int]:
    """The door's largest size meanwhile, how long it took, and the bytes of the archive."""
    began, most = time.perf_counter(), 0
    async with GridClient(host, port, "bench") as client:
        running = asyncio.ensure_future(client.run(JobRequest(exec_name="large", args=(str(_ARCHIVE_MIB),))))
        while not running.done():
            most = max(most, door.memory_info().rss)
            await asyncio.sleep(0.05)
        result = running.result()
    assert result.output_ref is not None, result
    return most, time.perf_counter() - began, result.output_ref.size


def _connections(site: ProgramSite) -> None:
    heading(f"memory of a door with {_CONNECTIONS:,} connections")
    door, host, port = _door(site)
    before = door.memory_info().rss
    after = uvloop.run(_connect_all(door, host, port))
    site.stop()
    each = (after - before) / _CONNECTIONS / 1024
    table(
        [
            ("", "MiB", "KiB each"),
            ("at rest", f"{before / _MIB:.0f}", ""),
            ("with all", f"{after / _MIB:.0f}", f"{each:.1f}"),
        ]
    )


async def _connect_all(door: psutil.Process, host: str, port: int) -> int:
    opened = [await _Peer.open(host, port, f"c{number}") for number in range(_CONNECTIONS)]
    await asyncio.sleep(0.5)
    size = door.memory_info().rss
    for peer in opened:
        peer.close()
    return int(size)


def _submissions(site: ProgramSite) -> None:
    heading(f"submissions to one door, {_SUBMITTERS} connections with {_IN_FLIGHT} under way each, for {_SECONDS:g} s")
    door, host, port = _door(site)
    before = _cpu_seconds(door)
    count = uvloop.run(_submit_for(host, port))
    used = _cpu_seconds(door) - before
    site.stop()
    rows = [("", "acks per second", "door, us of CPU for one")]
    table([*rows, ("SubmitAck", f"{count / _SECONDS:,.0f}", f"{used / max(count, 1) * 1e6:,.0f}")])


async def _submit_for(host: str, port: int) -> int:
    peers = [await _Peer.open(host, port, f"s{number}") for number in range(_SUBMITTERS)]
    deadline = time.perf_counter() + _SECONDS
    counts = await asyncio.gather(*(peer.submit_until(deadline) for peer in peers))
    for peer in peers:
        peer.close()
    return sum(counts)


class _Peer:
    """As little of a client as there can be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader, self._writer, self._client_id = reader, writer, client_id
        self._decoder = Decoder()

    @classmethod
    async def open(cls, host: str, port: int, client_id: str) -> _Peer:
        peer = cls(*await asyncio.open_connection(host, port), client_id)
        peer._send(Type.HELLO_CLIENT, {"ClientId": client_id, "DesiredParallelism": 4})
        assert [frame.type for frame in await peer._frames()] == [Type.HELLO_ACK]
        return peer

    def _send(self, kind: Type, document: Mapping[str, object], subject: str = "") -> None:
        self._writer.write(encode(Frame(kind, json.dumps(document).encode(), uuid.uuid4(), subject=subject)))

    async def _frames(self) -> list[Frame]:
        frames: list[Frame] = []
        while not frames:
            data = await self._reader.read(1 << 16)
            assert data, "the door has closed"
            frames = [each for each in self._decoder.feed(data) if isinstance(each, Frame)]
        return frames

    async def submit_until(self, deadline: float) -> int:
        """SubmitAcks that came before the deadline."""
        for _ in range(_IN_FLIGHT):
            self._submit()
        count = 0
        while time.perf_counter() < deadline:
            for frame in await self._frames():
                assert frame.type in (Type.SUBMIT_ACK, Type.HEARTBEAT), frame.payload
                if frame.type == Type.SUBMIT_ACK:
                    count += 1
                    self._submit()
        return count

    def _submit(self) -> None:
        job = {"JobId": str(uuid.uuid4()), "ClientId": self._client_id, "ExecName": "nobody", "Args": [], "Files": {}}
        self._send(Type.SUBMIT_JOB, job, submit_subject("nobody"))

    def close(self) -> None:
        self._writer.close()
