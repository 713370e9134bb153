"""Accepted runs per second, beside a FastAPI app that stores nothing and beside the two NATS writes alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable

import uvloop

from bench.report import heading, median, spread, table
from bench.stack import Stack, serve
from pyoco_server.actions.submit import submit
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.run import Caller, Submission
from pyoco_server.wiring import backend as wiring

_BODY = json.dumps({"flow_name": "noop", "params": {"name": "bench"}}).encode()
_SECONDS = 3.0
_ROUNDS = 3
_ASK = Submission(flow_name="noop", tag="default", tags=("default",), params={"name": "bench"})


def load(port: int, connections: int, path: str = "/runs", body: bytes = _BODY) -> float:
    command = [sys.executable, "-m", "bench.load", "127.0.0.1", str(port), path, str(connections), str(_SECONDS)]
    result = json.loads(subprocess.run(command, input=body, capture_output=True, check=True, timeout=60).stdout)
    assert set(result["statuses"]) == {"200"}, result
    return float(result["per_second"])


async def _raw(nats_url: str, connections: int) -> float:
    """Record and job, many at once, without HTTP: what the two writes alone allow from one Python process."""
    done = 0
    async with wiring.open_backend(NatsBackendConfig(nats_url=nats_url), "bench") as backend:
        end = time.perf_counter() + _SECONDS

        async def one() -> None:
            nonlocal done
            while time.perf_counter() < end:
                await submit(backend, Caller(), _ASK)
                done += 1

        await asyncio.gather(*(one() for _ in range(connections)))
    return done / _SECONDS


def main(stack: Stack) -> None:
    heading("submit: accepted runs per second (record and job durable), higher is better")
    with serve("bench.bare:app") as bare:
        measures: dict[str, Callable[[int], float]] = {
            "bare FastAPI POST, stores nothing": lambda n: load(bare, n),
            "POST /runs": lambda n: load(stack.port, n),
            "record + job, no HTTP": lambda n: uvloop.run(_raw(stack.nats_url, n)),
        }
        found: dict[tuple[str, int], list[float]] = {}
        for _ in range(_ROUNDS):  # interleaved, so that a slow moment hits everybody
            for connections in (1, 32):
                for name, measure in measures.items():
                    found.setdefault((name, connections), []).append(measure(connections))
    rows = [("", "connections", "per second", "spread", "ratio to bare")]
    for (name, connections), values in sorted(found.items(), key=lambda item: item[0][1]):
        bare_value = median(found["bare FastAPI POST, stores nothing", connections])
        rows.append(
            (name, str(connections), f"{median(values):,.0f}", spread(values), f"{median(values) / bare_value:.2f}")
        )
    table(rows)
