"""A gateway that asks for keys, for tests."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyoco_server.core.api_key import KeyRecord, make_key
from pyoco_server.ports.nats.link import Link
from support.gateways import Gateway, error, fresh_gateway

__all__ = ["BAD", "MISSING", "REFUSED", "a_key", "ask", "gateway"]

MISSING, REFUSED = error(14, "api key required"), error(15, "api key invalid")
BAD = {"X-API-Key": f"pyoco_0123456789abcdef_{'x' * 43}"}


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    """Authentication is on."""
    async with fresh_gateway(link, nats_url, tmp_path, http_auth_mode="api_key") as gateway:
        yield gateway


async def a_key(gateway: Gateway, **more: Any) -> tuple[dict[str, str], KeyRecord]:
    """The headers of an authenticated caller, and the record of its key."""
    plain, made = make_key("team-a", "", time.time(), secrets.token_hex, secrets.token_urlsafe)
    record = replace(made, **more)
    assert await gateway.backend.keys.add(record)
    return {"X-API-Key": plain}, record


async def ask(gateway: Gateway, method: str, path: str, **more: Any) -> tuple[int, Any]:
    """A request as the ASGI server passes it on, with a path that no client would send. Its body is not read."""
    answer: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read before the key")

    async def send(message: Any) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "server": ("gateway", 80),
        "client": ("127.0.0.1", 1),
    } | more
    await gateway.app(scope, receive, send)
    return answer[0]["status"], b"".join(part.get("body", b"") for part in answer[1:])
