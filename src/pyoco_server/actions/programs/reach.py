"""What an action on programs begins with: the ports of programs, and the points at which a test may stop it."""

from __future__ import annotations

from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.programs import Programs

__all__ = ["POINTS", "programs_of"]

#: Every name that `Programs.reached` is called with (P30). Whoever is killed at one of them leaves something that
#: others mend.
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
    """Raises Unavailable in a process that does not deal with programs."""
    if backend.programs is None:
        raise Unavailable("this process does not deal with programs")
    return backend.programs
