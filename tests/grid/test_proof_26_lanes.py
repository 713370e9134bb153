"""A worker over TCP and one at the queue give the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyoco_server.grid_client import GridClient, JobRequest
from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import Scene, run_jobs, scene

#: Writes files, below directories too, to both outputs, and ends as it is told; "9" is a signal.
_MIXED = """\
mkdir -p below/further
seq 1 "$1" > below/further/numbers.txt
[ -f in.txt ] && cp in.txt out.txt
printf 'out %s \\377\\n' "$1"
echo "err $1" >&2
[ "$2" = 9 ] && kill -9 $$
exit "$2"
"""


async def test_both_kinds_of_workers_give_the_same_results(tmp_path: Path) -> None:
    """P26: GRID-116"""
    await on_both_lanes(tmp_path, jobs=size(10, 50))


async def on_both_lanes(folder: Path, *, jobs: int) -> None:
    with proof("P26", "both kinds of workers", jobs=jobs) as found:
        async with (
            scene(folder, EXEC_STDIO_MAX="4096") as grid,
            grid.client("clientA") as client,
        ):
            (folder / "programs" / "mixed.sh").write_text(_MIXED, encoding="utf-8")
            worker = grid.start_worker()
            over_tcp = await _results(grid, client, jobs)
            assert worker.stop() == 0
            native = grid.start_native()
            at_the_queue = await _results(grid, client, jobs)
            assert native.stop() == 0
            assert at_the_queue == over_tcp
            kinds = sorted({(result["status"], result["error_code"] or "") for result in over_tcp})
            found.note(kinds=[" ".join(kind).strip() for kind in kinds])
            assert len(kinds) == 5


async def _results(grid: Scene, client: GridClient, jobs: int) -> list[dict[str, Any]]:
    """All that a caller is told and that does not differ from job to job."""
    asks = [_ask(grid, number) for number in range(jobs)]
    results = await run_jobs(client, asks, 300)
    await grid.assert_exact(results)
    kept = ("status", "exit_code", "error_code", "error", "stdout", "stderr", "stdout_truncated", "stderr_truncated")
    return [
        {name: getattr(result, name) for name in (*kept, "output_archive", "attempt")} for result in results.values()
    ]


def _ask(grid: Scene, number: int) -> JobRequest:
    kind = number % 10
    if kind < 3:
        return grid.job(number, 0, exec_name="mixed", files={"in.txt": b"x" * 2_000 * number})
    if kind < 5:
        return grid.job("a b", number, exec_name="calcA")
    if kind == 5:
        return grid.job(exec_name="nosuch")
    if kind == 6:
        return grid.job(number, 9, exec_name="mixed")
    if kind == 7:
        return grid.job(600, timeout_sec=1)  # it says nothing before, however long it takes to begin
    return grid.job(number, kind, exec_name="mixed", files={"データ.csv": b"1,2\n", "in.txt": bytes(range(256))})
