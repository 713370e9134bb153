"""Scenes with timers short enough to wait for, on a machine that may be too busy for them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from pyoco_server.ports.backend import Backend
from pyoco_server.ports.nats.link import Link
from support.backends import opened_backend
from support.servers import config_for, forget

__all__ = ["a_world", "unhurried"]

#: The last one is for a machine that does nothing at all for some seconds.
_SCALES = (1.0, 4.0, 16.0)


async def unhurried(scene: Callable[[float], Awaitable[None]], *too_late: type[Exception]) -> None:
    """Play a scene with all its timers this many times as long as a quiet machine needs. Where one is too busy to be
    in time, which is no defect, it is played again with longer ones; a defect fails each time. `too_late`: what the
    scene raises then, beside what its own checks raise."""
    *hurried, longest = _SCALES
    for scale in hurried:
        with contextlib.suppress(AssertionError, pytest.fail.Exception, *too_late):
            await scene(scale)
            return
    await scene(longest)


@contextlib.asynccontextmanager
async def a_world(link: Link, url: str, **settings: Any) -> AsyncIterator[Backend]:
    """A backend whose streams and buckets nobody else uses; they are deleted afterwards."""
    config = config_for(url, **settings)
    try:
        async with opened_backend(config) as backend:
            yield backend
    finally:
        await forget(link, config)
