"""Archives of every size arrive as they were made, and the door does not keep them in memory."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from pyoco_server.core.frames.results import fitted
from pyoco_server.grid_client import GridClient, JobResult
from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import Scene, scene

_KIB, _MIB = 1024, 1024**2
#: So near to the largest archive that fits into a frame: other fields of a result differ by a few bytes.
_NEAR = 2 * _KIB
_GROWTH_MAX = 32 * _MIB
#: Makes a file that no compression makes smaller, and tells its sha256.
_RANDOM = 'head -c "$1" /dev/urandom > out.bin\nsha256sum out.bin | cut -c 1-64\n'


@full_only  # its quick form: test_files_of_any_size_come_out_as_they_went_in
@pytest.mark.usefixtures("cold_processes")  # their memory is looked at
async def test_archives_around_the_size_of_a_frame_and_far_above_arrive_whole(tmp_path: Path) -> None:
    """P22: GRID-143, GRID-144, GRID-145"""
    with proof("P22", "archives") as found:
        async with scene(tmp_path, gateways=1) as grid:
            for place in ("tcp", "native"):
                (tmp_path / "programs" / f"random_{place}.sh").write_text(_RANDOM, encoding="utf-8")
            grid.start_worker("job.assign.random_tcp")
            grid.start_native("job.assign.random_native")
            async with grid.client("clientA") as client:
                under, over = await _around_a_frame(grid, client)
                watched = _Watched(grid.doors[0].pid)
                watching = asyncio.create_task(watched.watch())
                ended = []
                for place in ("tcp", "native"):
                    for size, inline in ((_KIB, True), (under, True), (over, False), (64 * _MIB, False)):
                        result = await _whole(grid, client, f"random_{place}", size)
                        assert (result.output_archive is not None) == inline, f"{size} at {place}"
                        ended.append(result.job_id)
                watching.cancel()
                await asyncio.wait({watching})
            found.note(sizes=[_KIB, under, over, 64 * _MIB], door_grew_mib=round(watched.grown / _MIB, 1))
            assert watched.grown < _GROWTH_MAX
            await grid.assert_exact(ended)


class _Watched:
    """How much memory a process has at most, above what it had at first."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._first = self._most = self._process.memory_info().rss

    @property
    def grown(self) -> int:
        return self._most - self._first

    async def watch(self) -> None:
        while True:
            self._most = max(self._most, self._process.memory_info().rss)
            await asyncio.sleep(0.01)


async def _around_a_frame(grid: Scene, client: GridClient) -> tuple[int, int]:
    """Sizes of files whose archives just fit into a frame, and just do not: from one that fits."""
    probe = 3_000_000
    result = await _whole(grid, client, "random_tcp", probe)
    assert result.output_archive is not None
    extra = len(result.output_archive) - probe
    low, high = len(result.output_archive), 4 * _MIB
    while high - low > 1:
        middle = (low + high) // 2
        at_door = replace(result, output_archive=bytes(middle))
        low, high = (middle, high) if fitted(at_door, None).output_archive is not None else (low, middle)
    return low - extra - _NEAR, low - extra + _NEAR


async def _whole(grid: Scene, client: GridClient, exec_name: str, size: int) -> JobResult:
    """Run it, and compare what the client has, what HTTP gives, and what the program says."""
    result = await asyncio.wait_for(client.run(grid.job(size, exec_name=exec_name)), 120)
    assert result.status == "COMPLETED", result
    file = grid.folder / f"{result.job_id}.zip"
    assert await client.save_output(result, file)
    archive = await asyncio.to_thread(file.read_bytes)
    content = zipfile.ZipFile(io.BytesIO(archive)).read("out.bin")
    assert len(content) == size
    assert hashlib.sha256(content).hexdigest() == result.stdout.strip()
    digest = hashlib.sha256(archive).hexdigest()
    if result.output_ref is not None:
        assert (result.output_ref.sha256, result.output_ref.size) == (digest, len(archive))
    async with grid.http() as http:
        answer = await http.get(f"/runs/{result.run_id}/artifacts")
        answer.raise_for_status()
        assert hashlib.sha256(answer.content).hexdigest() == digest
        listed = (await http.get(f"/runs/{result.run_id}/artifacts", params={"list": 1})).json()
    assert digest in str(listed)
    return result
