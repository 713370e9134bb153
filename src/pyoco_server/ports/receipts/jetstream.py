"""Receipts in a JetStream KV bucket, by a digest of tenant and idempotency key. They expire by the bucket's max age."""

from __future__ import annotations

import msgspec

from pyoco_server.core.names import is_run_id
from pyoco_server.core.rounds import Rounds
from pyoco_server.errors import Corrupt
from pyoco_server.ports.nats.bucket import Bucket, Entry
from pyoco_server.ports.nats.link import Link
from pyoco_server.ports.receipts.port import Receipt

__all__ = ["JetStreamReceipts"]


class _Record(msgspec.Struct):
    run_id: str
    fingerprint: str


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Record).decode


class JetStreamReceipts:
    def __init__(self, link: Link, bucket: str) -> None:
        self._bucket = Bucket(link, bucket)

    async def claim(self, key: str, run_id: str, fingerprint: str) -> Receipt:
        data = _encode(_Record(run_id, fingerprint))
        revision = 0
        rounds = Rounds("the receipt of an idempotency key")
        while True:
            rounds.begin()
            written = await self._bucket.write(key, data, revision)
            if written is not None:
                return Receipt(run_id, fingerprint, written.revision)
            found = await self._bucket.get(key)
            if found is not None and found.value is not None:
                return _receipt(found)
            revision = found.revision if found is not None else 0  # it expired between write and read

    async def find(self, key: str) -> Receipt | None:
        found = await self._bucket.get(key)
        return None if found is None or found.value is None else _receipt(found)

    async def replace(self, key: str, run_id: str, receipt: Receipt) -> Receipt:
        data = _encode(_Record(run_id, receipt.fingerprint))
        written = await self._bucket.write(key, data, receipt.revision)
        if written is not None:
            return Receipt(run_id, receipt.fingerprint, written.revision)
        return await self.claim(key, run_id, receipt.fingerprint)


def _receipt(entry: Entry) -> Receipt:
    try:
        record = _decode(entry.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"not a receipt: {error}") from error
    if not is_run_id(record.run_id):  # it is used as a key of the bucket of runs
        raise Corrupt("not a receipt: it promises no run")
    return Receipt(record.run_id, record.fingerprint, entry.revision)
