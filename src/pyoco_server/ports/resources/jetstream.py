"""Compare the streams that a connection expects with those that exist in JetStream."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import msgspec

from pyoco_server.core.backup_mark import restored_at
from pyoco_server.core.holds import Holds
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.link import Link, Missing, NotPermitted, Rejected
from pyoco_server.ports.resources.port import StoreGone

__all__ = ["JetStreamResources"]

log = get_logger(__name__)

_NAME_IN_USE = 10058
_SECOND_US = 1_000_000
#: Timeout per stream when each is checked separately.
_CHECK_SECONDS = 1.0


class _Info(msgspec.Struct):
    created: datetime
    config: dict[str, Any]


class JetStreamResources:
    def __init__(self, link: Link) -> None:
        self._link = link
        #: False: this user may not list streams, so each is checked separately.
        self._may_list = True

    async def missing(self) -> tuple[StoreGone, ...]:
        expected = dict(self._link.expected)
        gone = await self._gone(list(expected))
        return tuple(sorted(StoreGone(name, expected[name].holds) for name in gone))

    async def _gone(self, names: list[str]) -> list[str]:
        if self._may_list:
            try:
                existing = await self._link.stream_names()
                return [name for name in names if name not in existing]
            except NotPermitted:
                self._may_list = False
        found = await asyncio.gather(*map(self._is_gone, names))
        return [name for name, is_gone in zip(names, found, strict=True) if is_gone]

    async def _is_gone(self, name: str) -> bool:
        try:
            await self._link.api(f"STREAM.INFO.{name}", {}, dict[str, Any], seconds=_CHECK_SECONDS)
        except Missing:
            return True
        except (Unavailable, Rejected):  # unknown; the stream may have no leader at the moment
            return False
        return False

    async def begun_at(self, holds: Holds) -> float | None:
        for name, expected in list(self._link.expected.items()):
            if expected.holds is holds:
                return await self._begun_at(name)
        return None

    async def _begun_at(self, name: str) -> float | None:
        try:
            info = await self._link.insist(f"STREAM.INFO.{name}", {}, _Info)
        except Missing:
            return None
        except Rejected as error:
            raise Unavailable(f"cannot look at {name}: {error}") from error
        # Some servers give a restored stream the creation date of the original, so a restore records its own.
        return max(info.created.timestamp(), (restored_at(info.config) or 0) / _SECOND_US)

    async def make_again(self, name: str) -> bool:
        # Without the metadata: it describes the deleted stream, for example its restore.
        known = {key: value for key, value in self._link.expected[name].config.items() if key != "metadata"}
        config = known | {"first_seq": int(time.time() * 1000)}
        try:
            await self._link.api(f"STREAM.CREATE.{name}", config, dict[str, Any])
        except Rejected as error:
            if error.code == _NAME_IN_USE:
                return False
            raise Unavailable(f"cannot create {name}: {error}") from error
        return True
