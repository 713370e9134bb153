"""Logs in a JetStream stream: one message per batch, one subject per run and attempt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Any

import msgspec

from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.resources import log_subjects
from pyoco_server.ports.nats.watch import watch
from pyoco_server.ports.run_logs.port import LogStore, StoredBatch, StoredBatches

__all__ = ["JetStreamRunLogs"]

log = get_logger(__name__)

#: Answers to the deletion of a message that does not exist, or no longer.
_ALREADY_DELETED = frozenset({10037, 10043, 10057})
#: A write can conflict at most twice: with its own earlier copy, and with the expiry of all earlier batches.
_TRIES = 3


class _State(msgspec.Struct):
    first_ts: datetime
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0


class _Info(msgspec.Struct):
    created: datetime
    state: _State


class JetStreamRunLogs:
    def __init__(self, link: Link, stream: str) -> None:
        self._link, self._stream = link, stream
        self._prefix = log_subjects(stream)
        self._bucket = Bucket(link, stream, stream, self._prefix)

    async def append(self, run_id: str, attempt: int, payload: bytes, after: int) -> int:
        key = f"{run_id}.{attempt}"
        for _ in range(_TRIES):
            written = await self._bucket.write(key, payload, after)
            if written is not None:
                return written.revision
            # Unexpected sequence: the response of an earlier try was lost, or the previous batches have expired.
            newest = await self._bucket.get(key)
            if newest is not None and newest.value == payload:
                return newest.revision
            after = newest.revision if newest is not None else 0
        raise Unavailable(f"cannot store lines of {key}: another process writes there")

    async def delete(self, number: int) -> None:
        request = {"seq": number, "no_erase": True}
        try:
            await self._link.insist(f"STREAM.MSG.DELETE.{self._stream}", request, dict[str, Any])
        except Rejected as error:
            if error.code not in _ALREADY_DELETED:
                raise Unavailable(f"cannot delete log lines: {error}") from error

    async def batches(self, run_id: str) -> AsyncGenerator[StoredBatches, None]:
        bucket = Bucket(self._link, self._stream, self._stream, f"{self._prefix}{run_id}.")
        async with aclosing(watch(self._link, bucket)) as found:
            async for batch in found:
                items = tuple(item for entry in batch.entries if (item := _batch_of(entry)) is not None)
                yield StoredBatches(items, batch.caught_up)

    async def state(self) -> LogStore:
        try:
            info = await self._link.insist(f"STREAM.INFO.{self._stream}", {}, _Info)
        except Rejected as error:
            raise Unavailable(f"cannot look at the logs: {error}") from error
        state = info.state
        first_at = state.first_ts.timestamp() if state.messages else None
        return LogStore(state.bytes, info.created.timestamp(), first_at, state.first_seq > 1)


def _batch_of(entry: Entry) -> StoredBatch | None:
    if entry.value is None or not entry.key.isdecimal():  # written by another program
        return None
    return StoredBatch(int(entry.key), entry.revision, entry.stored_at, entry.value)
