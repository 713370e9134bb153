"""Schedules: how late ticks are handled, and what the keeper pays for them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import psutil

from bench.report import heading, percentiles, table
from bench.stack import Stack

_COUNT = 1_000
_MINUTES = 2
_AT_ONCE = 16


async def _create(base: str, when: dict[str, Any], prefix: str) -> None:
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                spread = {name: value + number % 60 if name == "offset" else value for name, value in when.items()}
                body = {"name": f"{prefix}{number}", "what": {"kind": "flow", "flow_name": "noop"}, "when": spread}
                answer = await client.post("/schedules", json=body | {"overlap": "allow"})
                answer.raise_for_status()

        await asyncio.gather(*(one(number) for number in range(_COUNT)))


async def _lateness(base: str, prefix: str) -> list[float]:
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> list[float]:
            async with room:
                name = f"{prefix}{number}"
                items = (await client.get(f"/schedules/{name}/ticks", params={"outcome": "run"})).json()["items"]
                await client.delete(f"/schedules/{name}")
                return [each["handled_at"] - each["tick"] for each in items]

        found = await asyncio.gather(*(one(number) for number in range(_COUNT)))
        return [late for each in found for late in each]


def _measure(running: Stack, keeper: psutil.Process, when: dict[str, Any], prefix: str) -> tuple[str, str, str, str]:
    base = f"http://127.0.0.1:{running.port}"
    asyncio.run(_create(base, when, prefix))
    time.sleep(5)
    before, began = sum(keeper.cpu_times()[:2]), time.monotonic()
    time.sleep(60 * _MINUTES)
    share = (sum(keeper.cpu_times()[:2]) - before) / (time.monotonic() - began)
    late = asyncio.run(_lateness(base, prefix))
    half, _, most = percentiles(late)
    return f"{len(late):,}", f"{half * 1000:,.0f} ms", f"{most * 1000:,.0f} ms", f"{share:.1%}"


def main(running: Stack) -> None:
    heading(f"{_COUNT:,} schedules that tick each minute, for {_MINUTES} minutes, with one keeper")
    with running.keeping() as keeper:
        spread = _measure(running, keeper, {"every": 60, "offset": 0}, "spread")
        at_once = _measure(running, keeper, {"cron": "* * * * *"}, "once")
    header = ("", "ticks", "late, p50", "late, p99", "of one CPU")
    table([header, ("spread over the minute", *spread), ("all in the same second", *at_once)])
