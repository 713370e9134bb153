"""Runs in a JetStream KV bucket, by run id."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import fields
from typing import Any

import msgspec

from pyoco_server.core.programs.record import EXEC, Program
from pyoco_server.core.programs.stored import MEMBERS
from pyoco_server.core.run import Run
from pyoco_server.core.snapshot import encode_fitting, encode_smallest, read_snapshot, to_snapshot
from pyoco_server.errors import Corrupt, RecordUnreadable, Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.nats.bucket import Bucket, Entry, TtlRefused
from pyoco_server.ports.nats.link import Link, Rejected
from pyoco_server.ports.nats.watch import watch
from pyoco_server.ports.runs.port import ABSENT, LOST, Absent, Changes, Lost, Removed, Stored, Withdrawn

__all__ = ["JetStreamRuns"]

log = get_logger(__name__)

#: What a claim, a cancel request and an end add to a record. A run that could not be claimed must not be accepted.
_HEADROOM_BYTES = 1024

_NO_MESSAGE_FOUND = 10037

_encode_quickly = msgspec.json.Encoder().encode


class _StreamState(msgspec.Struct):
    last_seq: int


class _StreamInfo(msgspec.Struct):
    state: _StreamState


class JetStreamRuns:
    def __init__(self, link: Link, bucket: str, snapshot_bytes_max: int, retention_seconds: float = 0.0) -> None:
        self._link = link
        self._bucket = Bucket(link, bucket)
        self._bytes_max = snapshot_bytes_max
        #: The bucket's last sequence, if its message is deleted, and the newest sequence that exists.
        self._last_gone = (0, 0)
        #: A terminal record, or the marker of a withdrawal, carries its own TTL. None: it never expires.
        self._expiry = {"Nats-TTL": f"{math.ceil(retention_seconds)}s"} if retention_seconds else None

    async def create(self, run: Run) -> Stored | Lost:
        return await self._write(run, self._encode_first(run), 0)

    def check_size(self, run: Run) -> None:
        self._encode_first(run)

    def _encode_first(self, run: Run) -> bytes:
        headroom = min(_HEADROOM_BYTES, self._bytes_max // 8)
        return self._encode(run, self._bytes_max - headroom)

    async def find(self, run_id: str) -> Stored | Withdrawn | Absent:
        entry = await self._bucket.get(run_id)
        if entry is None:
            return ABSENT
        if entry.value is None:
            return Withdrawn(entry.revision)
        return Stored(_read(entry), entry.revision, entry.stored_at)

    async def replace(self, run: Run, revision: int) -> Stored | Lost:
        return await self._write(run, self._encode(run, self._bytes_max), revision)

    async def replace_smallest(self, run: Run, revision: int) -> Stored | Lost:
        data = encode_smallest(run, self._bytes_max)
        return await self._write(read_snapshot(data), data, revision)

    @staticmethod
    def _encode(run: Run, bytes_max: int) -> bytes:
        """Encode a record.

        Falls back to the core's own encoder; the fast one is six times as fast for small, plain records.
        """
        try:
            data = _encode_quickly(to_snapshot(run))
        except (TypeError, ValueError, OverflowError):  # the core's encoder may handle it
            return encode_fitting(run, bytes_max)
        return data if len(data) <= bytes_max else encode_fitting(run, bytes_max)

    async def _write(self, run: Run, data: bytes, revision: int) -> Stored | Lost:
        written = await self._store(run, data, revision)
        return LOST if written is None else Stored(run, written.revision)

    async def _store(self, run: Run, data: bytes, revision: int) -> Entry | None:
        if not run.is_terminal:
            return await self._bucket.write(run.run_id, data, revision)
        return await self._store_last(run.run_id, data, revision, {})

    async def _store_last(self, run_id: str, data: bytes, revision: int, headers: dict[str, str]) -> Entry | None:
        """Write the final record of a run, which expires if the bucket supports it."""
        if self._expiry is None:
            return await self._bucket.write(run_id, data, revision, headers)
        try:
            return await self._bucket.write(run_id, data, revision, headers | self._expiry)
        except TtlRefused:
            log.warning("this bucket was created without expiry and keeps runs for ever", bucket=self._bucket.name)
            self._expiry = None
            return await self._bucket.write(run_id, data, revision, headers)

    async def withdraw(self, run_id: str, revision: int) -> bool:
        """Replace the record by a marker, which must outlive the job in case that was stored after all.

        Without the marker the job would be executed. It lives as long as a terminal record; an older job is not
        executed without a record (`actions/claim.py`).
        """
        return await self._store_last(run_id, b"", revision, {"KV-Operation": "DEL"}) is not None

    async def newest(self) -> int:
        """Return the newest revision by sequence: querying the last message of any key costs the server 40 ms at
        100,000 runs.

        The last sequence may belong to a deleted message: markers of expired runs vanish without a trace. Then the slow
        query is needed, but its answer is valid until the next write.
        """
        try:
            last = await self._last_number()
            if last in (0, self._last_gone[0]) or await self._is_there(last):
                return self._last_gone[1] if last == self._last_gone[0] else last
            if await self._last_number() > last:
                return last  # overwritten a moment ago: followers that wait for it will see the newer revision
        except Rejected as error:
            raise Unavailable(f"cannot read {self._bucket.name}: {error}") from error
        self._last_gone = last, await self._bucket.last_revision()
        return self._last_gone[1]

    async def _last_number(self) -> int:
        return (await self._link.insist(f"STREAM.INFO.{self._bucket.stream}", {}, _StreamInfo)).state.last_seq

    async def _is_there(self, revision: int) -> bool:
        try:
            await self._link.insist(f"STREAM.MSG.GET.{self._bucket.stream}", {"seq": revision}, dict[str, Any])
        except Rejected as error:
            if error.code == _NO_MESSAGE_FOUND:
                return False
            raise
        return True

    async def changes(
        self, after: int = 0, epoch: str = "", on_heard: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[Changes, None]:
        async with aclosing(watch(self._link, self._bucket, after, epoch, on_heard)) as batches:
            async for batch in batches:
                yield Changes(tuple(map(_change, batch.entries)), batch.caught_up, batch.created)


#: Takes a fifth of the time of `read_snapshot`, and decodes every change of every run. It drops unknown fields, so
#: these are checked for first: a watcher of a run must see the same as a reader (FLOW-551).
_read_quickly = msgspec.json.Decoder(Run).decode
_read_program_quickly = msgspec.json.Decoder(Program).decode
_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_KNOWN = frozenset(each.name for each in fields(Run)) - {"extra", "program"}
_KNOWN_OF_PROGRAMS = (_KNOWN | MEMBERS | {"token"}) - {"attempt_id"}
_read_text = msgspec.json.Decoder(str | None).decode
_EXEC, _NULL = f'"{EXEC}"'.encode(), msgspec.Raw(b"null")


def _change(entry: Entry) -> Stored | Removed:
    """Convert an entry.

    A record that cannot be decoded, or contains another run id than its key, is reported as corrupt: the record that it
    replaced is no longer valid.
    """
    if entry.value is None:
        return Removed(entry.key, entry.revision)
    try:
        return Stored(_read(entry), entry.revision)
    except RecordUnreadable as error:
        log.error(
            "unreadable run record, listed as UNKNOWN",
            run_id=entry.key,
            reason=error.reason,
            err_id=error.text.err_id,
        )
        return Removed(entry.key, entry.revision, is_corrupt=True, stored_at=entry.stored_at)


def _decode(data: bytes) -> Run:
    """Like `read_snapshot`, in a third of its time. Raises Corrupt."""
    try:
        return _read_known(data, _names(data)) or read_snapshot(data)
    except (msgspec.DecodeError, RecursionError):  # foreign or damaged record
        return read_snapshot(data)


def _read(entry: Entry) -> Run:
    """Decode an entry. Raises RecordUnreadable (SAFE-16)."""
    try:
        run = _decode(entry.value or b"")
    except Corrupt as error:
        raise RecordUnreadable(entry.key, str(error), entry.revision) from None
    if run.run_id != entry.key:
        raise RecordUnreadable(entry.key, "its run id differs from its key", entry.revision)
    return run


def _read_known(data: bytes, members: dict[str, msgspec.Raw]) -> Run | None:
    """Decode a record without unknown members.

    None: it has members that only `read_snapshot` handles. Raises msgspec.DecodeError.
    """
    is_program = bytes(members.get("kind", _NULL)) == _EXEC
    if not is_program and members.keys() <= _KNOWN:
        return _read_quickly(data)
    if not is_program or not members.keys() <= _KNOWN_OF_PROGRAMS:
        return None
    program = _read_program_quickly(data)
    if min(program.max_attempts, program.lost, program.slot or 0) < 0:
        return None
    run = _read_quickly(data)
    # Safe: no one else holds this object yet. A copy with two more members would take three times as long as all of
    # this.
    object.__setattr__(run, "program", program)
    object.__setattr__(run, "not_before", None)  # programs have their own, which their retries use, too
    object.__setattr__(run, "attempt_id", _read_text(members.get("token", _NULL)))
    return run
