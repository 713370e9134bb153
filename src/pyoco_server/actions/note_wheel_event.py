"""Record changes of the wheel registry in its history."""

from __future__ import annotations

from pyoco_server.core.run import Caller
from pyoco_server.core.wheel import Wheel
from pyoco_server.core.wheel_event import WheelAction, WheelEvent, WheelSource
from pyoco_server.errors import Unavailable
from pyoco_server.logs import get_logger
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["note_wheel_event"]

log = get_logger(__name__)


async def note_wheel_event(
    backend: GatewayBackend, action: WheelAction, wheel: Wheel, caller: Caller, source: WheelSource
) -> None:
    """Write one event for a change that has happened: one round trip.

    An event that cannot be written is logged, and the change stands (FLOW-227).
    """
    event = WheelEvent(
        event_id=backend.new_id(),
        occurred_at=backend.clock(),
        action=action,
        wheel_name=wheel.name.file_name,
        tags=wheel.tags,
        source=source,
        actor=caller,
        size_bytes=wheel.size_bytes,
        sha256_hex=wheel.sha256_hex or None,
    )
    try:
        await backend.wheel_history.add(event)
    except Unavailable as error:
        log.error("wheel history event not written", error=error, event=event.document())
    else:
        log.info("wheel registry changed", event=event.document())
