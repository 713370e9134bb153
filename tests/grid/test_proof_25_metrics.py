"""What the metrics say after a known set of jobs."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import Counter
from pathlib import Path

import httpx

from pyoco_server.core.programs.percentile import p95
from pyoco_server.doors.cli.grid.stage import HOST
from support.grid.peers import WorkerPeer
from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import GROUP, Scene, run_jobs, scene, submit_all
from support.servers import free_port
from support.waiting import eventually

_LINE = re.compile(r"(\w+)(?:\{([^}]*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


async def test_after_a_known_set_of_jobs_the_metrics_are_exact(tmp_path: Path) -> None:
    """P25: GRID-171"""
    await exact_metrics(tmp_path, jobs=size(40, 200), failures=size(4, 10), dead=2)


async def exact_metrics(folder: Path, *, jobs: int, failures: int, dead: int) -> None:
    with proof("P25", "metrics", jobs=jobs, failures=failures, dead_letters=dead) as found:
        settings = {
            "EXEC_ACK_TIMEOUT_SEC": size("5", "20"),  # a busy machine must not miss a sign of life
            "EXEC_MAX_ATTEMPTS": "2",
            "WORKER_MAX_PAR": "8",
            "PYOCO_DLQ_PUBLISH_EXECUTION_ERROR": "false",
        }
        async with contextlib.AsyncExitStack() as stack:
            grid = await stack.enter_async_context(scene(folder, doors=0, gateways=1, env=settings))
            own_port = free_port()
            door = grid.open_door("--metrics-port", own_port)
            client = await stack.enter_async_context(grid.client("anna", desired=8))
            silent = await stack.enter_async_context(await WorkerPeer.connect(door.port))
            for pattern in ("job.assign.marked", "job.assign.failn"):
                grid.start_worker(pattern)
            times = [f"{found.chance.choice([0.01, 0.15, 0.3, 0.6]):.2f}" for _ in range(jobs - failures - dead)]
            asks = [grid.job(seconds) for seconds in times]
            asks += [grid.job("3", exec_name="failn") for _ in range(failures)]
            # Nobody ever answers for these: two attempts each, one of them put back, then a dead letter.
            await silent.hello("silent", patterns=["job.assign.unanswered"], credit=100)
            asks += [grid.job(exec_name="unanswered") for _ in range(dead)]
            results = await run_jobs(client, asks, 300)
            again = await submit_all(client, asks[:3])
            await asyncio.gather(*again.values())
            ended = Counter((result.exec_name, str(result.status)) for result in results.values())
            assert ended == {
                ("marked", "COMPLETED"): jobs - failures - dead,
                ("failn", "FAILED"): failures,
                ("unanswered", "FAILED"): dead,
            }
            runs = await grid.assert_exact(results)
            seconds = {
                name: [run.program.run_seconds for run in runs if run.program and run.program.exec_name == name]
                for name in ("marked", "failn")
            }
            metrics = await _settled(grid, jobs)
            assert metrics.of("jobs_total", "exec", "status") == {key: float(n) for key, n in ended.items()}
            assert metrics.of("retries_total", "exec", "reason") == {("unanswered", "ack_timeout"): float(dead)}
            assert metrics.of("dlq_total", "exec", "reason") == {("unanswered", "max_attempts"): float(dead)}
            assert metrics.only("dlq_messages") == dead
            assert metrics.of("client_cap", "client") == {("anna",): 8.0}
            for name in ("queued", "inflight", "client_inflight"):
                assert not any(metrics.of(name, "group").values())
            _check_times(metrics, seconds)
            # What a door counts itself is of this door alone, which did all of it.
            own = await _read(f"http://{HOST}:{own_port}/metrics")
            for name, label in (("jobs_total", "status"), ("retries_total", "reason"), ("dlq_total", "reason")):
                assert own.of(name, "exec", label) == metrics.of(name, "exec", label)
            _check_times(own, seconds)
            assert own.only("duplicate_submits_total") == 3
            assert own.only("stale_results_total") == 0
            assert own.of("connections", "role") == {("client",): 1.0, ("worker",): 3.0}
            assert own.of("credits", "worker")["silent",] == 100 - 2 * dead
            found.note(p95={name: metrics.of("run_seconds_p95", "exec")[name,] for name in seconds})


def _check_times(metrics: Metrics, seconds: dict[str, list[float | None]]) -> None:
    """Every bucket, count and sum; and the 95th percentile, which is that of the records."""
    for name, values in seconds.items():
        known = [value for value in values if value is not None]
        assert len(known) == len(values)
        buckets = {bound: n for (of, bound), n in metrics.of("run_seconds_bucket", "exec", "le").items() if of == name}
        assert {float(bound): n for bound, n in buckets.items() if bound != "+Inf"} == {
            float(bound): float(sum(value <= bound for value in known)) for bound in _BOUNDS
        }
        assert buckets["+Inf"] == metrics.of("run_seconds_count", "exec")[name,] == len(known)
        assert abs(metrics.of("run_seconds_sum", "exec")[name,] - sum(known)) < 0.001 * len(known)
        expected = p95(known)
        assert expected is not None
        assert abs(metrics.of("run_seconds_p95", "exec")[name,] - expected) < 0.001


class Metrics:
    """Prometheus text, of this group."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, list[tuple[dict[str, str], float]]] = {}
        for line in text.splitlines():
            found = _LINE.fullmatch(line)
            if found is not None:
                labels = dict(_LABEL.findall(found[2] or ""))
                if labels.get("group", GROUP) == GROUP:
                    self._values.setdefault(found[1], []).append((labels, float(found[3])))

    def of(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        found = self._values.get(f"pyoco_exec_{name}", [])
        return {tuple(own[label] for label in labels): value for own, value in found}

    def only(self, name: str) -> float:
        ((_, value),) = self._values[f"pyoco_exec_{name}"]
        return value


async def _read(url: str) -> Metrics:
    async with httpx.AsyncClient(timeout=60) as http:
        return Metrics((await http.get(url)).text)


async def _settled(grid: Scene, jobs: int) -> Metrics:
    """The gateway follows the records; a moment later it has seen them all."""
    metrics = Metrics("")

    async def is_settled() -> bool:
        nonlocal metrics
        metrics = await _read(f"http://{grid.gateways[0].address}/metrics")
        return sum(metrics.of("jobs_total", "exec", "status").values()) == jobs

    await eventually(is_settled, 60)
    return metrics
