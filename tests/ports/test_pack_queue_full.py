"""Whether priced runs can be queued is known before somebody submits one: also while the disk of NATS is full."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import PricedConfig
from pyoco_server.errors import DependencyUnavailable
from pyoco_server.ports.nats.link import Link, Patience, open_link
from pyoco_server.ports.nats.resources import PRICED_BUCKET
from pyoco_server.ports.pack_queue import trial
from pyoco_server.ports.pack_queue.jetstream import JetStreamPackQueue
from pyoco_server.ports.store_state import StoreState
from support.configured_nats import configured_nats
from support.full_disks import jam
from support.servers import NatsServer
from support.waiting import eventually

PRICED = PricedConfig(pack_stream="PACKS", pack_subject="packs.runs")
QUICK = Patience(unanswered_seconds=1.0, answer_seconds=0.4)


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Link, JetStreamPackQueue]]:
    link = await open_link(url, "tests")
    queue = JetStreamPackQueue(link, PRICED, 1)
    try:
        await queue.start()
        link.patience = QUICK
        yield link, queue
    finally:
        await queue.close()
        await link.close()


async def takes(queue: JetStreamPackQueue) -> bool:
    try:
        await queue.probe()
    except DependencyUnavailable:
        return False
    return True


async def stored(link: Link, stream: str) -> int:
    info = await link.api(f"STREAM.INFO.{stream}", {}, dict[str, Any])
    return int(info["state"]["last_seq"])


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look writes."""
    monkeypatch.setattr(trial, "_EVERY_SECONDS", 0.0)


@pytest.mark.usefixtures("anew")
async def test_a_server_at_its_limit_takes_no_priced_run_and_takes_them_again_when_there_is_room(
    tmp_path: Path,
) -> None:
    """SAFE-13: nobody has to submit one first, and no message is put into the queue for it"""
    with configured_nats(tmp_path, jetstream="max_file_store: 200KB") as nats:
        async with opened(nats.url) as (link, queue):
            assert await takes(queue)
            config = {"name": "FILL", "subjects": ["fill"]}
            await link.api("STREAM.CREATE.FILL", config, dict[str, Any])
            with contextlib.suppress(Exception):
                while True:
                    await link.store("fill", bytes(10_000))
            await eventually(lambda: _is_refused(queue))
            await link.api("STREAM.PURGE.FILL", {}, dict[str, Any])
            await eventually(lambda: takes(queue))
            assert await stored(link, "PACKS") == 0


async def _is_refused(queue: JetStreamPackQueue) -> bool:
    return not await takes(queue)


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(
    ("stream", "subject"),
    [(f"KV_{PRICED_BUCKET}", f"$KV.{PRICED_BUCKET}.fill"), ("PACKS", "packs.runs")],
    ids=["where it is tried", "the queue itself"],
)
async def test_a_disk_that_was_full_is_noticed(tmp_path: Path, stream: str, subject: str) -> None:
    """SAFE-13: by a write of its own, or by the message of a run that was not stored"""
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with opened(server.url) as (link, queue):
            assert await takes(queue)
            await jam(server.url, tmp_path / "data", stream, subject)
            if stream == "PACKS":
                assert await takes(queue), "this process has not heard of it"
                with pytest.raises(DependencyUnavailable):
                    await queue.send(b"{}", "one")
                assert link.store_state_of("PACKS") is StoreState.STUCK
                assert link.store_state_of("PACKS_DLQ") is StoreState.TAKES
            assert not await takes(queue)
            server.restart()
            await eventually(lambda: takes(queue))
    finally:
        server.kill()


async def test_however_many_ask_one_write_is_made_every_two_seconds(link: Link) -> None:
    """SAFE-13: nobody needs a key to ask"""
    queue = JetStreamPackQueue(link, PRICED, 1)
    try:
        await queue.start()
        before = await stored(link, f"KV_{PRICED_BUCKET}")
        await asyncio.gather(*(queue.probe() for _ in range(50)))
        for _ in range(20):
            await queue.probe()
        assert await stored(link, f"KV_{PRICED_BUCKET}") == before + 1
    finally:
        await queue.close()
        for name in ("PACKS", "PACKS_DLQ"):
            await link.api(f"STREAM.DELETE.{name}", {}, dict[str, Any])


@pytest.mark.usefixtures("anew")
async def test_whoever_gives_up_does_not_give_up_for_the_others(link: Link) -> None:
    queue = JetStreamPackQueue(link, PRICED, 1)
    try:
        await queue.start()
        first, *others = [asyncio.create_task(queue._trial.check()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)
    finally:
        await queue.close()
        for name in ("PACKS", "PACKS_DLQ"):
            await link.api(f"STREAM.DELETE.{name}", {}, dict[str, Any])
