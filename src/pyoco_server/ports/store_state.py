"""Whether what NATS is given to store gets stored, as far as this process has seen."""

from __future__ import annotations

import enum

__all__ = ["StoreState"]


class StoreState(enum.Enum):
    #: Nothing speaks against it. A process that stores nothing cannot know better.
    TAKES = "takes"
    #: It has refused for want of room. It takes again as soon as there is some.
    FULL = "full"
    #: It could not write to its disk, and writes nothing more until NATS is restarted, however much room there is.
    STUCK = "stuck"
