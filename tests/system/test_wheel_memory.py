"""A gateway process with wheels much larger than what it may hold, and little disk."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import resource
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from pyoco_server.config import NatsBackendConfig
from support.chaos import Process, gateway_alone, is_ready
from support.servers import NatsServer
from support.waiting import eventually
from support.wheel_doors import open_spools
from support.wheels import build_wheel, dist_info_of, pack, wheel_files, with_record

MIB = 1 << 20


def large_wheel(size_mib: int, version: str = "1.0") -> tuple[str, bytes]:
    """Quickly made: what does not compress is not compressed."""
    files = wheel_files(version=version) | {"my_tasks/data.bin": os.urandom(size_mib * MIB)}
    content = pack(with_record(files, dist_info_of(version=version)), zipfile.ZIP_STORED)
    return build_wheel(version=version)[0], content


def peak_mib(process: Process) -> float:
    """The most memory the process has had since `forget_peak`."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def forget_peak(process: Process) -> None:
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


@contextlib.contextmanager
def low_limit(size_bytes: int) -> Iterator[None]:
    """Files of who is started inside may have so many bytes: a disk that is full, for one process alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
async def gateway(own_nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    with gateway_alone(config, tmp_path) as (process, address):
        await eventually(lambda: is_ready(address), 30.0)
        async with httpx.AsyncClient(base_url=address, timeout=200.0) as client:
            yield process, client


@pytest.mark.usefixtures("cold_processes")  # whose memory is looked at
async def test_memory_does_not_grow_with_the_wheel(gateway: tuple[Process, httpx.AsyncClient], tmp_path: Path) -> None:
    """DESIGN 5.6: 64 MiB up and down, several at once"""
    process, client = gateway
    small = await client.post("/wheels", files={"wheel": build_wheel("warm", "1.0", pad_bytes=3 * MIB)})
    assert (await client.get(f"/wheels/{small.json()['name']}")).status_code == 200
    file_name, content = large_wheel(64)
    sha256 = hashlib.sha256(content).hexdigest()
    forget_peak(process)
    before = peak_mib(process)
    answer = await client.post("/wheels", files={"wheel": (file_name, content)})
    assert (answer.status_code, answer.json()["sha256_hex"]) == (200, sha256)
    assert await asyncio.gather(*(digest_of(client, file_name) for _ in range(3))) == [sha256] * 3
    assert peak_mib(process) - before < 30
    await eventually(lambda: open_spools(tmp_path / "data", process.pid) == 0)


async def digest_of(client: httpx.AsyncClient, file_name: str) -> str:
    digest = hashlib.sha256()
    async with client.stream("GET", f"/wheels/{file_name}") as answer:
        assert answer.headers["content-length"]
        async for chunk in answer.aiter_raw():
            digest.update(chunk)
    return digest.hexdigest()


async def test_a_process_whose_disk_is_full_says_so_and_goes_on(own_nats_server: NatsServer, tmp_path: Path) -> None:
    """ERR-PYOCO-0032"""
    config = NatsBackendConfig(nats_url=own_nats_server.url, data_dir=str(tmp_path / "data"))
    with low_limit(4 * MIB), gateway_alone(config, tmp_path) as (process, address):
        await eventually(lambda: is_ready(address), 30.0)
        async with httpx.AsyncClient(base_url=address, timeout=200.0) as client:
            answer = await client.post("/wheels", files={"wheel": large_wheel(8)})
            assert (answer.status_code, answer.json()["err_id"]) == (503, "ERR-PYOCO-0032")
            assert (await client.get("/wheels")).json() == []
            await eventually(lambda: open_spools(tmp_path / "data", process.pid) == 0)
            answer = await client.post("/wheels", files={"wheel": large_wheel(2)})
            assert answer.status_code == 200, answer.text


async def test_kill_9_in_the_middle_of_an_upload_leaves_no_wheel_and_no_file(
    gateway: tuple[Process, httpx.AsyncClient], tmp_path: Path
) -> None:
    process, client = gateway
    file_name, content = large_wheel(16)
    half_way = asyncio.Event()

    async def halting() -> AsyncIterator[bytes]:
        yield b'--B\r\nContent-Disposition: form-data; name="wheel"; filename="%s"\r\n\r\n' % file_name.encode()
        yield content[: 8 * MIB]
        half_way.set()
        await asyncio.Event().wait()

    headers = {"content-type": "multipart/form-data; boundary=B"}
    sending = asyncio.create_task(client.post("/wheels", content=halting(), headers=headers))
    await half_way.wait()
    await eventually(lambda: open_spools(tmp_path / "data", process.pid) == 1)
    await process.restart()
    sending.cancel()
    await asyncio.wait({sending})
    await eventually(lambda: is_ready(str(client.base_url)), 30.0)
    assert (await client.get("/wheels")).json() == []
    assert not list((tmp_path / "data" / "tmp").iterdir())
