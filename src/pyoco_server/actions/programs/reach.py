"""Access to the ports of programs, and the points at which tests stop an action."""

from __future__ import annotations

from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.programs import Programs

__all__ = ["POINTS", "programs_of"]

#: Every name that `Programs.reached` is called with (P30). A process killed at any of them leaves a state that other
#: processes repair.
POINTS = (
    "submit.stored",
    "submit.recorded",
    "submit.told",
    "submit.queued",
    "claim.slot_taken",
    "claim.recorded",
    "claim.slot_filled",
    "claim.told",
    "finish.stored",
    "finish.recorded",
    "finish.buried",
    "finish.noted",
    "finish.told",
    "finish.answered",
    "put_back.recorded",
    "put_back.told",
    "put_back.answered",
    "reattach.recorded",
    "cancel.recorded",
)


def programs_of(backend: Backend) -> Programs:
    """Return the ports of programs. Raises Unavailable in a process that was opened without them."""
    if backend.programs is None:
        raise Unavailable("this process does not deal with programs")
    return backend.programs
