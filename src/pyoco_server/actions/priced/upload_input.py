"""Store a file that a tenant's packs may read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from pyoco_server.core.priced.input_key import input_key
from pyoco_server.core.priced.instants import SECOND_US, iso
from pyoco_server.core.priced.upload import PENDING_SECONDS, NewUpload, Upload, room_of
from pyoco_server.errors import DependencyUnavailable, Problem, Refused
from pyoco_server.logs import get_logger
from pyoco_server.ports.ledger.port import StorageFull
from pyoco_server.ports.priced import Priced

__all__ = ["StoredInput", "Uploaded", "upload_input"]

log = get_logger(__name__)

#: Time limit for storing all bytes: well before the upload counts as abandoned.
_STORE_SECONDS: Final = 900
assert _STORE_SECONDS < PENDING_SECONDS // 2


@dataclass(frozen=True, kw_only=True)
class StoredInput:
    """A completely received file."""

    #: As named by the caller.
    name: str
    content_type: str
    sha256: str
    size_bytes: int
    #: Return its bytes, from the first to the last. May be called again.
    chunks: Callable[[], AsyncIterator[bytes]]


@dataclass(frozen=True)
class Uploaded:
    upload: Upload
    #: False: the tenant had uploaded the same bytes before, and that file is used.
    is_new: bool


async def upload_input(priced: Priced, tenant_id: str, file: StoredInput) -> Uploaded:
    """Reserve the room, store the bytes, confirm, in that order; two transactions and the bytes.

    A crash leaves behind:

    - before the reservation: nothing;
    - between it and the bytes: a row that takes up room for an hour. Then the retainer removes it;
    - between bytes and confirm: the same, and the object is removed with the row;
    - after the confirm: an accepted file whose answer was lost. Uploading the same bytes again finds it.

    There is never an object without a row. Of two concurrent uploads of the same bytes one file remains, and serves
    both. Raises Refused if the tenant's files would exceed their limit, DependencyUnavailable.
    """
    earlier = await _earlier(priced, tenant_id, file.sha256)
    if earlier is not None:
        return Uploaded(earlier, is_new=False)
    new = _new(priced, tenant_id, file)
    is_confirmed = False
    try:
        await _reserve(priced, new)
        await _store(priced, new, file)
        confirmed = await priced.ledger.transact(lambda tx: tx.uploads.confirm(new.upload_id, tenant_id))
        is_confirmed = confirmed is not None
    finally:
        if not is_confirmed:
            await _abandon(priced, new)
    if confirmed is None:
        raise DependencyUnavailable("the upload took too long, and was given up")
    if confirmed.upload_id != new.upload_id:
        await _drop(priced, new)
        return Uploaded(confirmed, is_new=False)
    log.info("stored an input", tenant_id=tenant_id, upload_id=new.upload_id, size_bytes=file.size_bytes)
    return Uploaded(confirmed, is_new=True)


def _new(priced: Priced, tenant_id: str, file: StoredInput) -> NewUpload:
    upload_id = priced.new_id()
    return NewUpload(
        upload_id=upload_id,
        tenant_id=tenant_id,
        key=input_key(tenant_id, upload_id, file.name),
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        content_type=file.content_type,
    )


async def _earlier(priced: Priced, tenant_id: str, sha256: str) -> Upload | None:
    """Return an earlier file with the same bytes that still exists: a store may have been emptied from outside."""
    found = await priced.ledger.read(lambda tx: tx.uploads.find(tenant_id, sha256))
    if found is None:
        return None
    head = await priced.inputs.head(found.key)
    if head is not None and head.size_bytes == found.size_bytes:
        return found
    log.warning("input is no longer in its store", tenant_id=tenant_id, upload_id=found.upload_id)
    await priced.ledger.transact(lambda tx: tx.uploads.lose(found.upload_id))
    return None


async def _reserve(priced: Priced, new: NewUpload) -> None:
    allowed = priced.config.pack_input_tenant_max_bytes
    reserved = await priced.ledger.transact(lambda tx: tx.uploads.reserve(new, allowed))
    if isinstance(reserved, StorageFull):
        message = _no_room(reserved, new.size_bytes, allowed)
        raise Refused(message, problems=(Problem((), message),))


def _no_room(full: StorageFull, size_bytes: int, allowed: int) -> str:
    takes = room_of(size_bytes)
    taken = f"the files of this tenant take {full.used_bytes} of {allowed} bytes, and this one would take {takes}"
    if takes > allowed or full.first_expires_at is None:
        return f"{taken}: it never fits (PYOCO_PACK_INPUT_TENANT_MAX_BYTES)"
    return f"{taken}; room comes back from {iso(-(-full.first_expires_at // SECOND_US) * SECOND_US)} on"


async def _store(priced: Priced, new: NewUpload, file: StoredInput) -> None:
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            await priced.inputs.put(new.key, file.chunks(), new.size_bytes, new.content_type, new.sha256)
    except TimeoutError as error:
        raise DependencyUnavailable(f"an input was not stored within {_STORE_SECONDS} s") from error


async def _abandon(priced: Priced, new: NewUpload) -> None:
    """Free the room of a failed upload. Does nothing for one that was never reserved, or is confirmed after all."""
    try:
        await priced.ledger.transact(lambda tx: tx.uploads.abandon(new.upload_id))
    except DependencyUnavailable as error:
        log.warning("failed upload takes up room for an hour", tenant_id=new.tenant_id, cause=error)


async def _drop(priced: Priced, new: NewUpload) -> None:
    """Delete a duplicate: a concurrent upload of the same bytes was faster, and this id was returned to no caller.

    If this fails, the retainer deletes it.
    """
    try:
        await priced.inputs.delete(new.key)
        await priced.ledger.transact(lambda tx: tx.uploads.remove(new.upload_id))
    except DependencyUnavailable as error:
        log.warning("duplicate upload is removed later", tenant_id=new.tenant_id, cause=error)
