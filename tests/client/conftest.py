"""Both clients, and a gateway for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pyoco_server.client import retry, waiting
from pyoco_server.ports.nats.link import Link
from support.client_twins import MakeClient, make_async, make_sync
from support.clocked_clients import MakeClocked, make_clocked
from support.gateways import Gateway, fresh_gateway, listening
from support.memory_nats import module_nats_url, nats_url, real_nats
from support.patient_gateways import impatient_gateways, patient_gateways

__all__ = ["impatient_gateways", "module_nats_url", "nats_url", "patient_gateways", "real_nats"]


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> MakeClient:
    """Makes a client; every test that asks for it runs with both."""
    return make_sync if request.param == "sync" else make_async


@pytest.fixture(params=["sync", "async"])
def clocked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> MakeClocked:
    """Makes a client and a scripted gateway with a clock of their own, with each client as `make`."""
    return make_clocked(request.param, monkeypatch)


@pytest.fixture
async def gateway(link: Link, nats_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fresh_gateway(link, nats_url, tmp_path) as gateway:
        yield gateway


@pytest.fixture
async def url(gateway: Gateway) -> AsyncIterator[str]:
    async with listening(gateway.app) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def hurried() -> Iterator[None]:
    """Every pause is a fifth of what it is. How long they are is proved without a clock, in `test_client_pace`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "_FIRST_SECONDS", 0.05)
        patch.setattr(retry, "_MOST_SECONDS", 1.0)
        patch.setattr(waiting, "_LISTEN_SECONDS_MIN", 0.2)
        patch.setattr(waiting, "_LOOK_SECONDS_MIN", 0.2)
        yield
