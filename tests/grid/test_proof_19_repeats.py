"""One job, asked for a hundred times at once."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import JobRequest, JobResult, SubmitAck
from pyoco_server.core.programs.names import run_id_of
from support.grid.peers import ClientPeer
from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import GROUP, Scene, scene
from support.waiting import eventually

_CLIENT = "clientA"
_CONNECTIONS, _EACH = 5, 5


@full_only  # its quick forms are in tests/doors: one door; and the same AssignJob ten times at a worker
async def test_a_hundred_submissions_over_three_doors_and_http_are_one_start_and_one_result(tmp_path: Path) -> None:
    """P19: GRID-50, GRID-51, GRID-141"""
    with proof("P19", "a hundred repeats", doors=3, submissions=100) as found:
        async with scene(tmp_path, doors=3, workers=1, natives=1, gateways=1) as grid:
            job = JobRequest(job_id=str(uuid.uuid4()), client_id=_CLIENT, exec_name="marked", args=("1",))
            first, results = await _ask_everywhere(grid, job)
            assert first == 1
            assert len({(result.status, result.attempt, result.stdout, result.run_id) for result in results}) == 1
            assert results[0].status == "COMPLETED"
            assert dict(grid.marks.starts()) == {job.job_id: 1}
            await grid.assert_exact([job.job_id])
            found.note(starts=1, callers=len(results))


async def _ask_everywhere(grid: Scene, job: JobRequest) -> tuple[int, list[JobResult]]:
    """All at once. How many were told that theirs is the first; and the result that each connection got."""
    async with contextlib.AsyncExitStack() as stack:
        peers = []
        for door in grid.doors:
            for _ in range(_CONNECTIONS):
                peer = await stack.enter_async_context(await ClientPeer.connect(door.port))
                await peer.hello(_CLIENT)
                peers.append(peer)
        http = await stack.enter_async_context(grid.http())
        over_tcp = [peer.submit(job) for _ in range(_EACH) for peer in peers]
        over_http = [grid.post(http, job, _CLIENT) for _ in range(_CONNECTIONS * _EACH)]
        answers, _ = await asyncio.gather(asyncio.gather(*over_http), asyncio.gather(*over_tcp))
        acks = [SubmitAck.read((await peer.next_of(Type.SUBMIT_ACK)).payload) for peer in peers for _ in range(_EACH)]
        assert {answer.status_code for answer in answers} == {200}
        said = [ack.duplicate for ack in acks] + [answer.json()["duplicate"] for answer in answers]
        results = [await peer.result() for peer in peers]
        run_id = run_id_of(job.job_id, GROUP)

        async def has_ended() -> bool:
            return bool((await http.get(f"/runs/{run_id}")).json()["status"] == "COMPLETED")

        await eventually(has_ended)
        for peer in peers:
            assert await peer.is_silent(0.05)
        return said.count(False), results
