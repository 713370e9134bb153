"""Backends with streams and buckets of their own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import opened_backend
from support.servers import config_for, forget

__all__ = ["a_world"]


@contextlib.asynccontextmanager
async def a_world(link: Link, url: str, **settings: Any) -> AsyncIterator[Backend]:
    """A backend whose streams and buckets nobody else uses; they are deleted afterwards."""
    config = config_for(url, **settings)
    try:
        async with opened_backend(config) as backend:
            yield backend
    finally:
        await forget(link, config)
