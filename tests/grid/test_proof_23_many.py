"""Many short jobs: what they leave behind does not grow with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyoco_server.ports.nats.link import open_link
from pyoco_server.ports.program_events.port import EventName
from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import GROUP, Scene, run_jobs, scene
from support.waiting import eventually

_FILES_MAX = 64 * 2**20
_FAILING = 10


async def test_many_short_jobs_leave_an_empty_queue_and_small_files(tmp_path: Path) -> None:
    """P23: GRID-185"""
    await many_jobs(tmp_path, jobs=size(200, 20_000))


async def many_jobs(folder: Path, *, jobs: int) -> None:
    with proof("P23", "many short jobs", jobs=jobs) as found:
        async with scene(folder, workers=1, natives=1, gateways=1, WORKER_MAX_PAR="8") as grid:
            (folder / "programs" / "brief.sh").write_text(":\n", encoding="utf-8")
            async with grid.client("clientA", desired=32) as client:
                asks = [grid.job(exec_name="brief") for _ in range(jobs - _FAILING)]
                asks += [grid.job("1", exec_name="failn") for _ in range(_FAILING)]
                results = await run_jobs(client, asks, 2_000)
            ended_badly = [result for result in results.values() if result.status != "COMPLETED"]
            assert len(ended_badly) == _FAILING
            letters: list[dict[str, Any]] = []

            async def are_told() -> bool:
                letters[:] = await grid.letters()
                return len(letters) >= _FAILING

            await eventually(are_told)
            assert len(letters) == _FAILING
            await grid.assert_exact(results, letters=letters, seconds=300)
            await _told_once(grid, jobs)
            await _nothing_grew(grid, found.note, jobs)


async def _told_once(grid: Scene, jobs: int) -> None:
    """One terminal event each: no more, no fewer."""
    async with grid.programs() as programs:
        ends = [(await programs.events.counts(event)).get(GROUP, 0) for event in (EventName.ACK, EventName.DLQ)]
    assert sum(ends) == jobs


async def _nothing_grew(grid: Scene, note: Any, jobs: int) -> None:
    (store,) = grid.nodes[0].store.glob("**/streams")
    used = {
        folder.name: sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        for folder in store.iterdir()
    }
    queue = used["PYOCO_EXEC"]
    note(queue_file_bytes=queue, events_file_bytes=used["PYOCO_EXEC_EVENTS"], records_file_bytes=used["KV_pyoco_runs"])
    assert queue < _FILES_MAX
    link = await open_link(grid.nodes.url, "proof")
    try:
        for name in ("PYOCO_EXEC_EVENTS", "PYOCO_DLQ"):
            info = await link.api(f"STREAM.INFO.{name}", {}, dict[str, Any])
            limits, state = info["config"], info["state"]
            assert limits["max_age"] > 0, name
            assert limits["max_bytes"] < 0 or state["bytes"] <= limits["max_bytes"], name
            note(**{f"{name.lower()}_messages": state["messages"]})
            assert state["messages"] <= 10 * jobs
    finally:
        await link.close()
