"""The JetStream in memory answers as nats-server does: the same seeded operations on both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyoco_server.ports.nats.link import Link, open_link
from pyoco_server.ports.nats.memory.server import drop_server
from support.jetstream_steps import CONSUMERS, Kind, Player, Step, steps
from support.waiting import eventually

_STEPS = 120
_NO_ACKS = {"ack_policy": "none"}
KINDS = [
    Kind("limits", {"allow_msg_ttl": True}, ({"max_deliver": 2}, {"filter_subject": "c.>"})),
    Kind("work", {"retention": "workqueue"}, ({"filter_subject": "a", "max_deliver": 3}, {"filter_subject": "c.>"})),
    Kind("bucket", {"max_msgs_per_subject": 1, "discard": "new"}, ({}, {"filter_subject": "*"})),
    Kind("objects", {"allow_rollup_hdrs": True}, (_NO_ACKS, {**_NO_ACKS, "filter_subject": "c.*"})),
    Kind("full", {"max_msgs": 8, "discard": "new"}, ({"max_deliver": 1}, {"deliver_policy": "new"})),
    Kind("ring", {"max_bytes": 1200, "max_msg_size": 200}, ({"max_deliver": 2}, {"deliver_policy": "new"})),
]


@pytest.fixture
async def memory() -> AsyncIterator[Link]:
    url = "memory://agrees"
    link = await open_link(url, "tests")
    yield link
    await link.close()
    drop_server(url)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("seed", range(4))
async def test_both_servers_answer_alike(link: Link, memory: Link, kind: Kind, seed: int) -> None:
    real, own = Player(link, "AGREES"), Player(memory, "AGREES")
    played: list[Step] = []
    script: Any = steps(kind, seed, _STEPS)
    try:
        step = next(script)
        while True:
            played.append(step)
            story = "\n".join(map(str, played[-25:]))
            expected, found = await real.play(step), await own.play(step)
            assert found == expected, story
            await _settle(real, own, story)
            step = script.send(len(real.replies))
    except StopIteration:
        pass
    finally:
        await real.api("STREAM.DELETE.{}")


async def _settle(real: Player, own: Player, story: str) -> None:
    """A server tells its consumers of a change a moment after it has answered."""

    async def state(player: Player) -> list[object]:
        seen: list[object] = [await player.stream_info(">")]
        return seen + [await player.api(f"CONSUMER.INFO.{{}}.{name}") for name in CONSUMERS]

    wanted = await state(own)
    found: list[object] = []

    async def agrees() -> bool:
        found[:] = await state(real)
        return found == wanted

    if not await agrees():
        try:
            await eventually(agrees, 1)
        except AssertionError:
            assert wanted == found, story
