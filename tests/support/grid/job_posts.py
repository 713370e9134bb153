"""A gateway that accepts jobs, for tests of `POST /jobs`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pyoco_server.errors import CATALOGUE
from pyoco_server.ports.nats.link import open_link
from support.gateways import Gateway
from support.grid.http_jobs import fresh_grid_gateway

__all__ = ["V5", "gateway", "refusal"]

V5 = "6f1c2a9e-3b7d-4c55-9a10-2f4e8d7b6c01"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(module_nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    link = await open_link(module_nats_url, "tests")
    limits = {"exec_http_max_bytes": 3_000_000}
    async with fresh_grid_gateway(link, module_nats_url, tmp_path_factory.mktemp("data"), limits) as gateway:
        yield gateway
    await link.close()


def refusal(answer: Any, status: int, code: str) -> dict[str, Any]:
    """FLOW-50's body, with the code beside it and before the text (GRID-156)."""
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body.get("code")) == (status, code), answer.text
    assert body["detail"].startswith(f"{code}: ")
    assert body["err_id"] == "ERR-PYOCO-0044"
    assert (body["message"], body["message_ja"]) == (CATALOGUE[44].en, CATALOGUE[44].ja)
    return body
