"""The ports that an action on schedules may use, in one bundle. `wiring` fills it."""

from __future__ import annotations

from dataclasses import dataclass

from pyoco_server.ports.keys.port import Keys
from pyoco_server.ports.schedules.port import Schedules

__all__ = ["Scheduling"]


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """What gateways and keepers have."""

    schedules: Schedules
    #: A tick is submitted with the rights of the key that wrote the schedule.
    keys: Keys
