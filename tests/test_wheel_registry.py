"""FLOW-562: wheels from end to end."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, error, fresh_gateway
from support.memory_nats import nats_url
from support.wheel_doors import artifacts, history, register, upload
from support.wheels import build_wheel

__all__ = ["gateway", "nats_url"]


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        yield gateway


async def test_a_wheel_is_registered_listed_fetched_and_deleted(gateway: Gateway) -> None:
    """FLOW-149 to FLOW-153, FLOW-562"""
    file_name, content = build_wheel("my-tasks", "1.0", pad_bytes=200_000)
    made = (await upload(gateway, file_name, content, tags="gpu")).json()
    assert made["sha256_hex"] == hashlib.sha256(content).hexdigest()
    assert await artifacts(gateway) == [made]
    assert (await gateway.client.get(f"/wheels/{file_name}")).content == content
    assert (await gateway.client.delete(f"/wheels/{file_name}")).json() == {"name": file_name, "deleted": True}
    assert await artifacts(gateway) == []
    assert (await gateway.client.get(f"/wheels/{file_name}")).json() == error(23, "wheel not found")
    assert [event["action"] for event in await history(gateway)] == ["delete", "upload"]


async def test_same_and_older_versions_are_refused(gateway: Gateway) -> None:
    """FLOW-213, FLOW-562"""
    made = await register(gateway, version="1.10")
    for version in ("1.10", "1.10.0", "1.9", "1.10rc1"):
        assert (await upload(gateway, *build_wheel(version=version))).status_code == 409
    newer = await register(gateway, version="1.11")
    assert await artifacts(gateway) == [made, newer]
