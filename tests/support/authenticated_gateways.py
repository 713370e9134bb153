"""A gateway with authentication, and keys for it, for tests."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.core.api_key import make_key
from pyoco_server.doors.http.slowdown import Slowdown
from pyoco_server.ports.nats.link import Link, open_link
from support.gateways import Gateway, fresh_gateway

__all__ = ["a_key", "at_once", "gateway", "key_id", "link", "submit"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One for all of them: tests have keys, and where it matters tenants, of their own. Authentication is on. What is
    slow on purpose is tested in `test_http_keys.py`."""
    link = await open_link(module_nats_url, "tests")
    closed = {"http_auth_mode": "api_key", "auth_pepper": "pepper"}
    async with fresh_gateway(link, module_nats_url, tmp_path_factory.mktemp("data"), **closed) as gateway:
        gateway.app.state.gateway.slowdown = Slowdown(sleep=at_once)
        yield gateway
    await link.close()


@pytest.fixture
def link(link_of_module: Link) -> Link:
    return link_of_module


async def at_once(_: float) -> None:
    """Instead of a sleep."""


async def a_key(gateway: Gateway, tenant: str = "team-a") -> dict[str, str]:
    """The headers of an authenticated caller."""
    pepper = gateway.config.auth_pepper
    plain, record = make_key(tenant, pepper, time.time(), secrets.token_hex, secrets.token_urlsafe)
    assert await gateway.backend.keys.add(record)
    return {"X-API-Key": plain}


def key_id(headers: dict[str, str]) -> str:
    return headers["X-API-Key"].split("_")[1]


async def submit(gateway: Gateway, headers: dict[str, str], **body: Any) -> str:
    answer = await gateway.client.post("/runs", json={"flow_name": "hello"} | body, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["run_id"])
