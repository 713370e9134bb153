"""A deployment on a real NATS to look at, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.core.diagnosis.facts import (
    Server,
)
from pyoco_server.ports.deployment import jetstream
from pyoco_server.ports.deployment.jetstream import JetStreamDeployment
from pyoco_server.wiring.operating import open_deployment

__all__ = ["deployment", "patient"]


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """Who is there is waited for, on a machine as busy as it likes."""
    with pytest.MonkeyPatch.context() as patch:  # its own: the test's is undone before `config` is
        patch.setattr(jetstream, "_CONNECT_SECONDS", 60.0)
        yield


@pytest.fixture
async def deployment(prepared: NatsBackendConfig) -> AsyncIterator[JetStreamDeployment]:
    """A view of existing streams that are not used otherwise."""
    async with open_deployment(prepared) as deployment:
        assert isinstance(await deployment.reach(), Server)
        yield deployment
