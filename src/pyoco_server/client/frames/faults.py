"""The errors of a client over TCP, besides GridRefused for what a door has refused."""

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
    """The client was closed before the job had a result. The job continues; submit it again under its JobId."""

    number = 1
    phrase = "client closed"


class OutputDamaged(PyocoError):
    """The bytes that a door sent do not match the announced file."""

    number = 1
    phrase = "output damaged"


def refusal_of(message: ErrorMessage) -> GridRefused:
    """Return the error of a door as an exception. Codes unknown to this version become INTERNAL."""
    code = Code(message.code) if message.code in _CODES else Code.INTERNAL
    return GridRefused(code, message.message, job_id=message.job_id)


_CODES = frozenset(Code)
