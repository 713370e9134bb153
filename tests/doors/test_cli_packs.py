"""`pyoco-server-admin packs`: dead letters of priced runs, in JetStream and in SQS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig, priced_from_env
from pyoco_server.core.priced.message import PackMessage, encode
from pyoco_server.doors.cli.admin import cli
from pyoco_server.doors.cli.shell import outcome
from pyoco_server.ports.pack_queue.port import PackQueue
from pyoco_server.wiring.priced import open_pack_queue
from support.priced.ledgers import an_id
from support.priced.servers import Aws
from support.servers import NatsServer
from support.timers import timers

pytestmark = pytest.mark.usefixtures("place")


@pytest.fixture(params=["jetstream", "sqs"])
def place(
    request: pytest.FixtureRequest, own_nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> NatsBackendConfig:
    monkeypatch.setenv("PYOCO_LOAD_DOTENV", "0")
    monkeypatch.setenv("PYOCO_NATS_URL", own_nats_server.url)
    for name, value in timers(priced_heartbeat_sec=1, priced_lease_ttl_sec=2).items():
        monkeypatch.setenv(name, value)
    if request.param == "sqs":
        aws: Aws = request.getfixturevalue("aws")
        for name, value in aws.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYOCO_PACK_QUEUE_URL", "sqs://dpp-runs")
    return NatsBackendConfig.from_env()


def with_queue(config: NatsBackendConfig, work: Callable[[PackQueue], Any]) -> Any:
    async def all_of_it() -> Any:
        async with open_pack_queue(config, *priced_from_env()) as queue:
            return await work(queue)

    return asyncio.run(all_of_it())


async def bury(queue: PackQueue, *bodies: bytes) -> None:
    """Handed out three times and never acknowledged."""
    for body in bodies:
        await queue.send(body, an_id())
    async with asyncio.timeout(120):
        while (await queue.depth())[1] < len(bodies):
            for delivery in await queue.receive(10, 1):
                await queue.nack(delivery, 0)


def admin(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = outcome(cli, "pyoco-server-admin", arguments)
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else None, said.err


def test_letters_are_listed_and_sent_again(place: NatsBackendConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """PRICED-109"""
    message = PackMessage(run_id=an_id(), tenant_id="acme", pack_type="decision", enqueued_at="2026-02-13T00:00:00Z")
    with_queue(place, lambda queue: bury(queue, encode(message), b"rubbish"))
    code, listed, _ = admin(capsys, "packs", "letters")
    assert code == 0
    assert sorted((each["run_id"], each["readable"]) for each in listed if each["run_id"]) == [(message.run_id, True)]
    assert [each["bytes"] for each in listed if not each["readable"]] == [7]

    async def sent_again() -> dict[str, int]:
        async with asyncio.timeout(120):
            while True:
                found: dict[str, int] = await asyncio.to_thread(lambda: admin(capsys, "packs", "redrive", "--all")[1])
                if found["sent"]:
                    return found
                await asyncio.sleep(0.2)

    assert asyncio.run(sent_again())["sent"] == 1
    received = with_queue(place, lambda queue: queue.receive(1, 20))
    assert [each.body for each in received] == [encode(message)]


def test_it_must_be_said_which(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--all", "--run-id", an_id())):
        code, out, err = admin(capsys, "packs", "redrive", *words)
        assert (code, out) == (1, None)
        assert "either --run-id or --all" in err
