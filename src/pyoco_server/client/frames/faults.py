"""What a client over TCP raises, beside GridRefused: what a door said no to."""

from __future__ import annotations

from pyoco_server.core.frames.messages import ErrorMessage
from pyoco_server.core.programs.faults import Code, GridRefused
from pyoco_server.errors import PyocoError

__all__ = ["ClientClosed", "DoorUnreachable", "OutputDamaged", "refusal_of"]


class DoorUnreachable(PyocoError):
    """No door answered in time."""

    number = 1
    phrase = "no door answers"


class ClientClosed(PyocoError):
    """The client was closed before the job had a result. The job goes on; ask again under its JobId."""

    number = 1
    phrase = "client closed"


class OutputDamaged(PyocoError):
    """What a door sent is not the file that it had announced."""

    number = 1
    phrase = "output damaged"


def refusal_of(message: ErrorMessage) -> GridRefused:
    """A code that this version does not know is told as INTERNAL."""
    code = Code(message.code) if message.code in _CODES else Code.INTERNAL
    return GridRefused(code, message.message, job_id=message.job_id)


_CODES = frozenset(Code)
