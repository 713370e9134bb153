"""Delete a wheel from the registry."""

from __future__ import annotations

from pyoco_server.actions.note_wheel_event import note_wheel_event
from pyoco_server.actions.read_wheel import find_wheel
from pyoco_server.core.run import Caller
from pyoco_server.core.wheel_event import WheelAction, WheelSource
from pyoco_server.errors import WheelNotFound
from pyoco_server.ports.backend import GatewayBackend

__all__ = ["delete_wheel"]


async def delete_wheel(backend: GatewayBackend, caller: Caller, source: WheelSource, wheel_name: str) -> None:
    """Delete the wheel, then write the history event. Five round trips.

    Of several concurrent deletions one deletes the wheel and writes the event; the others raise WheelNotFound. A crash
    in between leaves a deleted wheel without an event. The version of a deleted wheel no longer counts (FLOW-214).
    Workers that have the wheel installed remove it at their next sync. Raises WheelNotFound, Unavailable.
    """
    found = await find_wheel(backend, wheel_name)
    if not await backend.wheels.delete(wheel_name):
        raise WheelNotFound
    await note_wheel_event(backend, WheelAction.DELETE, found.wheel, caller, source)
