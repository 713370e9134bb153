"""`api-key create` makes no key that would never work: the pepper has to be the gateways' (FIND-11, FIND-12)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.api_key import pepper_fingerprint
from pyoco_server.wiring.operating import open_keys
from support.discovery import Machine, a_server
from support.gateways import environment, open_gateway
from support.warm_processes import started

pytestmark = pytest.mark.usefixtures("real_nats")  # commands are processes

OURS, OTHER = "the gateway's pepper", "a mistyped pepper"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Create = Callable[..., Awaitable[Ended]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def create(config: NatsBackendConfig, machine: Machine) -> Create:
    """`api-key create` with this pepper, as a user whose servers are those of `machine`."""

    async def create(pepper: str, *options: str) -> Ended:
        own = {"PYOCO_DISCOVERY": "1", "XDG_STATE_HOME": str(machine.folder / "state"), "PYOCO_AUTH_PEPPER": pepper}
        command = ["-m", "pyoco_server.admin_cli", "api-key", "create", "--tenant", "team-a", *options]
        process = await started(command, env=environment(config) | own, cwd=machine.place("elsewhere"))
        async with asyncio.timeout(120):
            out, err = await process.communicate()
        assert process.returncode is not None
        assert out is not None
        assert err is not None
        return Ended(process.returncode, out.decode(), err.decode())

    return create


async def stored(config: NatsBackendConfig) -> tuple[str | None, int]:
    """The fingerprint, and how many keys there are."""
    async with open_keys(config) as keys:
        return await keys.pepper(), len(await keys.all())


def closed(config: NatsBackendConfig, folder: Path, pepper: str = OURS) -> NatsBackendConfig:
    return replace(config, http_auth_mode="api_key", auth_pepper=pepper, data_dir=str(folder))


async def test_the_first_gateway_with_authentication_stores_its_fingerprint(
    config: NatsBackendConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """FIND-11: a later one with another pepper replaces nothing, and says what is wrong."""
    async with open_gateway(replace(config, data_dir=str(tmp_path))):
        assert await stored(config) == (None, 0)
    for _ in range(2):
        async with open_gateway(closed(config, tmp_path)):
            assert await stored(config) == (pepper_fingerprint(OURS), 0)
    assert warnings(caplog) == []
    async with open_gateway(closed(config, tmp_path, OTHER)):
        assert await stored(config) == (pepper_fingerprint(OURS), 0)
    [warning] = warnings(caplog)
    assert "PYOCO_AUTH_PEPPER is not the pepper that API keys were made with" in warning
    assert OURS not in caplog.text
    assert OTHER not in caplog.text


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING and "PEPPER" in each.msg]


@pytest.mark.parametrize("pepper", [OTHER, ""])
async def test_a_key_of_another_pepper_is_neither_stored_nor_shown(
    config: NatsBackendConfig, tmp_path: Path, create: Create, pepper: str
) -> None:
    """FIND-12"""
    async with open_gateway(closed(config, tmp_path)):
        refused = await create(pepper)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("ERR-PYOCO-0052: PYOCO_AUTH_PEPPER is ")
        assert "--force-pepper: existing keys stop working" in refused.err
        assert await stored(config) == (pepper_fingerprint(OURS), 0)


async def test_a_key_of_the_same_pepper_opens(config: NatsBackendConfig, tmp_path: Path, create: Create) -> None:
    """FIND-12"""
    async with open_gateway(closed(config, tmp_path)) as gateway:
        made = await create(OURS)
        assert (made.code, made.err) == (0, "")
        assert (await status(gateway, made)) == 200


async def status(gateway: Any, made: Ended) -> int:
    answer = await gateway.client.get("/runs", headers={"X-API-Key": json.loads(made.out)["api_key"]})
    return int(answer.status_code)


async def test_the_stored_pepper_can_be_replaced(config: NatsBackendConfig, tmp_path: Path, create: Create) -> None:
    """FIND-12: existing keys stop working, and the command says so."""
    async with open_gateway(closed(config, tmp_path)) as gateway:
        old = await create(OURS)
        forced = await create(OTHER, "--force-pepper")
        assert forced.code == 0
        assert "existing keys stop working" in forced.err
        assert await stored(config) == (pepper_fingerprint(OTHER), 2)
        assert [await status(gateway, old), await status(gateway, forced)] == [200, 403]
    async with open_gateway(closed(config, tmp_path, OTHER)) as gateway:
        assert [await status(gateway, old), await status(gateway, forced)] == [403, 200]
        again = await create(OTHER, "--force-pepper")
        assert (again.code, again.err) == (0, "")  # nothing to replace


async def test_before_one_is_stored_the_discovery_file_counts(
    config: NatsBackendConfig, machine: Machine, create: Create
) -> None:
    """FIND-12: a server that is not closed yet, or has no gateway."""
    announced = pepper_fingerprint(OURS)
    machine.announce(a_server(machine.place("up"), nats=(config.nats_url,), pepper_fingerprint=announced))
    refused = await create(OTHER)
    assert (refused.code, refused.out) == (1, "")
    assert "ERR-PYOCO-0052" in refused.err
    assert (await create(OURS)).code == 0
    assert await stored(config) == (None, 1)


async def test_the_discovery_file_of_another_server_does_not_count(
    config: NatsBackendConfig, machine: Machine, create: Create
) -> None:
    """FIND-12"""
    machine.announce(a_server(machine.place("up"), nats=("nats://127.0.0.1:1",)))
    assert (await create(OTHER)).code == 0
