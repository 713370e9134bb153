"""An object store in JetStream, for tests."""

from __future__ import annotations

from typing import Any

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.objects.jetstream import JetStreamObjects

__all__ = ["messages_in", "store"]


@pytest.fixture
def store(link: Link, prepared: NatsBackendConfig) -> JetStreamObjects:
    return JetStreamObjects(link, prepared.wheel_object_store_bucket)


async def messages_in(link: Link, config: NatsBackendConfig) -> int:
    info = await link.api(f"STREAM.INFO.OBJ_{config.wheel_object_store_bucket}", {}, dict[str, Any])
    return int(info["state"]["messages"])
