"""What clients of a router do in tests."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

from pyoco_server.core.api_key import make_key
from pyoco_server.core.frames.messages import JobResult
from pyoco_server.core.states import RunState
from pyoco_server.ports.acl.port import AclRecord
from support.grid.peers import ClientPeer, new_client_id
from support.grid.routers import OpenRouter
from support.waiting import eventually

__all__ = ["PEPPER", "connected", "done", "grant", "granted"]

PEPPER = "of these tests"


@contextlib.asynccontextmanager
async def connected(router: OpenRouter, client_id: str | None = None, cap: int = 4) -> AsyncIterator[ClientPeer]:
    async with await ClientPeer.connect(router.port) as client:
        await client.hello(client_id, cap)
        yield client


async def done(client: ClientPeer, **more: Any) -> JobResult:
    """Submitted, accepted, ended."""
    ack = await client.accepted(**more)
    result = await client.result()
    assert (result.job_id, result.status) == (ack.job_id, RunState.COMPLETED)
    return result


async def granted(router: OpenRouter, **record: Any) -> tuple[str, str, str]:
    """A client id, its key, the key's id."""
    plain, key = make_key("tenant-a", PEPPER, router.backend.clock(), secrets.token_hex, secrets.token_urlsafe)
    assert await router.backend.keys.add(key)
    client_id = new_client_id()
    await grant(router, client_id, **{"api_key_ids": (key.key_id,), "execs": ("*",), **record})
    return client_id, plain, key.key_id


async def grant(router: OpenRouter, client_id: str, **record: Any) -> None:
    acl, wanted = router.context.programs.acl, AclRecord(**record)
    await acl.put("client", client_id, wanted)
    await eventually(lambda: acl.find("client", client_id) == wanted)
