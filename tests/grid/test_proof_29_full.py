"""A full queue refuses, loses nothing, and takes more when there is room."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.grid.peers import ClientPeer
from support.proofs.report import proof
from support.proofs.sizes import full_only
from support.proofs.stage import scene, submit_all
from support.waiting import eventually

_ROOM = 50


@full_only  # its quick form: test_a_full_queue_refuses_and_goes_on_when_there_is_room
async def test_a_full_queue_refuses_and_every_job_is_run_in_the_end(tmp_path: Path) -> None:
    """P29: GRID-64"""
    await full_queue(tmp_path, jobs=300)


async def full_queue(folder: Path, *, jobs: int) -> None:
    with proof("P29", "a full queue", jobs=jobs, room=_ROOM) as found:
        settings = {"EXEC_QUEUE_MAX_JOBS": str(_ROOM)}
        async with (
            scene(folder, gateways=1, env=settings) as grid,
            grid.client("clientA", desired=16) as client,
            await ClientPeer.connect(grid.doors[0].port) as peer,
            grid.http() as http,
            grid.programs() as programs,
        ):
            futures = await submit_all(client, [grid.job() for _ in range(jobs)])

            async def is_full() -> bool:
                return (await programs.queue.totals()).messages == _ROOM

            await eventually(is_full, 60)
            await peer.hello("clientA")
            await peer.submit(peer.request("marked"))
            _, refusal = await peer.error("QUEUE_FULL")
            assert (refusal.retry, refusal.retry_after_ms) == (True, 1_000)
            over_http = grid.job()
            answer = await grid.post(http, over_http, "clientB")
            assert (answer.status_code, answer.json()["code"]) == (429, "QUEUE_FULL")
            assert answer.headers["retry-after"] == "1"
            assert not any(future.done() for future in futures.values())
            grid.start_worker()

            async def is_accepted() -> bool:
                return (await grid.post(http, over_http, "clientB")).status_code == 200

            await eventually(is_accepted, 120)
            async with asyncio.timeout(600):
                results = await asyncio.gather(*futures.values())
            assert {result.status for result in results} == {"COMPLETED"}
            sent = client.stats().groups[0].sent

            async def is_over() -> bool:
                return over_http.job_id in grid.marks.starts() and (await programs.queue.totals()).messages == 0

            await eventually(is_over, 60)
            await grid.assert_exact([*futures, over_http.job_id])
            assert set(grid.marks.starts().values()) == {1}
            assert len(grid.marks.starts()) == jobs + 1
            found.note(submissions=sent, starts=jobs + 1)
