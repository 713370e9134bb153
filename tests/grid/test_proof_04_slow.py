"""Connections that stop in the middle of a frame, or crawl, beside a client that works."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from pyoco_server.core.frames.codec import Type
from pyoco_server.core.frames.messages import HelloClient
from support.grid.peers import Peer
from support.proofs.report import proof
from support.proofs.sizes import size
from support.proofs.stage import Scene, scene
from support.timers import timers
from support.waiting import eventually

#: The beginning of a frame of 2,000 bytes.
_HEAD = (2_000).to_bytes(4, "little") + b"\x0c"


async def test_slow_connections_are_closed_in_time_and_delay_nobody(tmp_path: Path) -> None:
    """P4: GRID-34, GRID-33"""
    frame_seconds = size(3.0, 30.0)
    await slow_connections(
        tmp_path,
        halves=size(30, 200),
        crawlers=size(8, 50),
        byte_seconds=size(0.1, 1.0),
        frame_seconds=frame_seconds,
        jobs=size(30, 300),
    )


async def slow_connections(
    folder: Path, *, halves: int, crawlers: int, byte_seconds: float, frame_seconds: float, jobs: int
) -> None:
    with proof("P4", "slow connections", halves=halves, crawlers=crawlers, jobs=jobs) as found:
        settings = {"EXEC_MAX_CONNS_PER_IP": "1000", **timers(exec_frame_sec=frame_seconds)}
        async with scene(folder, workers=1, env=settings) as grid, grid.client("good", desired=8) as client:
            begun = time.monotonic()
            lives = asyncio.gather(
                *(_half(grid, has_said_hello=bool(number % 2)) for number in range(halves)),
                *(_crawl(grid, byte_seconds) for _ in range(crawlers)),
            )
            futures, asked_at = {}, {}
            for number in range(jobs):
                ask = grid.job()
                asked_at[ask.job_id] = time.monotonic()
                futures[ask.job_id] = await client.submit(ask)
                await asyncio.sleep(max(0.0, begun + frame_seconds * number / jobs - time.monotonic()))
            results = [await future for future in futures.values()]
            assert {result.status for result in results} == {"COMPLETED"}
            waits = [client.accepted_at[job_id] - at for job_id, at in asked_at.items()]
            ends = await lives
            quick = sum(each <= 1.0 for each in waits) / len(waits)
            found.note(
                slowest_end=round(max(ends), 1),
                soonest_end=round(min(ends), 1),
                quick_submits=round(quick, 3),
                slowest_submit=round(max(waits), 3),
            )
            assert max(ends) <= frame_seconds + 60  # a crawler alone would need minutes
            assert min(ends) >= frame_seconds - 0.5
            assert quick >= size(0.5, 0.95)  # when a busy machine stands still, all that are asked for wait
            await eventually(lambda: len(_reasons(grid)) >= halves + crawlers)
            assert _reasons(grid) == ["frame_timeout"] * (halves + crawlers)
            assert grid.doors[0].is_alive
            await grid.assert_exact(futures)


def _reasons(grid: Scene) -> list[str]:
    return [line["reason"] for line in grid.doors[0].log if line["message"] == "a connection ended"]


async def _half(grid: Scene, *, has_said_hello: bool) -> float:
    """Some bytes of a frame and then nothing; how long it was let stay."""
    async with await Peer.connect(grid.doors[0].port) as peer:
        if has_said_hello:
            await peer.send(Type.HELLO_CLIENT, HelloClient(client_id="slow").to_payload())
            await peer.next(Type.HELLO_ACK)
        began = time.monotonic()
        await peer.raw(_HEAD)
        assert await peer.ended(120) == []
        return time.monotonic() - began


async def _crawl(grid: Scene, every: float) -> float:
    """A byte, and another one, as long as it is let."""
    async with await Peer.connect(grid.doors[0].port) as peer:
        began = time.monotonic()
        ending = asyncio.create_task(peer.ended(120))
        for byte in _HEAD + bytes(1_995):
            if ending.done():
                break
            with contextlib.suppress(ConnectionError):
                await peer.raw(bytes([byte]))
            await asyncio.wait({ending}, timeout=every)
        assert await ending == []
        return time.monotonic() - began
