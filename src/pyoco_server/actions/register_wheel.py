"""Register a wheel."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial

from pyoco_server.actions.list_wheels import wheel_of, wheels_of
from pyoco_server.actions.note_wheel_event import note_wheel_event
from pyoco_server.core.run import Caller
from pyoco_server.core.wheel import TAGS_HEADER, Wheel, WheelName, newest_of
from pyoco_server.core.wheel_event import WheelAction, WheelSource
from pyoco_server.errors import Corrupt, InvalidWheel, NotStored, ObjectNotFound, Problem, Unavailable, WheelNotNewer
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend
from pyoco_server.ports.objects.port import Catalogue, ObjectInfo
from pyoco_server.ports.spool import Spool

__all__ = ["WheelUpload", "register_wheel"]

log = get_logger(__name__)

#: An election takes 4 to 9 s (DESIGN 9.16).
_UNANSWERED_SECONDS = 15.0


@dataclass(frozen=True)
class WheelUpload:
    """A completely received wheel, with a valid name and valid tags."""

    name: WheelName
    tags: tuple[str, ...]
    content: Spool
    sha256_hex: str


async def register_wheel(backend: GatewayBackend, caller: Caller, source: WheelSource, upload: WheelUpload) -> Wheel:
    """Check that the wheel is newer, validate its content, store it, write the history event, in that order.

    The version is checked at least twice: before the content is read, so that the usual mistake costs little, and
    against the catalogue at the moment the wheel becomes visible. So of concurrent uploads of one package one wins
    (FLOW-213; stronger than FLOW-219 requires). A change to any other wheel in between costs another read of the
    catalogue.

    Costs validating the content in a thread, two catalogue reads, the upload, and four round trips. The bytes are sent
    again only if NATS did not accept all of them.

    A crash leaves behind:

    - while the wheel is being stored: nothing visible; chunks without a name, which the keeper deletes;
    - after it is stored: a registered wheel without a history event. Uploaded again, it is refused as not newer.

    Raises WheelNotNewer, InvalidWheel if the content does not match the name, NotStored if it is not registered,
    Unavailable if the outcome is unknown.
    """
    _check_newer(upload.name, await backend.wheels.catalogue())
    await _check_content(backend, upload)
    info = await _store(backend, upload)
    wheel = wheel_of(info)
    assert wheel is not None, "its name and tags were valid before it was stored"
    await note_wheel_event(backend, WheelAction.UPLOAD, wheel, caller, source)
    return wheel


def _check_newer(name: WheelName, catalogue: Catalogue) -> None:
    """Raise WheelNotNewer if a registered version is the same or newer."""
    newest = newest_of(name.package, wheels_of(catalogue))
    if newest is not None and name.version <= newest.name.version:
        message = f"{newest.name.file_name} is registered, and {name.version} is not newer"
        raise WheelNotNewer(message, problems=(Problem(("wheel",), message, "not_newer"),))


async def _check_content(backend: GatewayBackend, upload: WheelUpload) -> None:
    """Raise InvalidWheel if the content does not match the name."""
    try:
        await upload.content.examine(lambda file: backend.wheel_files.check(file, upload.name))
    except InvalidWheel as error:
        raise InvalidWheel(str(error), problems=(Problem(("wheel",), str(error), "content"),)) from error


async def _store(backend: GatewayBackend, upload: WheelUpload) -> ObjectInfo:
    """Store the wheel. Retries while NATS is connected and does not accept it; never if the wheel may become visible
    after all."""
    name, content = upload.name.file_name, upload.content
    headers = {TAGS_HEADER: ",".join(upload.tags)} if upload.tags else None
    admit = partial(_check_newer, upload.name)
    ends_at: float | None = None
    while True:
        try:
            made = await backend.wheels.put_admitted(name, content.chunks(), content.size_bytes, headers, admit)
            break
        except NotStored as error:
            now = time.monotonic()
            ends_at = ends_at or now + _UNANSWERED_SECONDS
            if not backend.is_up() or now > ends_at:
                raise
            log.info("retrying to store a wheel", wheel_name=name, error=error)
        await asyncio.sleep(0.25)
    if made.sha256_hex != upload.sha256_hex:
        await backend.wheels.delete(made.name)
        raise Corrupt("the disk gave back other bytes than it was given")
    return await _as_listed(backend, made)


async def _as_listed(backend: GatewayBackend, made: ObjectInfo) -> ObjectInfo:
    """Return the same object with the time that lists show: the store's. Best effort, because the wheel is stored
    already."""
    try:
        found = await backend.wheels.info(made.name)
    except (Unavailable, ObjectNotFound):
        return made
    return found if found.object_id == made.object_id else made
