"""The newest revision, when the server's last message is no longer there."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from contracts.runs import NOW, a_run, stored
from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.flow_moves import beat
from pyoco_server.core.outcome import NOTHING_YET
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.runs.jetstream import JetStreamRuns
from pyoco_server.ports.runs.port import Stored


def open_runs(link: Link, config: NatsBackendConfig) -> JetStreamRuns:
    return JetStreamRuns(link, config.runs_kv_bucket, 100_000)


async def erase(link: Link, config: NatsBackendConfig, made: Stored) -> None:
    """As the server does with the mark of an expired run: the message goes, its number stays the last."""
    bucket = config.runs_kv_bucket
    await link.api(f"STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.{made.run.run_id}"}, dict[str, Any])


async def test_a_last_message_that_is_gone_is_not_the_newest(link: Link, prepared: NatsBackendConfig) -> None:
    """A list can never show it: whoever waited for it would wait for ever"""
    runs = open_runs(link, prepared)
    first, second = await stored(runs), await stored(runs)
    await erase(link, prepared, second)
    for _ in range(3):
        assert await runs.newest() == first.revision
    third = await stored(runs)
    assert await runs.newest() == third.revision
    await erase(link, prepared, third)
    assert await runs.newest() == first.revision


async def test_a_bucket_with_nothing_left_has_no_newest(link: Link, prepared: NatsBackendConfig) -> None:
    runs = open_runs(link, prepared)
    only = await stored(runs)
    await erase(link, prepared, only)
    assert await runs.newest() == 0


async def test_it_only_grows_while_runs_are_written_over(
    link: Link, prepared: NatsBackendConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last message is replaced between two questions, again and again, and the dear question is never asked"""
    runs = open_runs(link, prepared)

    async def dear() -> int:
        raise AssertionError("the server looked through all keys")

    monkeypatch.setattr(runs._bucket, "last_revision", dear)
    held = [await stored(runs, a_run()) for _ in range(4)]

    async def write(made: Stored) -> None:
        while True:
            written = await runs.replace(beat(made.run, NOTHING_YET, NOW), made.revision)
            assert isinstance(written, Stored)
            made = written

    writing = [asyncio.create_task(write(made)) for made in held]
    try:
        seen = [await runs.newest() for _ in range(300)]
    finally:
        for task in writing:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    assert seen == sorted(seen)
    assert seen[-1] > seen[0] >= held[-1].revision
