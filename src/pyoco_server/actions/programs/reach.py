"""Access to the ports of programs."""

from __future__ import annotations

from pyoco_server.errors import Unavailable
from pyoco_server.ports.backend import Backend
from pyoco_server.ports.programs import Programs

__all__ = ["programs_of"]


def programs_of(backend: Backend) -> Programs:
    """Return the ports of programs. Raises Unavailable in a process that was opened without them."""
    if backend.programs is None:
        raise Unavailable("this process does not deal with programs")
    return backend.programs
