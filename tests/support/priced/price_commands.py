"""`pyoco-client price` with a gateway, for tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from support.client_commands import Client, Ended
from support.gateways import listening
from support.priced.gateways import Payer, PricedDoor

__all__ = ["COST", "META", "RUN", "SECRET", "SUBMIT", "call", "client", "in_its_loop", "url"]

#: Where the gateway is.
in_its_loop = pytest.mark.asyncio(loop_scope="module")
SECRET = "pyoco_0123456789abcdef_nobodyshallseethis"
SUBMIT = ["price", "submit", "decision", "--input", "question=Why?", "--max-cost-usd"]


@pytest.fixture
def client(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("PYOCO_CLIENT_CONFIG", os.devnull)
    monkeypatch.setenv("PYOCO_API_KEY", SECRET)
    return Client(capsys, monkeypatch)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(priced_door: PricedDoor) -> AsyncIterator[str]:
    async with listening(priced_door.gateway.app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def call(client: Client, url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The command in a thread: the gateway is in this one. Its first word is who pays."""

    async def called(payer: Payer, *words: str) -> Ended:
        monkeypatch.setenv("PYOCO_API_KEY", payer.headers["Authorization"].removeprefix("Bearer "))
        return await asyncio.to_thread(client, "--server", url, *words)

    return called


COST = {"reserved_usd": "0.2500", "used_usd": "0.0000", "minimum_fee_usd": "0.0050", "budget_remaining_usd": "1.0000"}
META = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "trace_id": None}
RUN = {"run_id": "x", "status": "PROCESSING", "money_state": "RESERVED", "cost": COST, "result": None, "meta": META}
