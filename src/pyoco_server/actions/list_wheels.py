"""List the registered wheels."""

from __future__ import annotations

from pyoco_server.core.wheel import TAGS_HEADER, Wheel, read_wheel_name, read_wheel_tags
from pyoco_server.errors import InvalidWheel
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.objects.port import Catalogue, ObjectInfo

__all__ = ["list_wheels", "wheel_of", "wheels_of"]

log = get_logger(__name__)


async def list_wheels(backend: Backend) -> list[Wheel]:
    """Return every registered wheel, by file name (FLOW-149). O(wheels), in a few round trips. Raises Unavailable."""
    return wheels_of(await backend.wheels.catalogue())


def wheels_of(catalogue: Catalogue) -> list[Wheel]:
    """Return the wheels among the objects; other objects are skipped."""
    return [wheel for info in catalogue.objects if (wheel := wheel_of(info)) is not None]


def wheel_of(info: ObjectInfo) -> Wheel | None:
    """Return the wheel stored in an object. Returns None if its name or its tags are not those of a valid wheel."""
    try:
        name, tags = read_wheel_name(info.name), read_wheel_tags(info.headers.get(TAGS_HEADER, ""))
    except InvalidWheel as error:
        log.debug("skipping object that is not a wheel", object=info.name, error=error)
        return None
    return Wheel(
        name=name,
        size_bytes=info.size_bytes,
        sha256_hex=info.sha256_hex,
        nuid=info.object_id,
        modified=info.modified,
        tags=tags,
    )
