"""Whether NATS stores what it is given, as far as this process has observed."""

from __future__ import annotations

import enum

__all__ = ["StoreState"]


class StoreState(enum.Enum):
    #: No sign of a problem. A process that stores nothing cannot know better.
    TAKES = "takes"
    #: It has refused for lack of space, and accepts again as soon as there is some.
    FULL = "full"
    #: It could not write to its disk, and stores nothing until NATS is restarted, however much space there is.
    STUCK = "stuck"
