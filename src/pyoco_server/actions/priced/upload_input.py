"""Take a file that a tenant's packs may read."""

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
from pyoco_server.ports.ledger.port import Full
from pyoco_server.ports.priced import Priced

__all__ = ["InputFile", "Uploaded", "upload_input"]

log = get_logger(__name__)

#: For the bytes, all of them: well before anybody takes the upload for dead.
_STORE_SECONDS: Final = 900
assert _STORE_SECONDS < PENDING_SECONDS // 2


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """A file that has come in whole."""

    #: Whatever the caller calls it.
    name: str
    content_type: str
    sha256: str
    size_bytes: int
    #: Its bytes, from the first to the last. May be asked again.
    chunks: Callable[[], AsyncIterator[bytes]]


@dataclass(frozen=True)
class Uploaded:
    upload: Upload
    #: False: the tenant had brought the same bytes before, and that file serves.
    is_new: bool


async def upload_input(priced: Priced, tenant_id: str, file: InputFile) -> Uploaded:
    """Reserve the room, store the bytes, confirm. In that order; two transactions and the bytes.

    What a crash leaves behind:
      before the reservation       nothing;
      between it and the bytes     a row that takes room for an hour; then the retainer removes it;
      between bytes and confirm    the same, and the object goes with the row;
      after the confirm            an accepted file whose answer was lost: the same bytes again find it.
    Never an object without a row. Of the same bytes brought twice at once one file remains, and serves both.

    Raises Refused when the tenant's files would take more than they may, DependencyUnavailable.
    """
    earlier = await _earlier(priced, tenant_id, file.sha256)
    if earlier is not None:
        return Uploaded(earlier, is_new=False)
    new = _new(priced, tenant_id, file)
    is_confirmed = False
    try:
        await _reserve(priced, new)
        await priced.reached("upload.after_reserve")
        await _store(priced, new, file)
        await priced.reached("upload.after_store")
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
    log.info("an input was stored", tenant_id=tenant_id, upload_id=new.upload_id, size_bytes=file.size_bytes)
    return Uploaded(confirmed, is_new=True)


def _new(priced: Priced, tenant_id: str, file: InputFile) -> NewUpload:
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
    """A file of the same bytes that is really there: a store may have been emptied by others."""
    found = await priced.ledger.read(lambda tx: tx.uploads.find(tenant_id, sha256))
    if found is None:
        return None
    head = await priced.inputs.head(found.key)
    if head is not None and head.size_bytes == found.size_bytes:
        return found
    log.warning("an input is not there any more", tenant_id=tenant_id, upload_id=found.upload_id)
    await priced.ledger.transact(lambda tx: tx.uploads.lose(found.upload_id))
    return None


async def _reserve(priced: Priced, new: NewUpload) -> None:
    allowed = priced.config.pack_input_tenant_max_bytes
    reserved = await priced.ledger.transact(lambda tx: tx.uploads.reserve(new, allowed))
    if isinstance(reserved, Full):
        message = _no_room(reserved, new.size_bytes, allowed)
        raise Refused(message, problems=(Problem((), message),))


def _no_room(full: Full, size_bytes: int, allowed: int) -> str:
    takes = room_of(size_bytes)
    taken = f"the files of this tenant take {full.used_bytes} of {allowed} bytes, and this one would take {takes}"
    if takes > allowed or full.first_expires_at is None:
        return f"{taken}: it never fits (PYOCO_PACK_INPUT_TENANT_MAX_BYTES)"
    return f"{taken}; room comes back from {iso(-(-full.first_expires_at // SECOND_US) * SECOND_US)} on"


async def _store(priced: Priced, new: NewUpload, file: InputFile) -> None:
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            await priced.inputs.put(new.key, file.chunks(), new.size_bytes, new.content_type, new.sha256)
    except TimeoutError as error:
        raise DependencyUnavailable(f"an input was not stored within {_STORE_SECONDS} s") from error


async def _abandon(priced: Priced, new: NewUpload) -> None:
    """It takes no room any more. Nothing for one that was never reserved, or is confirmed after all."""
    try:
        await priced.ledger.transact(lambda tx: tx.uploads.abandon(new.upload_id))
    except DependencyUnavailable as error:
        log.warning("an upload that failed takes room for an hour", tenant_id=new.tenant_id, cause=error)


async def _drop(priced: Priced, new: NewUpload) -> None:
    """Somebody was faster with the same bytes: nobody was told of these. What fails here, the retainer does."""
    try:
        await priced.inputs.delete(new.key)
        await priced.ledger.transact(lambda tx: tx.uploads.remove(new.upload_id))
    except DependencyUnavailable as error:
        log.warning("an upload that is not needed is removed later", tenant_id=new.tenant_id, cause=error)
