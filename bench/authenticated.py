"""Requests per second with API keys on beside the same with everything open, and what the look at a key costs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import uvloop

from bench.report import heading, median, spread, table
from bench.stack import Stack, stack
from pyoco_server.actions.authenticate import authenticate
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import make_key
from pyoco_server.errors import KeyRefused
from pyoco_server.wiring import backend as wiring
from pyoco_server.wiring.operating import open_keys

_BODY = json.dumps({"flow_name": "noop", "params": {"name": "bench"}}).encode()
_CONNECTIONS = 32
_SECONDS = 1.0
_ROUNDS = 11
_CHECKS = 50_000


async def _key(nats_url: str) -> str:
    async with open_keys(NatsBackendConfig(nats_url=nats_url)) as keys:
        plain, record = make_key("bench", "", time.time(), secrets.token_hex, secrets.token_urlsafe)
        assert await keys.add(record)
        return plain


async def _check_microseconds(nats_url: str, good: str) -> list[tuple[str, str]]:
    """The whole check as the entrance does it: find the record, compare the digest, look at the dates."""
    bad = good[:-1] + ("x" if good[-1] != "x" else "y")
    rows = []
    with tempfile.TemporaryDirectory() as home:
        config = NatsBackendConfig(nats_url=nats_url, http_auth_mode="api_key", data_dir=home)
        async with wiring.open_gateway_backend(config) as backend:

            async def one(key: str) -> None:
                with contextlib.suppress(KeyRefused):
                    await authenticate(backend, key)

            for name, key in (("a good key", good), ("a wrong secret", bad), ("no key of ours", "nonsense")):
                took = []
                for _ in range(5):
                    began = time.perf_counter()
                    for _ in range(_CHECKS // 5):
                        await one(key)
                    took.append((time.perf_counter() - began) / (_CHECKS // 5))
                    await asyncio.sleep(0)  # the watch that keeps the keys true has its turn
                rows.append((name, f"{median(took) * 1e6:.1f}"))
    return rows


@dataclass(frozen=True)
class Measured:
    per_second: float
    #: What the gateway's processor worked for each request: true on a busy machine, too.
    microseconds: float


def _load(running: Stack, method: str, path: str, body: bytes, headers: Sequence[str]) -> Measured:
    gateway = running.gateway()
    before = sum(gateway.cpu_times()[:2])
    address = ["127.0.0.1", str(running.port), path, str(_CONNECTIONS), str(_SECONDS)]
    command = [sys.executable, "-m", "bench.load", *address, method, *headers]
    ended = subprocess.run(command, input=body, capture_output=True, check=True, timeout=60)
    result = json.loads(ended.stdout)
    assert set(result["statuses"]) == {"200"}, result
    worked = sum(gateway.cpu_times()[:2]) - before
    return Measured(float(result["per_second"]), worked / result["count"] * 1e6)


def _measure(sides: dict[str, tuple[Stack, tuple[str, ...]]]) -> dict[tuple[str, str], list[Measured]]:
    asks: dict[tuple[str, str], tuple[Stack, str, str, bytes, tuple[str, ...]]] = {}
    for side, (running, headers) in sides.items():
        sent = dict(header.split(": ", 1) for header in headers)
        answer = httpx.post(f"http://127.0.0.1:{running.port}/runs", content=_BODY, headers=sent)
        run_id = answer.raise_for_status().json()["run_id"]
        asks["GET /runs/{id}", side] = (running, "GET", f"/runs/{run_id}", b"", headers)
        asks["POST /runs", side] = (running, "POST", "/runs", _BODY, headers)
    found: dict[tuple[str, str], list[Measured]] = {name: [] for name in asks}
    for turn in range(_ROUNDS):  # interleaved, and each goes first as often: a slow moment hits everybody
        for name, ask in sorted(asks.items(), reverse=bool(turn % 2)):
            found[name].append(_load(*ask))
    return found


def main(opened: Stack) -> None:
    heading("keys: requests per second with and without API keys, 32 connections, higher is better")
    with stack(PYOCO_HTTP_AUTH_MODE="api_key") as closed:
        key = uvloop.run(_key(closed.nats_url))
        found = _measure({"open": (opened, ()), "with keys": (closed, (f"X-API-Key: {key}",))})
        rows = [("", "per second", "spread", "ratio to open", "gateway CPU µs", "its ratio")]
        for (what, side), mine in sorted(found.items()):
            pairs = list(zip(mine, found[what, "open"], strict=True))
            rates = [each.per_second for each in mine]
            rows.append(
                (
                    f"{what}, {side}",
                    f"{median(rates):,.0f}",
                    spread(rates),
                    f"{median([one.per_second / other.per_second for one, other in pairs]):.2f}",
                    f"{median([each.microseconds for each in mine]):.0f}",
                    f"{median([other.microseconds / one.microseconds for one, other in pairs]):.2f}",
                )
            )
        table(rows)
        heading("keys: one check at the entrance, microseconds, lower is better")
        table([("", "microseconds"), *uvloop.run(_check_microseconds(closed.nats_url, key))])
